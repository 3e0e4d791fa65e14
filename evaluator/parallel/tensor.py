"""Tensor parallelism: which products of a layer are split, and the sums that join them again.

A product is split by its outputs (each rank computes some) or by its inputs (each rank computes a
summand of all). The plan is the model's own, as transformers has it; GPT-2 has none there.
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from evaluator.errors import ParallelismInvalid
from evaluator.parallel.group import Place
from evaluator.parallel.parts import Part

BY_OUTPUTS, BY_INPUTS = "colwise", "rowwise"
UNSPLIT = frozenset(
    {
        # It matters to gradients only.
        "replicated_with_grad_allreduce",
    }
)
BY_VOCABULARY = frozenset({"embedding_rowwise", "colwise_gather_output"})
"""Styles of embedding and head, which are split another way: see vocabulary.py."""


@dataclass(frozen=True)
class Split:
    """How one product is split."""

    style: str
    num_pieces: int = 1


OWN_PLANS: dict[str, dict[str, Split]] = {
    "gpt2": {
        # Query, key and value are the three pieces of one product.
        "transformer.h.*.attn.c_attn": Split(BY_OUTPUTS, num_pieces=3),
        "transformer.h.*.attn.c_proj": Split(BY_INPUTS),
        "transformer.h.*.mlp.c_fc": Split(BY_OUTPUTS),
        "transformer.h.*.mlp.c_proj": Split(BY_INPUTS),
    },
}
"""By model type, for models whose library has no plan."""


def find_problem(config: Any, num_ways: int) -> str | None:
    """Why a model can't be split so many ways; None where its numbers allow it."""
    text = config.get_text_config()
    numbers = {
        "attention heads": getattr(text, "num_attention_heads", None),
        "key/value heads": getattr(text, "num_key_value_heads", None),
        "inner width": getattr(text, "intermediate_size", None)
        or getattr(text, "n_inner", None)
        or 4 * text.hidden_size,
    }
    uneven = [
        f"{number} {what}" for what, number in numbers.items() if number and number % num_ways
    ]
    if not uneven:
        return None
    return f"tp is {num_ways}, but the model has {' and '.join(uneven)}, which do not divide by it"


def possible_ways(model: Any, limit: int) -> frozenset[int]:
    """Ways up to `limit` to split a model; 1 alone where no plan is known for it."""
    try:
        _plan_of(model)
    except ParallelismInvalid:
        return frozenset({1})
    ways = range(1, limit + 1)
    return frozenset(number for number in ways if find_problem(model.config, number) is None)


def split_layers(model: Any, place: Place) -> dict[str, Part]:
    """Install the sums, and say which part of each parameter this rank needs.

    Args:
        model: On the meta device, in full size.
        place: Of this rank along `tp`.

    Returns:
        Parts by name of parameter; those that are not named are whole.

    Raises:
        ParallelismInvalid: A number does not divide, or the model has no plan that is known here.
    """
    if place.count == 1:
        return {}
    if problem := find_problem(model.config, place.count):
        raise ParallelismInvalid(problem)
    plan = _plan_of(model)
    parts: dict[str, Part] = {}
    for name, module in model.named_modules():
        split = next((split for pattern, split in plan if pattern.fullmatch(name)), None)
        if split is not None:
            parts.update(_split(name, module, split, place))
    if not parts:
        raise _no_plan(model, "none of its layers is in its plan")
    _narrow_fused(model, place)
    return parts


def _plan_of(model: Any) -> list[tuple[re.Pattern[str], Split]]:
    plan = OWN_PLANS.get(model.config.model_type)
    if plan is None:
        # What transformers itself reads; there is no public name.
        own: dict[str, str] = model._tp_plan or {}
        layers = {name: style for name, style in own.items() if ".layers." in f".{name}"}
        strange = set(layers.values()) - {BY_OUTPUTS, BY_INPUTS} - UNSPLIT
        if strange:
            raise _no_plan(model, f"its plan has {sorted(strange)[0]}, which is not known here")
        plan = {name: Split(style) for name, style in layers.items() if style not in UNSPLIT}
    if not plan:
        raise _no_plan(model, "transformers has no plan for it")
    return [
        (re.compile(re.escape(name).replace(r"\*", r"\d+")), split) for name, split in plan.items()
    ]


def _no_plan(model: Any, why: str) -> ParallelismInvalid:
    msg = f"{type(model).__name__} can't be split by tp: {why}; take dp_shard or cp"
    return ParallelismInvalid(msg)


def _split(name: str, module: Any, split: Split, place: Place) -> dict[str, Part]:
    if not isinstance(module, nn.Linear | Conv1D):
        msg = f"{name} is a {type(module).__name__}, which tp can't split; take dp_shard or cp"
        raise ParallelismInvalid(msg)
    # Conv1D is a linear layer whose weight is stored the other way round.
    outputs = 1 if isinstance(module, Conv1D) else 0
    if split.style == BY_OUTPUTS:
        weight = Part(dim=outputs, place=place, num_pieces=split.num_pieces)
        bias = Part(place=place, num_pieces=split.num_pieces)
        if isinstance(module, Conv1D):
            module.nf //= place.count
    else:
        weight = Part(dim=1 - outputs, place=place)
        bias = Part(place=place, first_only=True)

        def join(_module: Any, _arguments: Any, summand: Tensor) -> Tensor:
            return place.sum_(summand)

        module.register_forward_hook(join)
    parts = {f"{name}.weight": weight}
    if module.bias is not None:
        parts[f"{name}.bias"] = bias
    return parts


def _narrow_fused(model: Any, place: Place) -> None:
    """Tell layers that cut a fused product how long its pieces now are."""
    if model.config.model_type != "gpt2":
        return
    for module in model.modules():
        if hasattr(module, "split_size"):
            module.split_size //= place.count
