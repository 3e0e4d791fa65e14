"""Leases over a counter, and ranks of uneven speed on a virtual clock."""

import heapq
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.scheduling.lease import SPLIT, cumulate, draw_leases, static_lease
from evaluator.scheduling.speed import COUNT_SHIFT, UNITS_PER_TOKEN, SharedSpeed, SpeedModel

COSTS = st.lists(st.integers(min_value=1, max_value=4096), max_size=200).map(
    lambda costs: sorted(costs, reverse=True)
)
RANKS = st.integers(min_value=1, max_value=40)


class Counter:
    """As the store has it."""

    def __init__(self) -> None:
        self.value = 0
        self.num_draws = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def take(self, amount: int) -> int:
        self.num_draws += amount > 0
        return self.add(amount) - amount


class SimulatedRank:
    """Draws by the code under test, scores by a virtual clock."""

    def __init__(
        self,
        before: Sequence[int],
        speed: float,
        counter: Counter,
        shared: SharedSpeed | None,
        num_ranks: int,
    ) -> None:
        self._before, self._speed, self._shared = before, speed, shared
        self._even = 1 / num_ranks
        self.model = SpeedModel()
        self.leases = draw_leases(before, counter.take, self._share)

    def _share(self, position: int) -> float | None:
        if self._shared is None:
            return self._even
        part = self._shared.share(self.model.seconds_per_token(1))
        cost, rest = self._before[position + 1] - self._before[position], self._before[-1]
        return None if self._shared.leave(cost, rest - self._before[position]) else part

    def score(self, lease: range) -> float:
        """Seconds that it takes."""
        cost = self._before[lease.stop] - self._before[lease.start]
        self.model.learn(1, cost, cost / self._speed)
        return cost / self._speed


def simulate(costs: Sequence[int], speeds: Sequence[float], scheduling: str) -> float:
    """Seconds until the last rank ends, where rank r does `speeds[r]` cost a second."""
    before = cumulate(costs)
    if scheduling == "static":
        shares = [static_lease(before, len(speeds), rank) for rank in range(len(speeds))]
        return max(sum(costs[s.start : s.stop]) / v for s, v in zip(shares, speeds, strict=True))
    counter, sum_of_speeds = Counter(), Counter()
    ranks = [
        SimulatedRank(
            before,
            speed,
            counter,
            SharedSpeed(sum_of_speeds.add, len(speeds)) if scheduling == "predictive" else None,
            len(speeds),
        )
        for speed in speeds
    ]
    events = [(0.0, rank) for rank in range(len(speeds))]
    end_s, scored = 0.0, set[int]()
    while events:
        now_s, rank = heapq.heappop(events)
        end_s = max(end_s, now_s)
        lease = next(ranks[rank].leases, None)
        if lease is not None:
            scored.update(lease)
            heapq.heappush(events, (now_s + ranks[rank].score(lease), rank))
    assert len(scored) == len(costs)
    return end_s


@given(COSTS, RANKS)
def test_static_leases_cover_all_batches_once(costs: list[int], num_ranks: int) -> None:
    leases = [static_lease(cumulate(costs), num_ranks, rank) for rank in range(num_ranks)]
    assert [position for lease in leases for position in lease] == list(range(len(costs)))


@given(COSTS, RANKS)
def test_static_leases_are_even_up_to_one_batch(costs: list[int], num_ranks: int) -> None:
    for rank in range(num_ranks):
        lease = static_lease(cumulate(costs), num_ranks, rank)
        cost = sum(costs[lease.start : lease.stop])
        assert abs(cost - sum(costs) / num_ranks) <= max(costs, default=0)


@given(
    COSTS,
    RANKS,
    st.randoms(use_true_random=False),
    st.floats(min_value=1e-6, max_value=1.0),
)
def test_every_batch_goes_to_one_rank_whoever_draws_and_whatever_is_believed(
    costs: list[int], num_ranks: int, order: random.Random, share: float
) -> None:
    counter = Counter()

    def take_after_others(amount: int) -> int:
        # Another rank draws between a look and the draw.
        if amount and order.random() < 0.3:
            begin = counter.take(1)
            drawn.extend(range(begin, min(begin + 1, len(costs))))
        return counter.take(amount)

    drawn: list[int] = []
    before = cumulate(costs)
    ranks = [draw_leases(before, take_after_others, lambda _: share) for _ in range(num_ranks)]
    while ranks:
        rank = order.choice(ranks)
        lease = next(rank, None)
        if lease is None:
            ranks.remove(rank)
        else:
            assert len(lease) > 0
            drawn += lease
    assert sorted(drawn) == list(range(len(costs)))


def test_leases_shrink_and_are_few() -> None:
    counter = Counter()
    leases = list(draw_leases(cumulate([100] * 4096), counter.take, lambda _: 1 / 8))
    sizes = [len(lease) for lease in leases]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4096 // (8 * SPLIT)
    assert sizes[-1] == 1
    # Far fewer draws than batches.
    assert counter.num_draws < 4096 / 15


def test_nothing_to_do_gives_no_lease() -> None:
    assert list(draw_leases([0], Counter().take, lambda _: 1.0)) == []
    assert static_lease([0], 4, 1) == range(0)


def test_a_rank_that_is_known_to_be_slow_gets_small_leases() -> None:
    before = cumulate([10] * 1000)
    counter, speeds = Counter(), Counter()
    # Three ranks of 3 tokens a second have told so; the sum is 10 with the slow one.
    others = [SharedSpeed(speeds.add, 4) for _ in range(3)]
    assert [other.share(1 / 3) for other in others] == pytest.approx([1 / 4] * 3)
    slow = SharedSpeed(speeds.add, 4)
    lease = next(draw_leases(before, counter.take, lambda _: slow.share(1.0)))
    assert lease == range(1000 // 10 // SPLIT)


UNEVEN = {
    "even": [1.0] * 4,
    "one of 4 slow": [1.0, 1.0, 1.0, 1 / 3],
    "one of 2 slow": [1.0, 1 / 3],
    "one of 64 slow": [1.0] * 63 + [0.25],
    "one of 4 very slow": [1.0, 1.0, 1.0, 1 / 16],
}


@pytest.mark.parametrize("scheduling", ["dynamic", "predictive"])
@pytest.mark.parametrize("speeds", UNEVEN.values(), ids=UNEVEN.keys())
def test_uneven_ranks_end_within_5_percent_of_the_ideal(
    speeds: list[float], scheduling: str
) -> None:
    costs = [1024] * (400 * len(speeds))
    ideal_s = sum(costs) / sum(speeds)
    if (scheduling, min(speeds)) == ("dynamic", 1 / 16):
        # It can't know: the first lease alone takes 16 times as long as the others'.
        assert simulate(costs, speeds, scheduling) > 1.5 * ideal_s
        return
    assert simulate(costs, speeds, scheduling) <= 1.05 * ideal_s


def test_static_leases_wait_for_the_slow_rank() -> None:
    # A quarter of 1600 at a third of the speed, against 1600 at 10/3 in all.
    assert simulate([1] * 1600, [1.0, 1.0, 1.0, 1 / 3], "static") == pytest.approx(1200)
    assert simulate([1] * 1600, [1.0, 1.0, 1.0, 1 / 3], "dynamic") <= 1.05 * 480


@pytest.mark.parametrize("scheduling", ["dynamic", "predictive"])
def test_a_thousand_uneven_nodes_are_used_to_98_percent(scheduling: str) -> None:
    speeds = [1.0 + (node * 7919 % 100) / 200 for node in range(1024)]
    costs = [2048] * (200 * 1024)
    ideal_s = sum(costs) / sum(speeds)
    assert ideal_s / simulate(costs, speeds, scheduling) >= 0.98


def test_a_slow_rank_leaves_the_rest_to_those_who_are_done_earlier() -> None:
    speeds = Counter()
    fast, slow = SharedSpeed(speeds.add, 2), SharedSpeed(speeds.add, 2)
    assert not slow.leave(10, 10)  # it has told nothing
    slow.share(1.0)
    assert not slow.leave(10, 10)  # nobody else is known
    fast.share(0.25)
    slow.share(1.0)
    # A batch of 10 takes it 10 s. The other one, of 4 a second, needs 10 s for a rest of 30 and
    # the batch that it has.
    assert not slow.leave(10, 30)
    assert not fast.leave(10, 10)
    assert slow.leave(10, 29)
    assert fast.share(0.25) == pytest.approx(1 / 2)  # of two ranks, one of which is not known
    assert not fast.leave(10, 10)
    assert slow.share(1.0) == pytest.approx(1 / 5)  # counted again, for another round


def test_two_ranks_never_leave_to_each_other() -> None:
    speeds = Counter()
    first, second = SharedSpeed(speeds.add, 2), SharedSpeed(speeds.add, 2)
    third = SharedSpeed(speeds.add, 3)
    third.share(0.01)
    first.share(1.0)
    second.share(1.0)
    # Both have seen the third, which is fast, and then it is gone.
    speeds.add(-(1 << COUNT_SHIFT) - 100 * UNITS_PER_TOKEN)
    assert first.leave(10, 10)
    assert not second.leave(10, 10)
    assert speeds.value == (1 << COUNT_SHIFT) + UNITS_PER_TOKEN


@given(COSTS, st.lists(st.floats(min_value=0.01, max_value=1.0), min_size=1, max_size=12))
def test_every_batch_is_scored_though_ranks_leave(costs: list[int], speeds: list[float]) -> None:
    scored_s = simulate(costs, speeds, "predictive")
    assert scored_s >= sum(costs) / sum(speeds) * (1 - 1e-9)


def test_a_few_slow_ranks_cost_no_batch_of_theirs() -> None:
    speeds = [1.0] * 252 + [1 / 3] * 4
    costs = [1] * (100 * len(speeds))
    ideal_s = sum(costs) / sum(speeds)
    # Their batches take 3 % of the whole time.
    assert ideal_s / simulate(costs, speeds, "predictive") > 0.985


def test_unknown_speeds_count_as_the_mean_of_the_known() -> None:
    speeds = Counter()
    first, second, third = (SharedSpeed(speeds.add, 3) for _ in range(3))
    assert first.share(None) == 0
    assert first.share(0.5) == pytest.approx(1 / 3)  # 2 tokens a second, the others as well
    assert second.share(0.25) == pytest.approx(4 / 9)  # 4 of 2 + 4 + 3
    assert third.share(0.5) == pytest.approx(2 / 8)
    assert first.share(0.125) == pytest.approx(8 / 14)  # it has become faster


def test_a_length_without_a_figure_takes_the_nearest_one() -> None:
    model = SpeedModel()
    assert model.seconds_per_token(100) is None
    model.learn(num_inputs=512, num_tokens=1024, seconds=2.048)
    model.learn(num_inputs=20, num_tokens=100, seconds=1.0)
    assert model.seconds_per_token(300) == pytest.approx(0.002)
    assert model.seconds_per_token(2000) == pytest.approx(0.002)
    assert model.seconds_per_token(3) == pytest.approx(0.01)
    # A quarter of the way from 0.002 to 0.004.
    model.learn(num_inputs=511, num_tokens=1000, seconds=4.0)
    assert model.seconds_per_token(512) == pytest.approx(0.0025)
    assert [(s.num_inputs, round(s.seconds_per_token, 6)) for s in model.measured] == [
        (32, 0.01),
        (512, 0.0025),
    ]
    assert SpeedModel(model.measured).seconds_per_token(512) == pytest.approx(0.0025)
    assert SpeedModel(model.measured).measured == ()
