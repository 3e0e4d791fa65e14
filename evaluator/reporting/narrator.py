"""Tells how the run goes: builds the reports of one rank. Must not import torch."""

import os
import socket
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from evaluator.contract.audit import Suspect
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import GroupShape
from evaluator.contract.reports import (
    Failure,
    Hello,
    LedgerEntry,
    NodeTiming,
    PlanFacts,
    PlanReady,
    Progress,
    Quarantine,
    RankTiming,
    Result,
)
from evaluator.errors import fault_of
from evaluator.exchange.ranks import RankInfo
from evaluator.exchange.recorder import Recorder
from evaluator.reporting.reporter import Reporter
from evaluator.reporting.timing import RankClock
from evaluator.versions import versions

if TYPE_CHECKING:
    from evaluator.scoring.ledger import Ledger

PROGRESS_PERIOD_S = 1.0
TRACEBACK_CHARACTERS = 4000
"""Of a traceback's end, where the cause stands."""

Stage = Literal["load", "tokenise", "warm_up", "score", "audit", "reduce"]


class Narrator:
    """Reports of one rank, in order."""

    def __init__(
        self,
        reporter: Reporter,
        rank: RankInfo,
        clock: RankClock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._rank = rank
        self._clock = clock
        self._monotonic = monotonic
        self._stage: Stage = "load"
        self._told_at = monotonic()
        self.recorder = Recorder()
        """The last steps, for the report of a failure."""
        self.ledger: Ledger | None = None
        """Whose new entries go with the progress; there is none before the plan."""

    def hello(self, spec: LaunchSpec) -> None:
        """Say that this rank is there. The device is the asked one: no driver is touched yet."""
        asked = spec.launch.device
        self._reporter.send(
            Hello(
                rank=self._rank.rank,
                seq=self._reporter.next_seq,
                local_rank=self._rank.local_rank,
                node_rank=self._rank.node_rank,
                world_size=self._rank.world_size,
                host=socket.gethostname(),
                pid=os.getpid(),
                device=f"cuda:{self._rank.local_rank}" if asked == "cuda" else asked,
                versions=versions(),
            )
        )

    def plan_ready(self, facts: PlanFacts, model_digest: str | None, group: GroupShape) -> None:
        """Say how much work there is; for rank 0."""
        self._reporter.send(
            PlanReady(
                rank=self._rank.rank,
                seq=self._reporter.next_seq,
                plan=facts,
                model_digest=model_digest,
                group=group,
            )
        )

    def quarantine(self, suspect: Suspect) -> None:
        """Say that a rank was found to be wrong; for rank 0."""
        self._reporter.send(
            Quarantine(rank=self._rank.rank, seq=self._reporter.next_seq, suspect=suspect)
        )

    def enter(self, stage: Stage) -> None:
        """Say that a stage begins.

        Raises:
            Superseded: The server no longer wants this attempt.
        """
        self._stage = stage
        self.recorder.note(f"stage {stage}")
        self._progress()

    def tick(self) -> None:
        """Say what is new, about once a second.

        Raises:
            Superseded: The server no longer wants this attempt.
        """
        if self._monotonic() - self._told_at >= PROGRESS_PERIOD_S:
            self._progress()

    def _progress(self) -> None:
        self._reporter.check()
        self._told_at = self._monotonic()
        self._send_progress(self._take_unreported())

    def _take_unreported(self) -> tuple[LedgerEntry, ...]:
        return self.ledger.take_unreported() if self.ledger else ()

    def _send_progress(self, entries: tuple[LedgerEntry, ...]) -> None:
        self._reporter.send(
            Progress(
                rank=self._rank.rank,
                seq=self._reporter.next_seq,
                stage=self._stage,
                timing=self._clock.snapshot(),
                entries=entries,
            )
        )

    def node_timing(self, ranks: list[RankTiming]) -> None:
        """Say where this node's time went; for its leader."""
        self._reporter.send(
            NodeTiming(
                rank=self._rank.rank,
                seq=self._reporter.next_seq,
                node_rank=self._rank.node_rank,
                host=socket.gethostname(),
                ranks=tuple(ranks),
            )
        )

    @property
    def next_seq(self) -> int:
        """Number for the next report."""
        return self._reporter.next_seq

    def result(self, result: Result) -> None:
        """Say how it ended; for rank 0."""
        self._reporter.send(result)

    def failure(self, error: BaseException) -> None:
        """Say why this rank ends without a result; what it has finished goes first."""
        if entries := self._take_unreported():
            self._send_progress(entries)
        fault = fault_of(error)
        self._reporter.send(
            Failure(
                rank=self._rank.rank,
                seq=self._reporter.next_seq,
                reason=fault.reason,
                message=fault.message,
                traceback_tail="".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:],
                steps=self.recorder.steps,
            )
        )

    def close(self) -> None:
        """Wait for the reports to arrive, within the reporter's deadline."""
        self._reporter.close()
