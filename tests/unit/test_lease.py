import heapq
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.lease import draw_leases, lease_table

COSTS = st.lists(st.integers(min_value=1, max_value=4096), max_size=200).map(
    lambda costs: sorted(costs, reverse=True)
)
RANKS = st.integers(min_value=1, max_value=40)


def simulate(costs: Sequence[int], speeds: Sequence[float]) -> float:
    """Seconds until the last rank ends, where rank r does `speeds[r]` cost a second."""
    table = lease_table(costs, len(speeds))
    counter = itertools.count()
    ranks = [draw_leases(table, lambda: next(counter)) for _ in speeds]
    events = [(0.0, rank) for rank in range(len(speeds))]
    end_s = 0.0
    while events:
        now_s, rank = heapq.heappop(events)
        lease = next(ranks[rank], None)
        end_s = max(end_s, now_s)
        if lease is not None:
            cost = sum(costs[lease.start : lease.stop])
            heapq.heappush(events, (now_s + cost / speeds[rank], rank))
    return end_s


@given(COSTS, RANKS)
def test_leases_cover_all_batches_once(costs: list[int], num_ranks: int) -> None:
    table = lease_table(costs, num_ranks)
    assert [position for lease in table for position in lease] == list(range(len(costs)))
    assert all(len(lease) > 0 for lease in table)


@given(COSTS, RANKS, st.randoms(use_true_random=False))
def test_every_batch_goes_to_one_rank_whoever_draws(
    costs: list[int], num_ranks: int, order: random.Random
) -> None:
    table = lease_table(costs, num_ranks)
    counter = itertools.count()
    ranks = [draw_leases(table, lambda: next(counter)) for _ in range(num_ranks)]
    drawn: list[int] = []
    while ranks:
        rank = order.choice(ranks)
        lease = next(rank, None)
        if lease is None:
            ranks.remove(rank)
        else:
            drawn += lease
    assert sorted(drawn) == list(range(len(costs)))


def test_leases_shrink_and_are_few() -> None:
    table = lease_table([100] * 4096, 8)
    sizes = [len(lease) for lease in table]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4096 // 32
    assert sizes[-1] == 1
    # Far fewer tickets than batches.
    assert len(table) < 4096 / 15


def test_nothing_to_do_gives_no_lease() -> None:
    assert lease_table([], 4) == []
    assert list(draw_leases([], lambda: 0)) == []


@pytest.mark.parametrize(
    "speeds",
    [[1.0] * 4, [1.0, 1.0, 1.0, 1 / 3], [1.0, 1 / 3], [1.0] * 63 + [0.25]],
    ids=["even", "one of 4 slow", "one of 2 slow", "one of 64 slow"],
)
def test_uneven_ranks_end_within_5_percent_of_the_ideal(speeds: list[float]) -> None:
    costs = [1024] * (200 * len(speeds))
    ideal_s = sum(costs) / sum(speeds)
    assert simulate(costs, speeds) <= 1.05 * ideal_s


def test_a_thousand_uneven_nodes_are_used_to_98_percent() -> None:
    speeds = [1.0 + (node * 7919 % 100) / 200 for node in range(1024)]
    costs = [2048] * (300 * 1024)
    ideal_s = sum(costs) / sum(speeds)
    assert ideal_s / simulate(costs, speeds) >= 0.98
