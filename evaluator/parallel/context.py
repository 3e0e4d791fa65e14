"""Context parallelism: each rank computes some positions, with keys and values of all.

Keys and values are gathered in every layer through an attention function that transformers calls.
Parts may differ by one position; what fills them up for the gathering is cut off on arrival, so no
token is computed that is not of the window.

Shapes: B windows, T inputs, D width, H heads, K keys.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from evaluator.errors import ParallelismInvalid
from evaluator.model.forward import PROBE_TOKENS, Cut, Forward
from evaluator.parallel.group import ALONE, Place

ATTENTION = "assay_context"
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Kinds of attention whose mask is known here."""
CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments of attention functions that are not known here and must not be passed over."""
SAME_SHARE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-2}
"""Mean difference from the whole window's hidden states, relative to their mean size, up to which
the split is taken for right. Sound ones were seen at 3e-7, with zeros for the others at 3e-1."""


@dataclass(frozen=True)
class Span:
    """Positions that this rank computes, of a window."""

    begin: int
    end: int
    sizes: list[int]
    """Positions of each rank of `place`."""
    place: Place

    def mask(self, sliding_window: int | None, device: torch.device) -> Tensor:
        """[T, K]: true where a position may look, at itself and what is before it."""
        query_T1 = torch.arange(self.begin, self.end, device=device)[:, None]
        key_1K = torch.arange(self.end, device=device)[None]
        mask_TK = key_1K <= query_T1
        if sliding_window is not None:
            mask_TK &= key_1K > query_T1 - sliding_window
        return mask_TK


_SPAN: ContextVar[Span] = ContextVar("span")


def attend(
    module: Any,
    query_BHTD: Tensor,
    key_BHTD: Tensor,
    value_BHTD: Tensor,
    _mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of this rank's positions to all that is before them; as transformers calls it.

    Raises:
        ParallelismInvalid: The model does more to its scores than scale and mask them.
    """
    for name in CHANGES_SCORES:
        if others.get(name) is not None:
            raise _refusal(module, f"its attention has {name}")
    span = _SPAN.get()
    both_2BHKD = span.place.gather(torch.stack([key_BHTD, value_BHTD]), span.sizes, dim=3)
    # What comes after this rank's last position is masked for all of them.
    key_BHKD, value_BHKD = both_2BHKD[:, :, :, : span.end]
    answer_BHTD = functional.scaled_dot_product_attention(
        query_BHTD,
        key_BHKD,
        value_BHKD,
        attn_mask=span.mask(sliding_window, query_BHTD.device),
        scale=scaling,
        enable_gqa=key_BHKD.shape[1] != query_BHTD.shape[1],
    )
    return answer_BHTD.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class ContextForward(Forward):
    """A forward whose body runs on this rank's positions only."""

    place: Place

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Last hidden states [B, T, D], of all positions on every rank."""
        num_inputs = ids_BT.shape[1]
        # With fewer positions than ranks each rank computes them all.
        place = self.place if num_inputs >= self.place.count else ALONE
        span = Span(*place.bounds(num_inputs), place.sizes(num_inputs), place)
        positions_T = torch.arange(span.begin, span.end, device=ids_BT.device)
        with _computing(span):
            answer = self.body(
                input_ids=ids_BT[:, span.begin : span.end],
                position_ids=positions_T.expand(len(ids_BT), -1),
                use_cache=False,
            )
        return place.gather(answer.last_hidden_state, span.sizes, dim=1)


@contextmanager
def _computing(span: Span) -> Iterator[None]:
    token = _SPAN.set(span)
    try:
        yield
    finally:
        _SPAN.reset(token)


@torch.inference_mode()
def split_context(model: Any, cut: Cut, place: Place, num_rows: int) -> Cut:
    """Have the forward compute some positions of a window on each rank.

    Whether that gives what the model gives is tried on a few tokens.

    Raises:
        ParallelismInvalid: The model's attention is not known here, or it looks beyond it.
    """
    if place.count == 1:
        return cut
    forward = cut.forward
    types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if not types <= LAYER_TYPES:
        raise _refusal(model, f"it has layers of {sorted(types - LAYER_TYPES)[0]}")
    if "position_ids" not in inspect.signature(forward.body.forward).parameters:
        raise _refusal(model, "it takes no positions")
    num_tokens = max(PROBE_TOKENS, 2 * place.count) + 1
    ids_1T = (torch.arange(num_tokens, device=model.device) % num_rows)[None]
    expected_TD = forward.hidden(ids_1T)[0].float()
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *_args, **_kwargs: None)
    try:
        model.set_attn_implementation(ATTENTION)
    except ValueError as error:
        raise _refusal(model, "its attention can't be replaced") from error
    split = ContextForward(forward.body, forward.head, forward.slice_positions, place)
    try:
        found_TD = split.hidden(ids_1T)[0].float()
    except (TypeError, LookupError) as error:
        raise _refusal(model, f"its attention is called otherwise ({error})") from error
    # NaN is told later, with its place.
    difference = (found_TD - expected_TD).nan_to_num().abs().mean().item()
    size = expected_TD.nan_to_num().abs().mean().item()
    if difference > SAME_SHARE[model.dtype] * size:
        raise _refusal(model, "its numbers change; it may carry state from token to token")
    return Cut(split, cut.warnings)


def _refusal(model: Any, why: str) -> ParallelismInvalid:
    msg = f"{type(model).__name__} can't be split by cp: {why}; take dp_shard or tp"
    return ParallelismInvalid(msg)
