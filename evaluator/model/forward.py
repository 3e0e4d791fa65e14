"""A model's forward, cut in two: the body for whole windows, the head for slices of positions.

The cut keeps logits of [batch, window, vocabulary] from ever existing. Whether a model may be cut
so is not believed but tried on a short probe: a head may do more than one matrix product.

Shapes: B windows, T inputs, D width, P positions of a slice, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from evaluator.errors import ModelUnsupported
from evaluator.model.prepacked import pack

PROBE_TOKENS = 16
SLICE_POSITIONS = 512
SLICE_VALUES = 1 << 25
"""Positions, and logits, that exist at a time, at most: 134 MB of float32. Part of what fixes a
figure's last bits, so it depends on the vocabulary alone."""
NUMERICS = f"slices of {SLICE_POSITIONS} positions or {SLICE_VALUES} logits"
"""What decides last bits beside versions, plan and machine. Ranks compare it, and so do attempts,
as part of the plan's digest. Packed weights and the loss's pieces change no bit."""

NOT_CAUSAL_SHARE = {torch.float32: 1e-5, torch.bfloat16: 2e-3, torch.float16: 2e-3}
"""Mean change of earlier logits, relative to their mean size, from which a model is not causal.
Causal ones were seen to change by 0, with experts by 1e-8; a random BERT by 2e-3 to 5e-3."""


class HeadPath(Protocol):
    """From hidden states to logits."""

    def __call__(self, hidden_PD: Tensor) -> Tensor:
        """Logits [P, V] of hidden states [P, D]. The next call may overwrite them."""


@dataclass(frozen=True)
class Forward:
    """How a model's logits are computed."""

    body: Any
    head: HeadPath
    slice_positions: int
    """Positions that go through the head at a time."""

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Last hidden states [B, T, D]."""
        hidden_BTD: Tensor = self.body(input_ids=ids_BT, use_cache=False).last_hidden_state
        return hidden_BTD


@dataclass(frozen=True)
class Cut:
    """A forward that agrees with the model's own, and what to say about it."""

    forward: Forward
    warnings: tuple[str, ...] = ()


class LinearHead:
    """The output embedding and nothing else.

    Without a bias it writes into memory of its own, again and again: fresh pages for each slice
    were seen to cost a fifth of the product.
    """

    def __init__(self, model: Any) -> None:
        self._head = model.get_output_embeddings()
        self._is_product = type(self._head) is torch.nn.Linear and self._head.bias is None
        self._logits_PV: Tensor | None = None

    def __call__(self, hidden_PD: Tensor) -> Tensor:
        """Logits [P, V]."""
        if not self._is_product:
            # [1, P, D] as the model itself hands it over, so that the probe can ask for equal bits.
            logits_PV: Tensor = self._head(hidden_PD[None])[0]
            return logits_PV
        weight_VD: Tensor = self._head.weight
        if self._logits_PV is None or len(self._logits_PV) < len(hidden_PD):
            self._logits_PV = None  # Frees the smaller one first.
            self._logits_PV = hidden_PD.new_empty(len(hidden_PD), len(weight_VD))
        return torch.mm(hidden_PD, weight_VD.t(), out=self._logits_PV[: len(hidden_PD)])


class OwnHead:
    """Everything the model's own forward does after its body, such as soft capping."""

    def __init__(self, model: Any, answer_type: type) -> None:
        self._model = model
        self._answer_type = answer_type

    def __call__(self, hidden_PD: Tensor) -> Tensor:
        """Logits [P, V]."""
        ids_1P = torch.zeros(1, len(hidden_PD), dtype=torch.long, device=hidden_PD.device)
        answer = self._answer_type(last_hidden_state=hidden_PD[None])
        with _body_answers(self._model.base_model, answer):
            logits_PV: Tensor = self._model(input_ids=ids_1P, use_cache=False).logits[0]
        return logits_PV


@contextmanager
def _body_answers(body: Any, answer: Any) -> Iterator[None]:
    """While inside, the body returns this, whatever it is given."""
    before = vars(body).get("forward")
    body.forward = lambda *_args, **_kwargs: answer
    try:
        yield
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before


@torch.inference_mode()
def cut_model(model: Any, num_rows: int) -> Cut:
    """Try on a few tokens how the model can be cut, and pack its body.

    Args:
        model: A causal language model in evaluation mode.
        num_rows: Ids below this have an embedding.

    Raises:
        ModelUnsupported: Later tokens change earlier logits, or no cut gives the model's logits.
    """
    ids_2T = _probe(model.device, num_rows)
    # Weights are read once for both rows, and reading them is what a short forward costs.
    own_2TV = model(input_ids=ids_2T, use_cache=False).logits
    _check_causal(model, own_2TV)
    own_PV = own_2TV.flatten(0, 1)
    body = model.base_model
    positions = slice_positions(own_PV.shape[-1])
    if body is not model:
        answer = body(input_ids=ids_2T, use_cache=False)
        hidden_PD = answer.last_hidden_state.flatten(0, 1)
        linear = Forward(body, LinearHead(model), positions)
        fits = hidden_PD.shape[-1] == model.get_output_embeddings().weight.shape[-1]
        if fits and _agrees(linear.head, hidden_PD, own_PV):
            pack(body)
            return Cut(linear)
        own = Forward(body, OwnHead(model, type(answer)), positions)
        if _agrees(own.head, hidden_PD, own_PV):
            pack(body)
            note = (
                f"{type(model).__name__} changes its logits after the head; its own code was used"
            )
            return Cut(own, (note,))
    msg = f"{type(model).__name__} can't be split into body and head: its logits do not come out"
    raise ModelUnsupported(msg)


def slice_positions(vocabulary_size: int) -> int:
    """Positions of a slice: as many as keep its logits within bounds, and at least one."""
    return max(1, min(SLICE_POSITIONS, SLICE_VALUES // vocabulary_size))


def _agrees(head: HeadPath, hidden_PD: Tensor, own_PV: Tensor) -> bool:
    logits_PV = head(hidden_PD)
    # NaN is told later, with its place; here it must not pass for another head.
    return bool(torch.equal(logits_PV.nan_to_num(), own_PV.nan_to_num()))


def _probe(device: torch.device, num_rows: int) -> Tensor:
    """Two rows of tokens that differ in their second half."""
    ids_T = torch.arange(PROBE_TOKENS, device=device) % num_rows
    half_T = ids_T[: PROBE_TOKENS // 2]
    return torch.stack([ids_T, half_T.repeat(2)])


def _check_causal(model: Any, own_2TV: Tensor) -> None:
    """Raise where the second halves of the probe's rows show in the logits of the first."""
    before_TV, after_TV = own_2TV[:, : PROBE_TOKENS // 2].float()
    change = (before_TV - after_TV).abs().mean().item()
    if change > NOT_CAUSAL_SHARE[model.dtype] * before_TV.abs().mean().item():
        msg = (
            f"{type(model).__name__} is not causal: a later token changes the logits of earlier "
            f"ones, so its perplexity would mean nothing"
        )
        raise ModelUnsupported(msg)
