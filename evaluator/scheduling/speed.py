"""How fast ranks score: what one rank expects of itself, and its part of the speed of all.

Pure; must not import torch.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from evaluator.contract.speeds import LengthSpeed

LEARNING_RATE = 0.25
"""Weight of the newest batch: a rank that slows down is known after a few batches."""
COUNT_SHIFT = 44
"""Bits of the shared integer that hold the sum of speeds; the count of ranks is above them."""
UNITS_PER_TOKEN = 1000
"""Of the sum: speeds are shared in thousandths of a token a second."""


def length_class(num_inputs: int) -> int:
    """The power of two at or above a window's inputs: lengths that are measured together."""
    return 1 << (num_inputs - 1).bit_length()


class SpeedModel:
    """Seconds per input token of one rank, by the length of windows."""

    def __init__(self, start: Iterable[LengthSpeed] = ()) -> None:
        self._seconds_per_token = {s.num_inputs: s.seconds_per_token for s in start}
        self._measured: set[int] = set()

    def learn(self, num_inputs: int, num_tokens: int, seconds: float) -> None:
        """Take in a measured batch of windows of `num_inputs`, `num_tokens` in all."""
        length = length_class(num_inputs)
        found = seconds / num_tokens
        before = self._seconds_per_token.get(length, found)
        self._seconds_per_token[length] = before + LEARNING_RATE * (found - before)
        self._measured.add(length)

    def seconds_per_token(self, num_inputs: int) -> float | None:
        """Expected for windows of this length, from the nearest one known; None without any."""
        if not self._seconds_per_token:
            return None
        wanted = length_class(num_inputs).bit_length()
        nearest = min(self._seconds_per_token, key=lambda n: (abs(n.bit_length() - wanted), n))
        return self._seconds_per_token[nearest]

    @property
    def measured(self) -> tuple[LengthSpeed, ...]:
        """What this rank has measured, by length."""
        return tuple(
            LengthSpeed(num_inputs=length, seconds_per_token=self._seconds_per_token[length])
            for length in sorted(self._measured)
            if self._seconds_per_token[length] > 0
        )


class Known(NamedTuple):
    """What the shared integer says."""

    num_ranks: int
    """Whose speed is in the sum."""
    total: int

    @classmethod
    def of(cls, value: int) -> "Known":
        """Taken apart."""
        return cls(value >> COUNT_SHIFT, value & ((1 << COUNT_SHIFT) - 1))


class SharedSpeed:
    """The speeds of all ranks in one shared integer: how many are known, and their sum.

    One atomic operation tells the others of a change and answers the whole, so no rank ever waits
    for another, and nothing grows with the number of ranks.
    """

    def __init__(self, add: Callable[[int], int], num_ranks: int) -> None:
        """Join.

        Args:
            add: Adds to the shared integer, atomically; answers its value afterwards.
            num_ranks: That share the work.
        """
        self._add = add
        self.num_ranks = num_ranks
        self._told: int | None = None
        """This rank's part of the sum; None while it is not counted."""
        self._known = Known(0, 0)

    def share(self, seconds_per_token: float | None) -> float:
        """Tell this rank's speed; its part of the speed of all, 0 to 1.

        Other ranks whose speed is not known count as the mean of the known. This rank's own part is
        0 as long as its speed is None: what it is trusted with is one batch, to be measured.
        """
        if not seconds_per_token:
            return 0.0
        mine = max(1, round(UNITS_PER_TOKEN / seconds_per_token))
        change = mine - (self._told or 0)
        if self._told is None:
            change += 1 << COUNT_SHIFT
        self._told = mine
        known = self._known = Known.of(self._add(change))
        return min(1.0, mine * known.num_ranks / (known.total * self.num_ranks))

    def leave(self, batch_tokens: int, rest_tokens: int) -> bool:
        """Leave the rest to the others, where they are done before this rank scores one batch.

        Never where nobody else would stay. To be asked after `share`.

        Args:
            batch_tokens: Of the next batch.
            rest_tokens: Of all batches that nobody has taken.

        Returns:
            True where this rank has left, and must not draw again without `share`.
        """
        mine, known = self._told, self._known
        if mine is None or known.num_ranks < 2:
            return False
        others = known.total - mine
        # They end with a batch each, in the middle of which this rank could not help.
        others_s = (rest_tokens + batch_tokens * (known.num_ranks - 1)) / others
        if batch_tokens / mine <= others_s:
            return False
        counted = (1 << COUNT_SHIFT) + mine
        if Known.of(self._add(-counted)).num_ranks == 0:
            # All others have left at the same time.
            self._add(counted)
            return False
        self._told = None
        return True
