"""Embedding, head and loss whose vocabulary is split over ranks: none ever holds all logits.

Shapes: P positions of a slice, V vocabulary, R ranks.
"""

from typing import Any

import torch
from torch import Tensor

from evaluator.parallel.group import Place
from evaluator.scoring.score import Loss, log_sum_exp


def split_embedding(embedding: Any, place: Place, num_rows: int) -> None:
    """Have an embedding with this rank's rows answer for all of them.

    Args:
        embedding: Its weight holds rows `place.bounds(num_rows)`.
        place: Of this rank along the vocabulary.
        num_rows: Of the whole embedding.
    """
    begin, end = place.bounds(num_rows)
    # It may lie outside this rank's rows, and matters to gradients only.
    embedding.padding_idx = None
    elsewhere: list[Tensor] = []

    def to_own_rows(_module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ids = arguments[0]
        elsewhere.append((ids < begin) | (ids >= end))
        return (ids.sub(begin).clamp(0, end - begin - 1), *arguments[1:])

    def to_all_rows(_module: Any, _arguments: Any, found: Tensor) -> Tensor:
        return place.sum_(found.masked_fill(elsewhere.pop()[..., None], 0))

    embedding.register_forward_pre_hook(to_own_rows)
    embedding.register_forward_hook(to_all_rows)


def token_nll_over(place: Place, num_rows: int) -> Loss:
    """The loss of logits that are split over ranks, as that of one device.

    Each rank sums its own exponentials; what travels is two float64 a position.

    Args:
        place: Of this rank along the vocabulary.
        num_rows: Of the whole head.
    """
    begin, end = place.bounds(num_rows)

    def token_nll(logits_PV: Tensor, targets_P: Tensor) -> Tensor:
        own_P = targets_P.sub(begin).clamp(0, end - begin - 1)
        is_own_P = (targets_P >= begin) & (targets_P < end)
        # Before the sum, which overwrites the logits.
        target_P = logits_PV.gather(-1, own_P[:, None]).squeeze(-1).double()
        # Not by a product: an infinite logit of another token must not become NaN here.
        target_P = target_P.masked_fill(~is_own_P, 0)
        own = torch.stack([log_sum_exp(logits_PV), target_P])[None]
        all_R2P = place.gather(own, [1] * place.count, dim=0)
        return all_R2P[:, 0].logsumexp(0) - all_R2P[:, 1].sum(0)

    return token_nll
