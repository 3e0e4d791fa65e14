"""All simulated jobs of docs/scaling.md, spread over this machine's cores."""

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from evaluator.contract.launch import Scheduling
from tests.bench.scaling.costs import Measured
from tests.bench.scaling.job import Costs, Job, Unevenness
from tests.bench.scaling.network import Link
from tests.bench.scaling.simulation import Outcome, simulate

RANKS_PER_NODE = 2
BATCHES_PER_NODE = 200
WINDOW = 2048
LARGEST = 1024
ALIKE = Unevenness()
UNEVEN = Unevenness(sigma=0.1, slow_share=0.01, slow_factor=3)
INSIDE = Link(round_trip_s=20e-6, bytes_per_s=1e9)
BETWEEN = Link(round_trip_s=100e-6, bytes_per_s=1.25e9)
"""10 Gbit/s."""
NODE_LIFE_S = 54 * 86400 * (16384 / 8) / 419
"""Mean time between failures of a node of 8 GPUs.

Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.4: 419 unexpected
interruptions in 54 days on 16 384 GPUs, 8 to a server.
"""
FAST_BATCHES_S = (1.0, 0.1, 0.03, 0.01)
"""Times of a batch, down to where the limits show."""


def costs_of(measured: Measured, batch_s: float | None = None) -> Costs:
    """What was measured, and the rest as it is stated here.

    Args:
        measured: On this machine.
        batch_s: Mean time of a batch, where it is not the measured one.
    """
    per_token = measured.seconds_per_token if batch_s is None else batch_s / WINDOW
    return Costs(
        seconds_per_token=per_token,
        spread=measured.spread,
        inside=INSIDE,
        between=BETWEEN,
        store_service_s=measured.store_service_s,
        loads_bytes_per_s=measured.loads_bytes_per_s,
        result_s_per_batch=measured.result_s_per_batch,
        restart_s=measured.turnaround_s + measured.start_s,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job to simulate."""

    name: str
    num_nodes: int
    scheduling: Scheduling
    unevenness: Unevenness
    batch_s: float | None = None
    has_death: bool = False
    """One node dies, at a random time of the ideal duration."""

    def run(self, measured: Measured) -> Outcome:
        """Simulate it."""
        costs = costs_of(measured, self.batch_s)
        job = Job(
            num_nodes=self.num_nodes,
            ranks_per_node=RANKS_PER_NODE,
            num_batches=BATCHES_PER_NODE * self.num_nodes,
            scheduling=self.scheduling,
            windows_per_batch=1,
            window=WINDOW,
            seed=self.num_nodes,
        )
        slowness = self.unevenness.slowness(job)
        ideal_s = job.ideal_s(costs, slowness)
        deaths = [random.Random(job.seed).uniform(0, ideal_s)] if self.has_death else []
        return simulate(job, costs, slowness, deaths)


def cases(largest: int) -> Iterator[Case]:
    """The largest first, so that no core ends with one of them."""
    sizes = [1 << n for n in range(largest.bit_length())][::-1]
    for batch_s in FAST_BATCHES_S:
        yield Case(
            name="limits",
            num_nodes=largest,
            scheduling="predictive",
            unevenness=UNEVEN,
            batch_s=batch_s,
        )
    for size in sizes:
        yield from _of_size(size, is_even_power=size.bit_length() % 2 == 1)


def _of_size(size: int, *, is_even_power: bool) -> Iterator[Case]:
    """Other schedulings than the best one only at every other size, which shows as much."""
    schedulings: tuple[Scheduling, ...] = ("predictive", "dynamic", "static")
    for scheduling in schedulings if is_even_power else schedulings[:1]:
        yield Case(name="uneven", num_nodes=size, scheduling=scheduling, unevenness=UNEVEN)
    if is_even_power and size >= 16:
        for scheduling in schedulings:
            yield Case(name="alike", num_nodes=size, scheduling=scheduling, unevenness=ALIKE)
        yield Case(
            name="death",
            num_nodes=size,
            scheduling="predictive",
            unevenness=UNEVEN,
            has_death=True,
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A simulated job, as it is kept. Shares are of all ranks' time."""

    name: str
    num_nodes: int
    scheduling: Scheduling
    batch_s: float
    wall_s: float
    ideal_s: float
    efficiency: float
    scored_s: float
    waiting_share: float
    communicating_share: float
    num_requests: int
    store_busy_share: float
    longest_queue_ms: float
    bytes_inside: int
    bytes_between: int
    num_attempts: int
    num_begun_again: int


def row_of(case: Case, measured: Measured) -> Row:
    """Run one case."""
    outcome = case.run(measured)
    all_s = len(outcome.timings) * outcome.wall_s
    return Row(
        name=case.name,
        num_nodes=case.num_nodes,
        scheduling=case.scheduling,
        batch_s=round(case.batch_s or measured.seconds_per_token * WINDOW, 3),
        wall_s=round(outcome.wall_s, 2),
        ideal_s=round(outcome.ideal_s, 2),
        efficiency=round(outcome.efficiency, 4),
        scored_s=round(outcome.scored_s, 2),
        waiting_share=round(sum(t.wait_s for t in outcome.timings) / all_s, 5),
        communicating_share=round(sum(t.communicate_s for t in outcome.timings) / all_s, 5),
        num_requests=outcome.num_requests,
        store_busy_share=round(outcome.store_busy_s / outcome.wall_s, 5),
        longest_queue_ms=round(1000 * outcome.longest_queue_s, 3),
        bytes_inside=outcome.traffic.bytes_inside,
        bytes_between=outcome.traffic.bytes_between,
        num_attempts=outcome.num_attempts,
        num_begun_again=outcome.num_begun_again,
    )


def sweep(measured: Measured, largest: int = LARGEST) -> list[Row]:
    """All cases; the same rows for the same figures."""
    with ProcessPoolExecutor() as pool:
        futures = [pool.submit(row_of, case, measured) for case in cases(largest)]
        rows = []
        for future in futures:
            rows.append(future.result())
            print(rows[-1], flush=True)  # noqa: T201 - it takes minutes
    return rows
