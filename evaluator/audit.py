"""Who is wrong? Pure decisions of the audit: which windows are checked, by whom, and the verdict.

Knows no torch and no store. Every rank computes the same from the same claims.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from evaluator.contract.reports import LedgerEntry

Scorer = int | None
"""A rank, or None for earlier attempts, whose ranks are gone."""
LEAST_NATS = 1.0
"""A window with less nll than this is compared as if it had so much."""


class Claim(NamedTuple):
    """What a scorer says that a window's nll is."""

    scorer: Scorer
    batch: int
    position: int
    """Of the window in the batch."""
    nll_nats: float


@dataclass
class Case:
    """A claim and what others say."""

    claim: Claim
    opinions: dict[int, float] = field(default_factory=dict)
    """The window's nll in nats, by the rank that scored it again."""


class Wrong(NamedTuple):
    """A scorer that the majority contradicts."""

    scorer: Scorer
    case: Case
    nll_nats: float
    """By the scorer."""
    nll_nats_by_others: float


class Undecided(Exception):
    """Opinions differ, and nobody is left to ask."""

    def __init__(self, case: Case) -> None:
        super().__init__(f"window {case.claim.position} of batch {case.claim.batch}")
        self.case = case


def choose(
    scorer: Scorer, entries: Iterable[LedgerEntry], *, share: float, least: int, seed: str
) -> list[Claim]:
    """A sample of a scorer's windows, the same for the same seed.

    Args:
        scorer: Who scored them.
        entries: All that it scored.
        share: Of its windows, 0 to 1.
        least: Fewest windows, where it has so many.
        seed: Something that no rank chooses, such as the digest of the plan.
    """
    in_order = sorted(entries, key=lambda entry: entry.batch)
    ends = list(accumulate(len(entry.nll_nats) for entry in in_order))
    num_windows = ends[-1] if ends else 0
    num = min(num_windows, max(least, math.ceil(share * num_windows)))
    claims = []
    for window in sorted(random.Random(seed).sample(range(num_windows), num)):  # noqa: S311 - must come again
        index = bisect_right(ends, window)
        entry = in_order[index]
        position = window - ends[index] + len(entry.nll_nats)
        claims.append(Claim(scorer, entry.batch, position, entry.nll_nats[position]))
    return claims


def assign(
    cases: Sequence[Case], nodes: Sequence[int], healthy: Collection[int]
) -> dict[int, list[int]]:
    """Who scores which case next: a healthy rank with no say in it yet, on another node if any.

    Args:
        cases: That need an opinion.
        nodes: Node of each rank.
        healthy: Ranks that may be asked.

    Returns:
        Indices of cases by rank; a case that nobody is left for is in no list.
    """
    asked: dict[int, list[int]] = {}
    for index, case in enumerate(cases):
        heard = {*case.opinions, case.claim.scorer}
        free = [rank for rank in sorted(healthy) if rank not in heard]
        known_nodes = {nodes[rank] for rank in heard if rank is not None}
        elsewhere = [rank for rank in free if nodes[rank] not in known_nodes]
        candidates = elsewhere or free
        if candidates:
            asked.setdefault(candidates[index % len(candidates)], []).append(index)
    return asked


def difference(one: float, other: float) -> float:
    """Relative difference of two nll."""
    return abs(one - other) / max(abs(one), abs(other), LEAST_NATS)


def disputed(case: Case, tolerance: float) -> bool:
    """Whether somebody contradicts the claim."""
    return any(difference(case.claim.nll_nats, nll) > tolerance for nll in case.opinions.values())


def judge(cases: Iterable[Case], tolerance: float) -> list[Wrong]:
    """Scorers that are wrong, each with its first case.

    A disputed case needs three opinions, of which two agree: the third is wrong, be it the one who
    claimed or one who checked.

    Raises:
        Undecided: No two agree, or only two were to be had.
    """
    wrong: dict[Scorer, Wrong] = {}
    for case in cases:
        if not disputed(case, tolerance):
            continue
        said: list[tuple[Scorer, float]] = [(case.claim.scorer, case.claim.nll_nats)]
        said += case.opinions.items()
        for scorer, nll in said:
            others = [other for name, other in said if name != scorer]
            alone = all(difference(nll, other) > tolerance for other in others)
            agreed = max(others, key=lambda value: _num_like(value, others, tolerance))
            if alone and _num_like(agreed, others, tolerance) > 1:
                wrong.setdefault(scorer, Wrong(scorer, case, nll, agreed))
                break
        else:
            raise Undecided(case)
    return list(wrong.values())


def _num_like(value: float, values: Iterable[float], tolerance: float) -> int:
    return sum(difference(value, other) <= tolerance for other in values)


def largest_difference(cases: Iterable[Case], wrong: Mapping[Scorer, object]) -> float:
    """Over what those who are not wrong say; 0.0 where nothing was compared."""
    return max(
        (
            difference(case.claim.nll_nats, nll)
            for case in cases
            if case.claim.scorer not in wrong
            for rank, nll in case.opinions.items()
            if rank not in wrong
        ),
        default=0.0,
    )
