"""Scores a batch in as many forwards as memory needs.

A micro-batch is some windows of a batch that go through the model together. The plan and the ledger
know batches only; windows are never cut, and their sums are float64, so on a CPU, where windows go
through the body one by one anyway, no bit depends on it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from evaluator.errors import is_out_of_memory
from evaluator.planning.plan import Batch
from evaluator.scoring.score import TokenNll

FIRST_PATIENCE = 8
"""Micro-batches that must have fitted before a larger one is tried."""


class ScoresBatches(Protocol):
    """What scores a batch, or a part of one."""

    def score(self, batch: Batch) -> list[TokenNll]:
        """The nll of the scored tokens of each window."""


class ElasticBudget:
    """Input tokens of a micro-batch: whole batches until one does not fit.

    Halved when memory runs out. Doubled again after a while, since others may have given memory
    back, and kept so only where it fits and is faster. Never varied for speed alone before that:
    on a GPU the company of a window may change its last bits.
    """

    can_shrink = True

    def __init__(self) -> None:
        self.num_out_of_memory = 0
        """Forwards that were tried again in smaller parts."""
        self._limit: int | None = None
        self._patience = FIRST_PATIENCE
        self._rate_before: float | None = None
        """Tokens a second with half of the limit, where the limit has just been doubled."""
        self._settled = False
        self._start(None)

    def _start(self, limit: int | None) -> None:
        self._limit = limit
        self._num_fitted, self._num_tokens, self._seconds = 0, 0, 0.0

    def num_windows(self, batch: Batch) -> int:
        """Most windows of this batch to score together, at least 1."""
        if self._limit is None:
            return len(batch.windows)
        return max(1, self._limit // batch.num_inputs)

    def overflowed(self, part: Batch) -> None:
        """Memory ran out with this micro-batch."""
        self.num_out_of_memory += 1
        if self._rate_before is not None:
            self._patience *= 2
            self._rate_before = None
        self._start(part.num_input_tokens // 2)

    def fitted(self, part: Batch, seconds: float) -> None:
        """This micro-batch went through."""
        if self._limit is None or self._settled or part.num_input_tokens <= self._limit // 2:
            return
        self._num_fitted += 1
        self._num_tokens += part.num_input_tokens
        self._seconds += seconds
        if self._num_fitted < self._patience:
            return
        rate = self._num_tokens / max(self._seconds, 1e-9)
        if self._rate_before is not None and rate <= self._rate_before:
            self._settled = True
            self._start(self._limit // 2)
        else:
            self._rate_before = rate
            self._start(2 * self._limit)


class FixedBudget:
    """Parts that are small from the start, for ranks that score together.

    One that made its own smaller would leave the others inside a forward. So where memory runs out
    the attempt ends, and all ranks of the next one take half.
    """

    can_shrink = False
    num_out_of_memory = 0

    def __init__(self, num_halvings: int) -> None:
        self._num_halvings = num_halvings

    def num_windows(self, batch: Batch) -> int:
        """Most windows of this batch to score together, at least 1."""
        return max(1, -(-len(batch.windows) >> self._num_halvings))

    def overflowed(self, part: Batch) -> None:
        """Nothing is learnt from it here."""

    def fitted(self, part: Batch, seconds: float) -> None:
        """Nothing is learnt from it here."""


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """Scores batches within a budget."""

    scorer: ScoresBatches
    budget: ElasticBudget | FixedBudget
    free_memory: Callable[[], None]
    """Gives back what the device's allocator holds, after it ran out."""
    monotonic: Callable[[], float] = time.monotonic

    def score(self, batch: Batch) -> list[TokenNll]:
        """As the scorer does.

        Raises:
            RuntimeError: Memory ran out and no split was left, or what else the scorer raises.
            MemoryError: The same.
        """
        found: list[TokenNll] = []
        while len(found) < len(batch.windows):
            begin = len(found)
            part = Batch(batch.index, batch.windows[begin : begin + self.budget.num_windows(batch)])
            found += self._try(part)
        return found

    def _try(self, part: Batch) -> list[TokenNll]:
        """Scores of these windows, or none where they do not fit together."""
        begin = self.monotonic()
        try:
            scores = self.scorer.score(part)
        except (RuntimeError, MemoryError) as error:
            if not self.budget.can_shrink or len(part.windows) == 1 or not is_out_of_memory(error):
                raise
        else:
            self.budget.fitted(part, self.monotonic() - begin)
            return scores
        # Out of the handler, so that the error no longer holds the tensors of its frames.
        self.budget.overflowed(part)
        self.free_memory()
        return []
