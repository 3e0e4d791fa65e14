"""How fast ranks score: what one rank expects of itself, and its part of the speed of all.

Pure; must not import torch.
"""

from collections.abc import Callable, Iterable

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
        self._num_ranks = num_ranks
        self._told: int | None = None

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
        value = self._add(change)
        num_known, total = value >> COUNT_SHIFT, value & ((1 << COUNT_SHIFT) - 1)
        return min(1.0, mine * num_known / (total * self._num_ranks))
