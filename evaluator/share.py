"""One rank's share of the batches: takes leases until none is left, scores, notes in the ledger."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from evaluator.contract.reports import LedgerEntry
from evaluator.errors import OutOfMemory, is_out_of_memory
from evaluator.lease import draw_leases, lease_table
from evaluator.ledger import Ledger
from evaluator.narrator import Narrator
from evaluator.parallel.group import ScoringGroup
from evaluator.plan import Batch, Plan
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo
from evaluator.records import KeptTokens
from evaluator.score import Scorer, sum_windows
from evaluator.timing import RankClock

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Share:
    """Scores what this rank gets of a plan."""

    rank: RankInfo
    peers: Peers
    group: ScoringGroup
    scorer: Scorer
    clock: RankClock
    narrator: Narrator
    tokens: KeptTokens | None = None
    """Where the nll of every token is kept, if that was asked for."""

    def work(self, plan: Plan, ledger: Ledger) -> None:
        """Score batches into the ledger until no lease is left.

        Raises:
            LossNotFinite: A window's loss is no number.
            OutOfMemory: A batch does not fit.
            Superseded: The server no longer wants this attempt.
        """
        batches = [plan.batches[index] for index in ledger.unfinished]
        costs = [batch.num_input_tokens for batch in batches]
        table = lease_table(costs, self.group.used.dp_replicate)
        draw = self.group.tickets(self.peers)
        for lease in draw_leases(table, lambda: self._exchange(draw)):
            for batch in batches[lease.start : lease.stop]:
                with self.clock.measure("compute"):
                    entry = self._score(batch)
                if self.group.leads:
                    ledger.add(entry)
                    self.clock.count(batch)
                    self._exchange(self.peers.note_batch)
                self.narrator.tick()

    def _exchange(self, operation: Callable[[], T]) -> T:
        with self.clock.measure("communicate"):
            return operation()

    def _score(self, batch: Batch) -> LedgerEntry:
        try:
            nll_by_window = self.scorer.score(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            msg = (
                f"rank {self.rank.rank} ran out of memory in batch {batch.index} of "
                f"{len(batch.windows)} windows of {batch.windows[0].num_inputs} tokens; "
                f"ask for a smaller scoring.batch_tokens or scoring.window ({error})"
            )
            raise OutOfMemory(msg) from error
        if self.tokens is not None and self.group.leads:
            self.tokens[batch.index] = [nll_S.astype(np.float32) for nll_S in nll_by_window]
        sums = sum_windows(nll_by_window)
        return LedgerEntry(
            batch=batch.index,
            nll_nats=sums.nll_nats,
            nll_squares=sums.nll_squares,
            num_scored=batch.num_scored,
        )
