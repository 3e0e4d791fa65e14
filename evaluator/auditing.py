"""Carries the audit out: ranks score windows of others again, and the wrong ones are left out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluator.audit import (
    Case,
    Scorer,
    Undecided,
    Wrong,
    assign,
    choose,
    disputed,
    judge,
    largest_difference,
)
from evaluator.contract.audit import Audit, AuditResult, Suspect
from evaluator.contract.reports import LedgerEntry
from evaluator.errors import AuditUndecided
from evaluator.ledger import Ledger
from evaluator.micro_batch import ScoresBatches
from evaluator.plan import Batch, Plan
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo

TOLERANCE_16_BIT = 2e-3
TOLERANCE_GPU = 1e-6


def tolerance(audit: Audit, dtype: str, device_type: str) -> float:
    """The asked one, else what equal hardware keeps to: on a CPU in float32, every bit."""
    if audit.tolerance is not None:
        return audit.tolerance
    if dtype != "float32":
        return TOLERANCE_16_BIT
    return 0.0 if device_type == "cpu" else TOLERANCE_GPU


@dataclass(frozen=True)
class Member:
    """A rank, as the others know it."""

    node_rank: int
    host: str


@dataclass
class Auditor:
    """The audit of one run; the same on every rank, but for who scores what."""

    rank: RankInfo
    peers: Peers
    plan: Plan
    scorer: ScoresBatches
    audit: Audit
    tolerance: float
    members: Sequence[Member]
    """By rank."""
    healthy: set[int] = field(default_factory=set)
    """Ranks that nobody has contradicted."""
    suspects: list[Suspect] = field(default_factory=list)
    num_windows: int = 0
    largest: float = 0.0

    def __post_init__(self) -> None:
        self.healthy = set(range(self.rank.world_size))

    def look(
        self, ledger: Ledger, new: Sequence[LedgerEntry], taken: Sequence[LedgerEntry]
    ) -> list[int]:
        """Check a sample of what was scored; drop all that a wrong scorer has scored.

        Every rank calls it at the same point.

        Args:
            ledger: Of this rank.
            new: What this rank has scored since the last look.
            taken: Entries of earlier attempts, which every rank has; empty after the first look.

        Returns:
            Batches to be scored again by healthy ranks; none once all is well.

        Raises:
            AuditUndecided: Ranks contradict each other, and there is no majority.
        """
        if self.audit.share == 0 or (self.rank.world_size == 1 and not taken):
            return []
        cases = self._open_cases(new, taken)
        self._ask(cases)
        open_cases = [case for case in cases if disputed(case, self.tolerance)]
        self._ask(open_cases)
        wrong = {each.scorer: each for each in self._judge(cases)}
        self.num_windows += sum(bool(case.opinions) for case in cases)
        self.largest = max(self.largest, largest_difference(cases, wrong))
        return self._drop(ledger, wrong, taken)

    def _open_cases(self, new: Sequence[LedgerEntry], taken: Sequence[LedgerEntry]) -> list[Case]:
        scorers: list[tuple[Scorer, Sequence[LedgerEntry]]] = [(self.rank.rank, new)]
        if self.rank.rank == 0:
            scorers.append((None, taken))
        claims = [
            claim
            for scorer, entries in scorers
            for claim in choose(
                scorer,
                entries,
                share=self.audit.share,
                least=self.audit.windows_per_rank,
                seed=f"{self.plan.facts.digest}/{len(self.suspects)}",
            )
        ]
        return [Case(claim) for part in self.peers.all_gather(claims) for claim in part]

    def _ask(self, cases: Sequence[Case]) -> None:
        """Have each case scored by one more rank, where there is one."""
        nodes = [member.node_rank for member in self.members]
        asked = assign(cases, nodes, self.healthy)
        mine = {index: self._score(cases[index]) for index in asked.get(self.rank.rank, [])}
        for rank, opinions in enumerate(self.peers.all_gather(mine)):
            for index, nll_nats in opinions.items():
                cases[index].opinions[rank] = nll_nats

    def _score(self, case: Case) -> float:
        batch = self.plan.batches[case.claim.batch]
        alone = Batch(batch.index, (batch.windows[case.claim.position],))
        (nll_S,) = self.scorer.score(alone)
        return math.fsum(nll_S.tolist())

    def _judge(self, cases: Sequence[Case]) -> list[Wrong]:
        try:
            return judge(cases, self.tolerance)
        except Undecided as error:
            case = error.case
            window = self.plan.batches[case.claim.batch].windows[case.claim.position]
            said = {self._name(case.claim.scorer): case.claim.nll_nats}
            said |= {self._name(rank): nll for rank, nll in case.opinions.items()}
            words = ", ".join(f"{name} says {nll!r}" for name, nll in said.items())
            msg = (
                f"document {window.document}, window that scores from token {window.score_begin} "
                f"on: {words} nats, and no majority of ranks says who is wrong; check the memory "
                f"of these machines, or run with three ranks or more"
            )
            raise AuditUndecided(msg) from error

    def _name(self, scorer: Scorer) -> str:
        if scorer is None:
            return "an earlier attempt"
        member = self.members[scorer]
        return f"rank {scorer} (node {member.node_rank}, {member.host})"

    def _drop(
        self, ledger: Ledger, wrong: Mapping[Scorer, Wrong], taken: Sequence[LedgerEntry]
    ) -> list[int]:
        if not wrong:
            return []
        own = [entry.batch for entry in ledger.added] if self.rank.rank in wrong else []
        by_rank = self.peers.all_gather(own)
        dropped: dict[Scorer, list[int]] = {
            rank: by_rank[rank] for rank in wrong if rank is not None
        }
        if None in wrong:
            dropped[None] = [entry.batch for entry in taken]
        for scorer, batches in dropped.items():
            self.suspects.append(self._suspect(wrong[scorer], len(batches)))
        self.healthy -= {scorer for scorer in wrong if scorer is not None}
        again = sorted(batch for batches in dropped.values() for batch in batches)
        ledger.drop(again)
        return again

    def _suspect(self, wrong: Wrong, num_batches: int) -> Suspect:
        claim = wrong.case.claim
        window = self.plan.batches[claim.batch].windows[claim.position]
        member = None if wrong.scorer is None else self.members[wrong.scorer]
        return Suspect(
            rank=wrong.scorer,
            node_rank=member.node_rank if member else None,
            host=member.host if member else None,
            document=window.document,
            begin=window.score_begin,
            nll_nats=wrong.nll_nats,
            nll_nats_by_others=wrong.nll_nats_by_others,
            num_batches=num_batches,
        )

    @property
    def result(self) -> AuditResult:
        """What it came to."""
        return AuditResult(
            num_windows=self.num_windows,
            tolerance=self.tolerance,
            largest_difference=self.largest,
            quarantined=tuple(self.suspects),
            why_none=None if self.num_windows else self._why_none(),
        )

    def _why_none(self) -> str:
        if self.audit.share == 0:
            return "audit.share is 0"
        return "there is one rank: nobody else could score a window again"
