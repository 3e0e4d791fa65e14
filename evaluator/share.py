"""One rank's share of the batches: takes leases until none is left, scores, notes in the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from evaluator.contexts import sum_contexts
from evaluator.contract.reports import LedgerEntry
from evaluator.errors import OutOfMemory, is_out_of_memory
from evaluator.faults import FaultyScorer
from evaluator.lease import draw_leases, lease_table
from evaluator.ledger import Ledger
from evaluator.narrator import Narrator
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
    scorer: Scorer | FaultyScorer
    clock: RankClock
    narrator: Narrator
    tokens: KeptTokens | None = None
    """Where the nll of every token is kept, if that was asked for."""

    def work(
        self, plan: Plan, ledger: Ledger, indices: Sequence[int], num_ranks: int, round_: int
    ) -> None:
        """Score batches into the ledger until no lease is left.

        Args:
            plan: What there is to score.
            ledger: Takes the entries.
            indices: Batches that are to be scored, the same on every rank that takes part.
            num_ranks: Ranks that take part.
            round_: How often the audit has sent batches back.

        Raises:
            LossNotFinite: A window's loss is no number.
            OutOfMemory: A batch does not fit.
            Superseded: The server no longer wants this attempt.
        """
        batches = [plan.batches[index] for index in indices]
        table = lease_table([batch.num_input_tokens for batch in batches], num_ranks)
        draw = partial(self.peers.next_ticket, round_)
        for lease in draw_leases(table, lambda: self._exchange(draw)):
            for batch in batches[lease.start : lease.stop]:
                with self.clock.measure("compute"):
                    entry = self._score(batch, round_)
                ledger.add(entry)
                self.clock.count(batch)
                self._exchange(self.peers.note_batch)
                self.narrator.tick()

    def forget(self, indices: Sequence[int]) -> None:
        """Drop the tokens of batches that are scored again."""
        if self.tokens is not None:
            for index in indices:
                self.tokens.pop(index, None)

    def _exchange(self, operation: Callable[[], T]) -> T:
        with self.clock.measure("communicate"):
            return operation()

    def _score(self, batch: Batch, round_: int) -> LedgerEntry:
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
        if self.tokens is not None:
            self.tokens[batch.index] = [nll_S.astype(np.float32) for nll_S in nll_by_window]
        sums = sum_windows(nll_by_window)
        return LedgerEntry(
            batch=batch.index,
            nll_nats=sums.nll_nats,
            nll_squares=sums.nll_squares,
            num_scored=batch.num_scored,
            round=round_,
            nll_by_context=sum_contexts(batch, nll_by_window),
        )
