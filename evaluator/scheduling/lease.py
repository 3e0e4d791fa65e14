"""Which rank scores which batch, over one shared counter of batches in the order of the plan.

A rank adds the number of batches that it takes, and the answer says where they begin: leases are
disjoint and leave no gap, whatever the ranks believe of each other. What they believe decides only
how large a lease is: large first and small at the end, so that few are drawn and no rank is left
alone with much work. Knows no store: the counter is given. Must not import torch.
Source: Hummel, Schmidt, Uma and Wein, "Load-Sharing in Heterogeneous Systems via Weighted
Factoring", SPAA 1996.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

SPLIT = 4
"""A lease takes 1/SPLIT of a rank's part of what is left: a rank that is 4 times slower than is
believed still ends its first lease in time."""

Take = Callable[[int], int]
"""Adds to the counter that all ranks share, atomically; answers its value before."""


def cumulate(costs: Iterable[int]) -> list[int]:
    """Cost of all batches before each position, and of all: one more than there are batches."""
    return [0, *accumulate(costs)]


def static_lease(before: Sequence[int], num_ranks: int, rank: int) -> range:
    """The one lease of a rank where the work is cut into equal parts beforehand.

    Args:
        before: Cumulated costs of the batches, in the order of the plan.
        num_ranks: Ranks that share the work, at least 1.
        rank: Which of them.

    Returns:
        Positions of batches; those of all ranks cover them without gap or overlap. Maybe empty.
    """

    def middle(position: int) -> float:
        return (before[position] + before[position + 1]) / 2

    positions = range(len(before) - 1)
    first, end = (
        bisect_right(positions, before[-1] * part / num_ranks, key=middle)
        for part in (rank, rank + 1)
    )
    return range(first, end)


def draw_leases(
    before: Sequence[int], take: Take, share: Callable[[int], float | None]
) -> Iterator[range]:
    """Leases of this rank, until none is left, or it leaves the rest to others.

    Args:
        before: Cumulated costs of the batches, in the order of the plan; alike on every rank.
        take: The shared counter.
        share: Of all ranks' speed, the part that is this rank's, 0 to 1; with 0 the lease is one
            batch, with None there is no further one. It is asked before each lease, with the
            position where the lease begins.
    """
    num_batches = len(before) - 1
    # What others take between the look and the draw makes a lease a little too large, no more.
    while (seen := take(0)) < num_batches and (part := share(seen)) is not None:
        budget = (before[-1] - before[seen]) * part / SPLIT
        size = max(1, bisect_right(before, before[seen] + budget) - 1 - seen)
        begin = take(size)
        if begin < num_batches:
            yield range(begin, min(begin + size, num_batches))
