"""The nll by how much a token had before it: sums over powers of two of the context.

A token's context is the number of inputs before it in its window: 1, 2-3, 4-7, 8-15, ... Bucket b
holds contexts 2**b to 2**(b+1) - 1. Where a window begins to help shows here.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluator.contract.reports import ContextNll, LedgerEntry
from evaluator.planning.plan import Batch, Plan


def sum_contexts(batch: Batch, nll_by_window: Sequence[NDArray[np.float64]]) -> tuple[float, ...]:
    """Exactly rounded sum of the nll in each bucket.

    Args:
        batch: Its windows have equal input length.
        nll_by_window: Of the scored tokens of each window, in nats.

    Returns:
        A sum for each of `batch.num_context_buckets`; 0.0 where no token was scored.
    """
    edges = [1 << bucket for bucket in range(batch.num_context_buckets + 1)]
    parts: list[list[float]] = [[] for _ in edges[1:]]
    for window, nll_S in zip(batch.windows, nll_by_window, strict=True):
        first = window.first_scored_input + 1
        for part, low, high in zip(parts, edges, edges[1:], strict=False):
            part.extend(nll_S[max(0, low - first) : max(0, high - first)].tolist())
    return tuple(math.fsum(part) for part in parts)


def nll_by_context(plan: Plan, entries: Iterable[LedgerEntry]) -> tuple[ContextNll, ...]:
    """The curve over all batches; buckets without a scored token are left out.

    Args:
        plan: What was scored.
        entries: One for each batch of the plan.
    """
    sums: dict[int, list[float]] = {}
    for entry in entries:
        for bucket, nll_nats in enumerate(entry.nll_by_context):
            sums.setdefault(bucket, []).append(nll_nats)
    windows = [window for batch in plan.batches for window in batch.windows]
    first = np.array([window.first_scored_input + 1 for window in windows], np.int64)
    end = first + np.array([window.num_scored for window in windows], np.int64)
    curve = []
    for bucket in sorted(sums):
        low, high = 1 << bucket, 2 << bucket
        num_scored = int(np.clip(np.minimum(end, high) - np.maximum(first, low), 0, None).sum())
        if num_scored:
            nll_nats = math.fsum(sums[bucket])
            curve.append(
                ContextNll(
                    first_context=low,
                    last_context=high - 1,
                    num_scored_tokens=num_scored,
                    nll_sum_nats=nll_nats,
                    mean_nll_nats=nll_nats / num_scored,
                )
            )
    return tuple(curve)
