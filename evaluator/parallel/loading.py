"""Loads of a model what this rank has of it: built without memory, split, and only then read."""

import ctypes
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from evaluator.errors import ParallelismInvalid, WeightsInvalid
from evaluator.parallel.group import Place, ScoringGroup
from evaluator.parallel.parts import WHOLE, Part, Store, clip, find_name, open_store
from evaluator.parallel.tensor import split_layers
from evaluator.parallel.vocabulary import split_embedding, token_nll_over
from evaluator.scoring.score import Loss, token_nll

M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""
RETURNED_BYTES = 128 * 1024
"""Blocks from this size on go back to the system when they are freed, on a CPU with `dp_shard`:
where glibc starts, which otherwise raises it as it sees large blocks."""


@dataclass(frozen=True)
class LoadedWeights:
    """A model with its weights, or this rank's part of them."""

    model: Any
    num_rows: int
    """Of the whole embedding, or of the head where that has fewer."""
    unused: tuple[str, ...]
    """Tensors of the files that the model does not have."""
    loss: Loss = token_nll
    """Of the logits that its head gives."""


@dataclass(frozen=True)
class Stored:
    """Where a parameter comes from."""

    names: tuple[str, ...]
    """Of the parameter in the model; several where it is tied."""
    shape: torch.Size
    """Of the whole."""
    part: Part


def load_parts(
    folder: Path, config: Any, group: ScoringGroup, *, device: torch.device, dtype: torch.dtype
) -> LoadedWeights:
    """Build the model and read this rank's part; all ranks of the group together.

    Raises:
        ParallelismInvalid: The model can't be split so.
        WeightsInvalid: A tensor is missing, has another shape, or can't be read.
    """
    model = build_unread(config, dtype)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        msg = f"{type(model).__name__} has no plain embedding and head, so it can't be split"
        raise ParallelismInvalid(msg)
    num_rows = embedding.weight.shape[0], head.weight.shape[0]
    parts = split_layers(model, group.tp) | {
        name: Part(place=group.vocabulary)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter in {embedding.weight, head.weight, head.bias}
    }
    split_embedding(embedding, group.vocabulary, num_rows[0])
    stored = [
        Stored(names, model.get_parameter(names[0]).shape, parts.get(names[0], WHOLE))
        for names in _names_of(model)
    ]
    for entry in stored:
        _narrow(model, entry)
    _shard(model, group)
    # As `to_empty`, which would empty the buffers too.
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
    for entry in stored:
        _put(model, entry.names, model.get_parameter(entry.names[0]))
    unused = _read(model, stored, open_store(folder), group)
    loss = token_nll_over(group.vocabulary, num_rows[1])
    return LoadedWeights(model, min(num_rows), unused, loss)


def build_unread(config: Any, dtype: torch.dtype) -> Any:
    """The model with parameters on the meta device and buffers as they are computed."""
    with _parameters_on_meta():
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(requires_grad=False)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _names_of(model: Any) -> list[tuple[str, ...]]:
    """All names of each parameter."""
    names: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = (*names.get(id(parameter), ()), name)
    return list(names.values())


def _narrow(model: Any, stored: Stored) -> None:
    """Give a parameter the shape that this rank's part has."""
    if stored.part is WHOLE:
        return
    shape = list(stored.shape)
    ranges = stored.part.ranges(shape[stored.part.dim])
    shape[stored.part.dim] = sum(end - begin for begin, end in ranges)
    before = model.get_parameter(stored.names[0])
    empty = torch.empty(shape, dtype=before.dtype, device="meta")
    _put(model, stored.names, nn.Parameter(empty, requires_grad=False))


def _put(model: Any, names: tuple[str, ...], parameter: nn.Parameter) -> None:
    for name in names:
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, parameter)


def _shard(model: Any, group: ScoringGroup) -> None:
    """Shard layer by layer, and what the body has beside its layers as one.

    Embedding and head are left out: they are split by vocabulary, so nobody ever gathers them.
    """
    if group.dp_shard.count == 1:
        return
    assert group.mesh is not None, "a group of several ranks has a mesh"
    mesh = group.mesh["dp_shard"]
    body = model.base_model
    layers = [
        layer for child in body.children() if isinstance(child, nn.ModuleList) for layer in child
    ]
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(
        body,
        mesh=mesh,
        reshard_after_forward=True,
        ignored_params={model.get_input_embeddings().weight},
    )
    if group.mesh.device_type == "cpu":
        _return_memory(body)


def _return_memory(body: Any) -> None:
    """Have a layer's memory back as soon as it was used, at a price in time.

    Otherwise the C library keeps freed blocks for later, so that a rank that holds half of a model
    was seen to take 1.9 times its size; and FSDP keeps what it has gathered until the next layer,
    for the sake of an overlap that a CPU has not.
    """
    body._set_unshard_async_op(True)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED_BYTES)


def _read(model: Any, stored: list[Stored], store: Store, group: ScoringGroup) -> tuple[str, ...]:
    """Fill parameters and stored buffers; answers the names of tensors that nobody wants."""
    persistent = model.state_dict().keys()
    buffers = [
        Stored((name,), buffer.shape, WHOLE)
        for name, buffer in model.named_buffers()
        if name in persistent
    ]
    found = {
        entry: find_name(store, entry.names, model.base_model_prefix) for entry in stored + buffers
    }
    missing = sorted(entry.names[0] for entry, name in found.items() if name is None)
    if missing:
        msg = (
            f"{store.folder}: {len(missing)} tensors are missing from the weights, such as "
            f"{missing[0]}; where files call them otherwise, take dp_replicate or cp"
        )
        raise WeightsInvalid(msg)
    for entry, name in found.items():
        if name is not None:
            _fill(_tensor(model, entry.names[0]), entry, store, name, group.dp_shard)
    unused = store.files.keys() - set(found.values())
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    return tuple(sorted(n for n in unused if not any(re.search(pattern, n) for pattern in ignored)))


def _tensor(model: Any, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(owner), attribute)
    return tensor


@torch.no_grad()
def _fill(target: torch.Tensor, entry: Stored, store: Store, name: str, shard: Place) -> None:
    """Read one tensor's part into its place."""
    is_sharded = isinstance(target, DTensor)
    local = target.to_local() if isinstance(target, DTensor) else target
    if entry.part.is_zero:
        local.zero_()
        return
    if not local.numel():
        return
    try:
        shape = store.shape(name)
        if shape != list(entry.shape):
            msg = (
                f"{store.folder}: the weights do not fit the config: {name} is {shape}, "
                f"not {list(entry.shape)}"
            )
            raise WeightsInvalid(msg)
        by_rows = entry.part.dim == 0
        rows = entry.part.ranges(shape[0]) if by_rows else [(0, shape[0])]
        if is_sharded:
            rows = clip(rows, *_shard_bounds(target.shape[0], shard))
        columns = None if by_rows else entry.part.ranges(shape[1])
        local.copy_(store.read(name, rows, columns))
    except (SafetensorError, OSError) as error:
        msg = f"{store.folder}: {name} can't be read: {error}"
        raise WeightsInvalid(msg) from error


def _shard_bounds(num_rows: int, shard: Place) -> tuple[int, int]:
    """Rows that FSDP gives this rank: all but the last have the same number, as `torch.chunk`."""
    step = -(-num_rows // shard.count)
    return min(shard.index * step, num_rows), min((shard.index + 1) * step, num_rows)
