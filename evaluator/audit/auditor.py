"""Carries the audit out: ranks score windows of others again, and the wrong ones are left out.

A scoring group has one voice, that of its first rank; what is said of ranks here holds for groups,
each of one rank unless the parallelism says otherwise. Groups are named by their number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from evaluator.audit.verdict import (
    Case,
    Claim,
    Nll,
    Wrong,
    assign,
    choose,
    is_disputed,
    judge,
    lacks_opinion,
    largest_difference,
)
from evaluator.contract.audit import Audit, AuditResult, Author, Suspect, WindowInDispute
from evaluator.contract.reports import FinishedEntry, LedgerEntry
from evaluator.errors import AuditUndecided, LossNotFinite
from evaluator.exchange.process_group import Peers
from evaluator.parallel.group import ScoringGroup
from evaluator.planning.plan import Batch, Plan
from evaluator.scoring.ledger import Ledger
from evaluator.scoring.micro_batch import ScoresBatches

TOLERANCE_16_BIT = 2e-3
TOLERANCE_FLOAT32 = 1e-6
"""Between different processors, and on GPUs, where a window alone may be rounded otherwise."""

T = TypeVar("T")


class Member(NamedTuple):
    """A rank, as the others know it."""

    author: Author
    processor: str
    """Ranks on equal ones compute equal bits in float32."""
    python: str
    """Its version; those of what computes are compared before anything is scored."""


def member_warnings(members: Sequence[Member]) -> tuple[str, ...]:
    """What ranks do not have in common, though the run can go on."""
    warnings = []
    for name, advice in (
        ("python", "take one version on all nodes"),
        ("processor", "the last bits of the figure depend on who scored what"),
    ):
        first, *others = ((getattr(member, name), member.author) for member in members)
        odd = next((other for other in others if other[0] != first[0]), None)
        if odd is not None:
            warnings.append(
                f"{name} differs: {first[0]} on rank {first[1].rank} of {_place(first[1])}, "
                f"{odd[0]} on rank {odd[1].rank} of {_place(odd[1])}; "
                f"{advice}"
            )
    return tuple(warnings)


class _Work(NamedTuple):
    """What a rank brings to a look."""

    is_intact: bool
    num_batches: dict[Author, int]
    """Since the last look; those of earlier attempts are with rank 0."""
    claims: list[Claim]


@dataclass
class Auditor:
    """The audit of one run; the same on every rank, but for who scores what."""

    group: ScoringGroup
    """Of this rank."""
    peers: Peers
    plan: Plan
    scorer: ScoresBatches
    audit: Audit
    dtype: str
    device_type: str
    members: Sequence[Member]
    """By rank."""
    taken: list[FinishedEntry]
    """Of earlier attempts, as far as they are trusted."""
    is_intact: Callable[[], bool]
    """Whether this group's weights are still those that it began with; all of its ranks ask."""
    moves: Callable[[], None]
    """Called for each window, to tell whoever waits."""
    healthy: set[int] = field(default_factory=set)
    """Groups that are not known to be wrong."""
    suspects: list[Suspect] = field(default_factory=list)
    _distrusted: set[Author] = field(default_factory=set)
    _num_batches: dict[Author, int] = field(default_factory=dict)
    _cases: list[Case] = field(default_factory=list)
    """Of all looks: who was believed in the last one may be found to be wrong in this one."""
    _num_exchanges: int = 0
    _authors: list[Author] = field(init=False)
    """By group."""

    def __post_init__(self) -> None:
        self._authors = self.group.speakers([member.author for member in self.members])
        self.healthy = set(range(len(self._authors)))

    @property
    def is_on(self) -> bool:
        """Whether anything is checked at all."""
        return self.audit.share > 0

    def look(self, ledger: Ledger, new: Sequence[LedgerEntry]) -> list[int]:
        """Check a sample of what was scored; drop all that a wrong rank has scored.

        Every rank calls it at the same point. Entries of earlier attempts are checked in the first
        look. Who is found joins `suspects`.

        Args:
            ledger: Of this rank.
            new: What this rank has scored since the last look.

        Returns:
            Batches to be scored again by healthy ranks; none once all is well.

        Raises:
            AuditUndecided: Ranks contradict each other, and nothing says who is wrong.
        """
        if not self.is_on:
            return []
        works = self._exchange(self._work(new))
        found: list[Suspect] = [
            self._suspect(self._authors[rank], "weights_changed", None)
            for rank in sorted(self.healthy)
            if not works[rank].is_intact
        ]
        self._distrust(found)
        for work in works:
            self._cases += map(self._open, work.claims)
            for author, num in work.num_batches.items():
                self._num_batches[author] = self._num_batches.get(author, 0) + num
        found += self._settle()
        return self._drop(ledger, found) if found else []

    def _work(self, new: Sequence[LedgerEntry]) -> _Work:
        by_author: dict[Author, list[LedgerEntry]] = {}
        if new:
            by_author[self._authors[self.group.number]] = list(new)
        if self.group.number == 0 and self._num_exchanges == 0:
            for finished in self.taken:
                by_author.setdefault(finished.author, []).append(finished.entry)
        claims = [
            claim
            for author, entries in by_author.items()
            for claim in choose(
                author,
                entries,
                share=self.audit.share,
                least=self.audit.windows_per_rank,
                seed=f"{self.plan.facts.digest}/{self._num_exchanges}",
            )
        ]
        sizes = {author: len(entries) for author, entries in by_author.items()}
        return _Work(self.is_intact(), sizes, claims)

    def _exchange(self, value: T) -> list[T]:
        """Values of all groups; nobody is inside a collective while others still score."""
        self._num_exchanges += 1
        self.peers.wait_for_all(f"audit/{self._num_exchanges}")
        return self.group.speakers(self.peers.all_gather(value))

    def _open(self, claim: Claim) -> Case:
        owner = self._rank_of(claim.author)
        hosts = {member.author.host for member in self.members}
        alike = self._alike and (owner is not None or claim.author.host in hosts)
        return Case(claim, owner, self._tolerance(alike=alike))

    def _rank_of(self, author: Author) -> int | None:
        attempt = self._authors[0].attempt
        return self.group.number_of(author.rank) if author.attempt == attempt else None

    @property
    def _alike(self) -> bool:
        return len({member.processor for member in self.members}) == 1

    def _tolerance(self, *, alike: bool) -> float:
        if self.audit.tolerance is not None:
            return self.audit.tolerance
        if self.dtype != "float32":
            return TOLERANCE_16_BIT
        return 0.0 if alike and self.device_type == "cpu" else TOLERANCE_FLOAT32

    def _lacks(self, case: Case) -> bool:
        return case.claim.author not in self._distrusted and lacks_opinion(case, self.healthy)

    def _settle(self) -> list[Suspect]:
        """Have cases scored by others until nobody who is trusted contradicts a claim."""
        found: list[Suspect] = []
        while True:
            while self._ask([case for case in self._cases if self._lacks(case)]):
                pass
            disputes = (case for case in self._cases if self._is_disputed(case))
            dispute = next(disputes, None)
            if dispute is None:
                return found
            suspects = self._hear(dispute)
            self._distrust(suspects)
            found += suspects

    def _is_disputed(self, case: Case) -> bool:
        return case.claim.author not in self._distrusted and is_disputed(case, self.healthy)

    def _ask(self, cases: Sequence[Case]) -> bool:
        """Have each case scored by one more rank; answers whether there was one to ask."""
        # One opinion against an earlier attempt could only end undecided.
        asked = assign(cases, self._authors, self.healthy) if len(self.healthy) > 1 else {}
        if not asked:
            return False
        mine = {index: self._score(cases[index]) for index in asked.get(self.group.number, [])}
        for rank, opinions in enumerate(self._exchange(mine)):
            for index, nll_nats in opinions.items():
                cases[index].opinions[rank] = nll_nats
        return True

    def _score(self, case: Case) -> Nll:
        batch = self.plan.batches[case.claim.batch]
        alone = Batch(batch.index, (batch.windows[case.claim.position],))
        try:
            (nll_S,) = self.scorer.score(alone)
        except LossNotFinite:
            return None
        self.moves()
        return math.fsum(nll_S.tolist())

    def _hear(self, case: Case) -> list[Suspect]:
        """Have a disputed window scored by all, and name who is wrong."""
        mine = self._score(case) if self.group.number in self.healthy else None
        answers = self._exchange(mine)
        wrong = judge(case, {rank: answers[rank] for rank in sorted(self.healthy)})
        parties = {case.owner, *case.opinions}
        if not parties & wrong.keys():
            raise AuditUndecided(self._why_undecided(case))
        return [self._accuse(case, rank, why) for rank, why in wrong.items()]

    def _accuse(self, case: Case, rank: int | None, why: Wrong) -> Suspect:
        window = self.plan.batches[case.claim.batch].windows[case.claim.position]
        author = case.claim.author if rank is None else self._authors[rank]
        dispute = WindowInDispute(
            document=window.document,
            begin=window.score_begin,
            nll_nats=why.nll_nats,
            nll_nats_by_others=why.nll_nats_by_others,
        )
        return self._suspect(author, why.reason, dispute)

    def _suspect(self, author: Author, reason: str, window: WindowInDispute | None) -> Suspect:
        return Suspect.model_validate(
            {
                "author": author,
                "ranks": self.group.ranks_from(author.rank),
                "reason": reason,
                "window": window,
                "num_batches": 0,
            }
        )

    def _distrust(self, suspects: Sequence[Suspect]) -> None:
        self._distrusted |= {suspect.author for suspect in suspects}
        self.healthy -= {self._rank_of(suspect.author) for suspect in suspects} - {None}

    def _why_undecided(self, case: Case) -> str:
        window = self.plan.batches[case.claim.batch].windows[case.claim.position]
        said: Mapping[str, Nll] = {
            self._name(case.claim.author): case.claim.nll_nats,
            **{self._name(self._authors[rank]): nll for rank, nll in case.opinions.items()},
        }
        words = ", ".join(f"{name} says {nll!r}" for name, nll in said.items())
        return (
            f"document {window.document}, window that scores from token {window.score_begin} on: "
            f"{words} nats. Both sides repeat their number with unchanged weights, and no majority "
            f"of ranks decides; check these machines, or run with three ranks or more"
        )

    def _drop(self, ledger: Ledger, found: Sequence[Suspect]) -> list[int]:
        """Forget all that suspects have scored; answers every batch that is then missing."""
        by_rank = self._exchange([entry.batch for entry in ledger.added])
        sizes = {author: len(by_rank[rank]) for rank, author in enumerate(self._authors)}
        for finished in self.taken:
            sizes[finished.author] = sizes.get(finished.author, 0) + 1
        self.suspects += [
            suspect.model_copy(update={"num_batches": sizes[suspect.author]}) for suspect in found
        ]
        self.taken = [each for each in self.taken if each.author not in self._distrusted]
        kept = {each.entry.batch for each in self.taken}
        kept.update(batch for rank in self.healthy for batch in by_rank[rank])
        again = [batch.index for batch in self.plan.batches if batch.index not in kept]
        ledger.drop(again)
        return again

    def check_somebody_is_left(self) -> None:
        """Raise where nobody can score again what was dropped.

        Raises:
            AuditUndecided: All ranks are wrong; it names the last one.
        """
        if not self.healthy:
            last = self.suspects[-1]
            reason = last.reason.replace("_", " ")
            msg = (
                f"{self._name(last.author)}: wrong ({reason}), and no other rank is left "
                f"to score the batches again; check the memory of this machine"
            )
            raise AuditUndecided(msg)

    @property
    def result(self) -> AuditResult:
        """What it came to."""
        num_windows = sum(bool(case.opinions) for case in self._cases)
        trusted = [case for case in self._cases if case.claim.author not in self._distrusted]
        unchecked = {case.claim.author for case in self._cases if self._lacks(case)}
        num_unchecked = sum(self._num_batches[author] for author in unchecked)
        return AuditResult(
            num_windows=num_windows,
            num_unchecked_batches=num_unchecked if self.is_on else len(self.plan.batches),
            tolerance=self._tolerance(alike=self._alike),
            largest_difference=largest_difference(trusted, self.healthy),
            quarantined=tuple(self.suspects),
            why_none=None if num_windows else self._why_none(),
        )

    def _why_none(self) -> str:
        if not self.is_on:
            return "audit.share is 0"
        one = "scoring group" if self.group.has_several else "rank"
        return f"there is one {one}: nobody else could score a window again"

    def _name(self, author: Author) -> str:
        first, *others = self.group.ranks_from(author.rank)
        ranks = f"ranks {first} to {others[-1]}" if others else f"rank {first}"
        return f"{ranks} of {_place(author)}"


def _place(author: Author) -> str:
    return f"attempt {author.attempt} (node {author.node_rank}, {author.host})"
