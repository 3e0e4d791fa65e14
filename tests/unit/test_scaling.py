"""The simulation of tests/bench/scaling against cases worked out by hand."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from xml.etree import ElementTree

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.contract.launch import Scheduling
from tests.bench.scaling.job import Costs, Job, Unevenness
from tests.bench.scaling.network import Link, VirtualCircle, VirtualStore
from tests.bench.scaling.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, Series
from tests.bench.scaling.simulation import simulate
from tests.bench.scaling.virtual import VirtualTime

FREE = Link(round_trip_s=0.0, bytes_per_s=1e30)
FREE_COSTS = Costs(
    seconds_per_token=1.0,
    inside=FREE,
    between=FREE,
    store_service_s=0.0,
    loads_bytes_per_s=1e30,
    result_s_per_batch=0.0,
    restart_s=10.0,
)
"""A batch of `JOB` takes a rank of usual speed one second, and nothing else takes any time."""
JOB = Job(
    num_nodes=2,
    ranks_per_node=1,
    num_batches=5,
    scheduling="dynamic",
    windows_per_batch=1,
    window=1,
)


@pytest.mark.parametrize(
    ("scheduling", "wall_s"),
    [
        # The first three batches to the fast rank, two to the slow one.
        ("static", 5.0),
        # Fast: 0 to 1, 1 to 2, 2 to 3. Slow: 0 to 2.5, and then the last one.
        ("dynamic", 5.0),
        # At 2.5 the slow one leaves the last batch to the fast one, which begins it at 3.
        ("predictive", 4.0),
    ],
)
def test_two_nodes_end_when_they_should(scheduling: Scheduling, wall_s: float) -> None:
    outcome = simulate(replace(JOB, scheduling=scheduling), FREE_COSTS, (1.0, 2.5))
    assert outcome.wall_s == wall_s
    assert outcome.ideal_s == pytest.approx(5 / 1.4)
    first, second = outcome.timings
    assert first.num_batches + second.num_batches == 5
    assert (first.compute_s, second.compute_s) == (first.num_batches, 2.5 * second.num_batches)
    assert first.wait_s == wall_s - first.compute_s
    assert second.wait_s == wall_s - second.compute_s


def at_times(work: list[Callable[[], None]], time: VirtualTime) -> None:
    for each in work:
        time.start(each)
    assert time.run()


def test_requests_queue_at_the_store() -> None:
    time = VirtualTime()
    store = VirtualStore(time, Link(round_trip_s=2.0, bytes_per_s=1.0), service_s=1.0)
    answers: list[tuple[float, int]] = []

    def ask(begin_s: float) -> None:
        time.sleep_until(begin_s)
        value = store.add("taken", 1)
        answers.append((time.now_s, value))

    at_times([lambda: ask(0.0), lambda: ask(0.0), lambda: ask(0.5), lambda: ask(10.0)], time)
    # They arrive a second later, and are served one by one: at 1, 2, 3; the last one at once.
    assert answers == [(3.0, 1), (4.0, 2), (5.0, 3), (13.0, 4)]
    assert (store.num_requests, store.busy_s, store.longest_queue_s) == (4, 4.0, 1.5)


def test_who_waits_for_a_key_is_told_or_gives_up() -> None:
    time = VirtualTime()
    store = VirtualStore(time, Link(round_trip_s=2.0, bytes_per_s=1.0), service_s=1.0)
    ends: list[tuple[str, float]] = []

    def wait(seconds: float) -> None:
        try:
            store.wait(["done"], timedelta(seconds=seconds))
            ends.append(("told", time.now_s))
        except dist.DistStoreError:
            ends.append(("gave up", time.now_s))

    def tell() -> None:
        time.sleep(10.0)
        store.set("done", "1")
        ends.append(("set", time.now_s))

    at_times([lambda: wait(4.0), lambda: wait(60.0), tell], time)
    # Taken up at 1; set at 11, served until 12; the one who waits is told until 13.
    assert ends == [("gave up", 5.0), ("told", 14.0), ("set", 14.0)]


def test_a_gather_takes_what_its_links_take() -> None:
    time = VirtualTime()
    circle = VirtualCircle((0, 1, 2), None, time, Link(2.0, 10.0), loads_bytes_per_s=5.0)
    found: dict[int, tuple[float, list[bytes] | None]] = {}

    def gather(rank: int, begin_s: float, payload: bytes) -> None:
        time.sleep_until(begin_s)
        gathered = circle.gather(rank, payload)
        found[rank] = time.now_s, gathered

    at_times(
        [
            lambda: gather(0, 0.0, b""),
            lambda: gather(1, 1.0, b"12345"),
            lambda: gather(2, 4.0, b"1234567890"),
        ],
        time,
    )
    # All are there at 4; sizes go round in 3 ways of a second; then 10 bytes of each, padded, come
    # in a second each; 15 bytes are read in 3 s.
    assert found == {
        0: (12.0, [b"", b"12345", b"1234567890"]),
        1: (8.0, None),
        2: (9.0, None),
    }


def test_a_death_costs_the_restart_and_what_was_not_reported() -> None:
    job = replace(JOB, num_batches=4)
    costs = replace(FREE_COSTS, seconds_per_token=2.0)
    outcome = simulate(job, costs, (1.0, 1.0), deaths=[3.0, 12.0])
    # At 2 both have a batch and report it; at 3 each is half way through another. The next attempt
    # begins at 13 and does these again; the second death was before it.
    assert outcome.wall_s == 15.0
    assert outcome.num_attempts == 2
    assert outcome.num_begun_again == 2
    assert outcome.efficiency == pytest.approx(4 / 15)


def test_bytes_between_nodes_are_one_message_a_node() -> None:
    job = replace(JOB, num_nodes=3, ranks_per_node=4, num_batches=60)
    traffic = simulate(job, FREE_COSTS, (1.0,) * 12).traffic
    # Total, entries, and timings: of three other ranks inside each node, of two other nodes. The
    # last account does not count itself.
    assert traffic.num_inside == 2 * 9
    assert traffic.num_between == 2 * 2


SLOWNESS = st.floats(min_value=0.2, max_value=8.0)


@settings(max_examples=20, deadline=None)
@given(
    slowness=st.lists(SLOWNESS, min_size=1, max_size=6),
    ranks_per_node=st.integers(1, 3),
    num_batches=st.integers(1, 60),
    scheduling=st.sampled_from(["static", "dynamic", "predictive"]),
    times=st.lists(st.floats(min_value=0.0, max_value=60.0), max_size=3).map(sorted),
)
def test_nothing_beats_the_ideal_and_every_batch_is_scored_once(
    slowness: list[float],
    ranks_per_node: int,
    num_batches: int,
    scheduling: Scheduling,
    times: list[float],
) -> None:
    job = Job(
        num_nodes=len(slowness),
        ranks_per_node=ranks_per_node,
        num_batches=num_batches,
        scheduling=scheduling,
    )
    costs = Costs(
        seconds_per_token=1e-3,
        spread=(0.8, 1.0, 1.4),
        inside=Link(1e-4, 1e9),
        between=Link(1e-3, 1e8),
        store_service_s=1e-4,
        loads_bytes_per_s=1e7,
        result_s_per_batch=1e-4,
        restart_s=3.0,
    )
    by_rank = tuple(each for each in slowness for _ in range(ranks_per_node))
    outcome = simulate(job, costs, by_rank, times)
    assert outcome.efficiency <= 1
    # `join_ledgers` has raised if a batch was missing, or there twice.
    in_last = sum(timing.num_batches for timing in outcome.timings)
    assert in_last == num_batches if outcome.num_attempts == 1 else in_last <= num_batches


def test_a_simulation_comes_out_the_same_each_time() -> None:
    job = replace(JOB, num_nodes=8, ranks_per_node=2, num_batches=200, scheduling="predictive")
    costs = replace(FREE_COSTS, spread=(0.8, 1.3), store_service_s=1e-3, between=Link(1e-3, 1e6))
    slowness = Unevenness(sigma=0.2, slow_share=0.01).slowness(job)
    assert simulate(job, costs, slowness, [5.0]) == simulate(replace(job), costs, slowness, [5.0])


def test_nodes_differ_as_asked() -> None:
    job = replace(JOB, num_nodes=200, ranks_per_node=2)
    assert Unevenness().slowness(job) == (1.0,) * 400
    slow = Unevenness(slow_share=0.01).slowness(job)
    assert sorted(slow) == [1.0] * 396 + [3.0] * 4
    assert slow[::2] == slow[1::2]


def test_a_plot_places_its_points() -> None:
    line = Series("up", [(1.0, 1.0), (2.0, 10.0), (4.0, 100.0)])
    plot = Plot(title="a < b", x_label="x", y_label="y", series=[line], bar=10.0, bar_name="bar")
    picture = ElementTree.fromstring(plot.svg())  # noqa: S314 - our own
    circles = picture.findall("{http://www.w3.org/2000/svg}circle")
    places = [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in circles]
    # Corners and middle of the axes: both are logarithmic.
    assert places == [
        (LEFT, HEIGHT - BOTTOM),
        ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2),
        (WIDTH - RIGHT, TOP),
    ]
    assert plot.y(10.0) == pytest.approx((TOP + HEIGHT - BOTTOM) / 2)
