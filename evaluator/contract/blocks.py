"""How the windows of one document are put into blocks; both sides need the same rule."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_BLOCKS = 32
"""Few enough that a block is long against the dependence of neighbours, enough to tell a spread."""


def windows_per_block(num_windows: int) -> int:
    """Consecutive windows of a block: the least number that gives at most `MOST_BLOCKS` blocks.

    From 17 windows on there are 17 to 32 blocks; up to 32 windows each is a block of its own. The
    last block may be shorter.

    Source: non-overlapping batch means, J. M. Flegal and G. L. Jones, Batch means and spectral
    variance estimators in Markov chain Monte Carlo, Annals of Statistics 38 (2010) 1034-1070; for
    blocks of dependent observations H. R. Künsch, Annals of Statistics 17 (1989) 1217-1241.
    """
    return max(1, -(-num_windows // MOST_BLOCKS))


def blocks_of(windows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Blocks of windows that stand in text order."""
    length = windows_per_block(len(windows))
    for begin in range(0, len(windows), length):
        yield windows[begin : begin + length]
