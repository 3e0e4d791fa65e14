"""Who is wrong? Pure decisions of the audit: which windows are checked, by whom, and the verdict.

Knows no torch and no store. Every rank computes the same from the same claims.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from evaluator.contract.audit import Author
from evaluator.contract.reports import LedgerEntry

LEAST_NATS = 64.0
"""A window with less nll than this is compared as if it had so much: where rounding differs at all,
the errors of few tokens do not cancel."""

Nll = float | None
"""Of a window, in nats; None where somebody came to no finite number."""
Reason = Literal["outvoted", "not_repeatable"]


class Claim(NamedTuple):
    """What the author of a batch says that a window's nll is."""

    author: Author
    batch: int
    position: int
    """Of the window in the batch."""
    nll_nats: float


@dataclass
class Case:
    """A claim and what others say."""

    claim: Claim
    owner: int | None
    """The rank that claims it; None for earlier attempts, whose ranks are gone."""
    tolerance: float
    opinions: dict[int, Nll] = field(default_factory=dict)
    """By the rank that scored the window again."""

    @property
    def said(self) -> dict[int, Nll]:
        """What ranks of this attempt have said of the window so far."""
        return self.opinions | ({} if self.owner is None else {self.owner: self.claim.nll_nats})

    def agree(self, one: Nll, other: Nll) -> bool:
        """Whether two nll of the window are the same but for rounding."""
        if one is None or other is None:
            return False
        return difference(one, other) <= self.tolerance


class Wrong(NamedTuple):
    """Why somebody is wrong about a case."""

    reason: Reason
    nll_nats: Nll
    """By who is wrong."""
    nll_nats_by_others: Nll


def choose(
    author: Author, entries: Iterable[LedgerEntry], *, share: float, least: int, seed: str
) -> list[Claim]:
    """A sample of an author's windows, the same for the same seed.

    Args:
        author: Who scored them.
        entries: All that it scored.
        share: Of its windows, 0 to 1.
        least: Fewest windows, where it has so many.
        seed: Something that no rank chooses, such as the digest of the plan.
    """
    in_order = sorted(entries, key=lambda entry: entry.batch)
    ends = list(accumulate(len(entry.nll_nats) for entry in in_order))
    num_windows = ends[-1] if ends else 0
    num = min(num_windows, max(least, math.ceil(share * num_windows)))
    generator = random.Random(f"{seed}/{author.attempt}/{author.rank}")  # noqa: S311 - must come again
    claims = []
    for window in sorted(generator.sample(range(num_windows), num)):
        index = bisect_right(ends, window)
        entry = in_order[index]
        position = window - ends[index] + len(entry.nll_nats)
        claims.append(Claim(author, entry.batch, position, entry.nll_nats[position]))
    return claims


def lacks_opinion(case: Case, healthy: Collection[int]) -> bool:
    """Whether too few have looked at it: the claim needs two ranks of this attempt behind it.

    What an earlier attempt says has no weight: the same node may have been wrong then as now.
    """
    return len([rank for rank in case.said if rank in healthy]) < 2


def assign(
    cases: Sequence[Case], authors: Sequence[Author], healthy: Collection[int]
) -> dict[int, list[int]]:
    """Who scores which case next: a healthy rank with no say in it yet, on another node if any.

    Args:
        cases: That need an opinion.
        authors: Of this attempt, by rank.
        healthy: Ranks that may be asked.

    Returns:
        Indices of cases by rank; a case that nobody is left for is in no list.
    """
    asked: dict[int, list[int]] = {}
    for index, case in enumerate(cases):
        free = [rank for rank in sorted(healthy) if rank not in case.said]
        known = {_node(case.claim.author), *(_node(authors[rank]) for rank in case.said)}
        elsewhere = [rank for rank in free if _node(authors[rank]) not in known]
        candidates = elsewhere or free
        if candidates:
            asked.setdefault(candidates[index % len(candidates)], []).append(index)
    return asked


def _node(author: Author) -> tuple[str, int]:
    return author.host, author.node_rank


def difference(one: float, other: float) -> float:
    """Relative difference of two nll."""
    return abs(one - other) / max(abs(one), abs(other), LEAST_NATS)


def is_disputed(case: Case, healthy: Collection[int]) -> bool:
    """Whether somebody who is not known to be wrong contradicts the claim."""
    if case.owner is not None and case.owner not in healthy:
        return False
    trusted = [nll for rank, nll in case.opinions.items() if rank in healthy]
    return not all(case.agree(case.claim.nll_nats, nll) for nll in trusted)


def judge(case: Case, again: Mapping[int, Nll]) -> dict[int | None, Wrong]:
    """Who is wrong about a disputed case.

    Args:
        case: The dispute.
        again: What each healthy rank came to, when all were asked to score the window (once more).

    Returns:
        By rank; None stands for the claim of an earlier attempt. It may be that neither side of
        the dispute is among them: then it can't be told.
    """
    said = {rank: nll for rank, nll in case.said.items() if rank in again}
    voices = {**again, **said}
    majority = _majority(case, list(voices.values()))
    wrong: dict[int | None, Wrong] = {}
    for rank, nll in said.items():
        if not case.agree(nll, again[rank]):
            others = majority if majority is not None else _another(case, rank)
            wrong[rank] = Wrong("not_repeatable", nll, others)
    if majority is None:
        return wrong
    for rank, nll in voices.items():
        if not case.agree(nll, majority):
            wrong[rank] = Wrong("outvoted", nll, majority)
    if case.owner is None and not case.agree(case.claim.nll_nats, majority):
        wrong[None] = Wrong("outvoted", case.claim.nll_nats, majority)
    return wrong


def _majority(case: Case, voices: Sequence[Nll]) -> Nll:
    """What more than half, and at least two, agree on."""

    def num_like(nll: Nll) -> int:
        return sum(case.agree(nll, other) for other in voices)

    best = max(voices, key=num_like)
    return best if num_like(best) >= 2 and 2 * num_like(best) > len(voices) else None


def _another(case: Case, rank: int) -> Nll:
    """What the other side of a dispute says."""
    others = [nll for name, nll in case.said.items() if name != rank]
    return others[0] if others else case.claim.nll_nats


def largest_difference(cases: Iterable[Case], healthy: Collection[int]) -> float:
    """Over what counts in the end; 0.0 where nothing was compared."""
    return max(
        (
            difference(case.claim.nll_nats, nll)
            for case in cases
            if case.owner is None or case.owner in healthy
            for rank, nll in case.opinions.items()
            if rank in healthy and nll is not None
        ),
        default=0.0,
    )
