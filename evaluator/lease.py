"""Which rank scores which batch: guided self-scheduling over one shared counter.

Every rank derives the same table of leases; a rank draws a ticket from an atomic counter and owns
the lease of that number. Leases are large first and small at the end, so that few tickets are drawn
and no rank is left alone with much work. Knows no store: the counter is given.
Source: Polychronopoulos and Kuck, "Guided Self-Scheduling", IEEE Trans. Computers C-36, 1987.
"""

from collections.abc import Callable, Iterator, Sequence

SPLIT = 4
"""A lease takes 1/(SPLIT * ranks) of the work that is left: a rank 4 times slower than the others
still ends its first lease in time."""


def lease_table(costs: Sequence[int], num_ranks: int) -> list[range]:
    """Cut batches into leases of decreasing cost.

    Args:
        costs: Cost of each batch, in the order in which they are to be handed out.
        num_ranks: Ranks that share the work, at least 1.

    Returns:
        Ranges of positions in `costs`, none empty, which cover it without gap or overlap.
    """
    left = sum(costs)
    leases: list[range] = []
    begin = 0
    while begin < len(costs):
        budget = left / (SPLIT * num_ranks)
        taken = costs[begin]
        end = begin + 1
        while end < len(costs) and taken + costs[end] <= budget:
            taken += costs[end]
            end += 1
        leases.append(range(begin, end))
        left -= taken
        begin = end
    return leases


def draw_leases(table: Sequence[range], next_ticket: Callable[[], int]) -> Iterator[range]:
    """Leases of this rank, until none is left.

    Args:
        table: The same on every rank.
        next_ticket: Atomic over all ranks; answers 0, 1, 2, ...
    """
    while (ticket := next_ticket()) < len(table):
        yield table[ticket]
