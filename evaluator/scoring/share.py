"""One rank's share of the batches: takes leases until none is left, scores, notes in the ledger.

All ranks of a scoring group score the same batches; the first one notes, and counts, for all.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from evaluator.contract.reports import LedgerEntry
from evaluator.contract.states import FailureReason
from evaluator.errors import Communication, OutOfMemory, fault_of, is_out_of_memory
from evaluator.exchange.packing import KeptTokens
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.model.cost import Counter
from evaluator.parallel.group import SINGLE, ScoringGroup
from evaluator.planning.plan import Batch
from evaluator.reporting.narrator import Narrator
from evaluator.reporting.timing import RankClock
from evaluator.scheduling.schedule import Schedule, Work
from evaluator.scoring.contexts import sum_contexts
from evaluator.scoring.ledger import Ledger
from evaluator.scoring.micro_batch import MicroBatches
from evaluator.scoring.score import sum_windows

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Share:
    """Scores what this rank gets of a plan."""

    rank: RankInfo
    peers: Peers
    schedule: Schedule
    micro_batches: MicroBatches
    clock: RankClock
    narrator: Narrator
    counter: Counter = field(default_factory=Counter)
    """Of the scorer; what it counts here is for the figure."""
    group: ScoringGroup = SINGLE
    tokens: KeptTokens | None = None
    """Where the nll of every token is kept, if that was asked for."""

    def work(self, work: Work, ledger: Ledger, groups: Collection[int], round_: int) -> None:
        """Score batches into the ledger until no lease is left.

        Args:
            work: What there is to score, the same on every rank that takes part.
            ledger: Takes the entries.
            groups: That take part, by number; this rank's is among them.
            round_: How often the audit has sent batches back.

        Raises:
            Communication: Another rank of the scoring group is gone.
            LossNotFinite: A window's loss is no number.
            OutOfMemory: A window does not fit.
            Superseded: The server no longer wants this attempt.
        """
        take = partial(self.peers.take, round_)
        leases = self.group.told(self.schedule.leases(work, groups, take))
        while lease := self._exchange(partial(next, leases, None)):
            if self.group.leads:
                self.clock.count_lease()
            for batch in work.batches[lease.start : lease.stop]:
                self._exchange(partial(self.peers.recorder.note, f"score batch {batch.index}"))
                entry = self._timed(batch, round_)
                if self.group.leads:
                    ledger.add(entry)
                self.narrator.tick()

    def forget(self, indices: Sequence[int]) -> None:
        """Drop the tokens of batches that are scored again."""
        if self.tokens is not None:
            for index in indices:
                self.tokens.pop(index, None)

    def _exchange(self, operation: Callable[[], T]) -> T:
        with self.clock.measure("communicate"):
            return operation()

    def _timed(self, batch: Batch, round_: int) -> LedgerEntry:
        """Score a batch, and learn from it how fast this rank is."""
        before_s = self.clock.seconds("compute")
        with self.clock.measure("compute"), self.counter.keeping():
            entry = self._score(batch, round_)
        if not self.group.leads:
            return entry
        seconds = self.clock.seconds("compute") - before_s
        self.clock.count(batch, seconds, self.schedule.expected_s(batch))
        self.schedule.speed.learn(batch.num_inputs, batch.num_input_tokens, seconds)
        return entry

    def _score(self, batch: Batch, round_: int) -> LedgerEntry:
        try:
            nll_by_window = self.micro_batches.score(batch)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise self._out_of_memory(batch, error) from error
            if fault_of(error).reason is FailureReason.COMMUNICATION:
                raise self._lost(batch, error) from error
            raise
        if self.tokens is not None and self.group.leads:
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

    def _out_of_memory(self, batch: Batch, error: Exception) -> OutOfMemory:
        budget = self.micro_batches.budget
        num_windows = 1 if budget.can_shrink else budget.num_windows(batch)
        if num_windows == 1:
            size = f"a single window of {batch.num_inputs} tokens"
            advice = "ask for a smaller scoring.window or for fewer ranks on a node"
        else:
            size = f"{num_windows} windows of {batch.num_inputs} tokens"
            advice = (
                "ranks that share a model can't split a batch on their way: make another attempt, "
                "which takes half as many at a time, or ask for a smaller scoring.batch_tokens"
            )
        return OutOfMemory(
            f"rank {self.rank.rank} ran out of memory in batch {batch.index} with {size}; "
            f"{advice} ({error})"
        )

    def _lost(self, batch: Batch, error: Exception) -> Communication:
        """Only ranks of one group talk while they score."""
        return Communication(
            f"rank {self.rank.rank} lost its scoring group in batch {batch.index}: {error}; "
            f"{self.peers.last_steps(self.group.others)}"
        )
