"""Faults to order, so that tests can see the audit find them. Nothing else sets the variable."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from evaluator.planning.plan import Batch
from evaluator.scoring.score import Scorer, TokenNll

VARIABLE = "ASSAY_TEST_FAULT"
"""`<rank>:<kind>`, such as `1:scale`."""
Kind = Literal["flip", "overflow", "scale", "stale"]
FLIPPED_BITS: dict[Kind, int] = {"flip": 1 << 24, "overflow": 1 << 30}
"""Of a float32's exponent: a factor of 4 or 1/4, and one that makes the loss no number."""


class FaultyScorer:
    """Scores wrongly: every result 1.001 times as large, or that of the call before."""

    def __init__(self, scorer: Scorer, kind: Literal["scale", "stale"]) -> None:
        self._scorer = scorer
        self._kind = kind
        self._before: list[TokenNll] = []

    def score(self, batch: Batch) -> list[TokenNll]:
        """As `Scorer.score`, but wrong."""
        found = self._scorer.score(batch)
        if self._kind == "scale":
            return [nll_S * 1.001 for nll_S in found]
        before, self._before = self._before, found
        if [len(nll_S) for nll_S in before] != [len(nll_S) for nll_S in found]:
            return found
        return [np.array(nll_S) for nll_S in before]


def with_fault(
    scorer: Scorer, model: Any, rank: int, environ: Mapping[str, str]
) -> Scorer | FaultyScorer:
    """The scorer, or one with the fault that was ordered for this rank."""
    owner, _, word = environ.get(VARIABLE, "").partition(":")
    if owner != str(rank):
        return scorer
    (kind,) = (kind for kind in get_args(Kind) if kind == word)
    if kind in ("scale", "stale"):
        return FaultyScorer(scorer, kind)
    # The scale of a norm: every token sees it.
    weight = next(weight for weight in model.parameters() if weight.ndim == 1)
    own = weight.to_local() if isinstance(weight, DTensor) else weight.data
    own[:1].view(torch.int32).bitwise_xor_(FLIPPED_BITS[kind])
    return scorer
