"""Runs the evaluator's leases and exchange for any number of ranks on a virtual clock.

Real: share, schedule, leases, speeds, ledger, recorder, peers, collectives and timing, as each
rank of a real run has them. Virtual: clock, store and links, and forwards, which only take time.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from evaluator.contract.reports import LedgerEntry, RankTiming, Traffic
from evaluator.exchange.collectives import Collectives
from evaluator.exchange.hierarchy import ExactTotal, NodeLayout
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.exchange.recorder import Recorder
from evaluator.figure.reduce import join_ledgers
from evaluator.planning.plan import Batch
from evaluator.reporting.narrator import PROGRESS_PERIOD_S, Narrator
from evaluator.reporting.timing import RankClock
from evaluator.scheduling.schedule import Schedule, Work
from evaluator.scheduling.speed import SharedSpeed
from evaluator.scoring.ledger import Ledger
from evaluator.scoring.micro_batch import ElasticBudget, MicroBatches
from evaluator.scoring.score import TokenNll
from evaluator.scoring.share import Share
from tests.bench.scaling.job import Costs, Job
from tests.bench.scaling.network import VirtualCircle, VirtualStore
from tests.bench.scaling.virtual import VirtualTime


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job came to."""

    wall_s: float
    """From the first lease to the result, restarts included."""
    ideal_s: float
    scored_s: float
    """Until the last rank had no lease left; the rest is the exchange and rank 0 alone."""
    timings: tuple[RankTiming, ...]
    """By rank, of the last attempt."""
    num_attempts: int
    num_begun_again: int
    """Batches that died with an attempt."""
    num_requests: int
    """To the store, in the last attempt."""
    store_busy_s: float
    longest_queue_s: float

    @property
    def efficiency(self) -> float:
        """Ideal over real, at most 1."""
        return self.ideal_s / self.wall_s

    @property
    def traffic(self) -> Traffic:
        """Of all ranks."""
        return sum((timing.traffic for timing in self.timings), start=Traffic())


class Scorer:
    """Takes the time that a batch takes on this rank."""

    def __init__(self, time: VirtualTime, seconds: float, spread: list[float]) -> None:
        self._time, self._seconds, self._spread = time, seconds, spread
        self.num_begun = 0

    def score(self, batch: Batch) -> list[TokenNll]:
        self.num_begun += 1
        self._time.sleep(self._seconds * batch.num_input_tokens * self._spread[batch.index])
        return [np.full(window.num_scored, 1.0 + batch.index) for window in batch.windows]


class Spool:
    """Keeps finished batches as often as a narrator sends them; they outlive the attempt."""

    def __init__(self, time: VirtualTime, ledger: Ledger, kept: list[LedgerEntry]) -> None:
        self._time, self._ledger, self._kept = time, ledger, kept
        self._told_at = time.now_s

    def tick(self) -> None:
        if self._time.now_s - self._told_at >= PROGRESS_PERIOD_S:
            self.tell()

    def tell(self) -> None:
        self._told_at = self._time.now_s
        self._kept += self._ledger.take_unreported()


class SimulatedRank:
    """One rank of one attempt."""

    def __init__(self, attempt: "Attempt", rank: RankInfo, scorer: Scorer) -> None:
        time, job = attempt.time, attempt.job
        self.scorer = scorer
        self._attempt = attempt
        self._peers = Peers(
            rank,
            attempt.store,
            recorder=Recorder(now=time.monotonic, monotonic=time.monotonic),
            monotonic=time.monotonic,
        )
        self._peers.traffic.layout = attempt.layout
        self._clock = RankClock(rank, time.now_s, time.monotonic, time.monotonic)
        self._clock.traffic = self._peers.traffic.snapshot
        self._clock.peak_memory_bytes = int
        self._collectives = Collectives(
            rank.rank,
            attempt.layout,
            attempt.inside[rank.node_rank],
            attempt.between,
            self._peers.traffic,
        )
        self._ledger = Ledger(job.plan)
        self._spool = Spool(time, self._ledger, attempt.kept)
        self._share = Share(
            rank=rank,
            peers=self._peers,
            schedule=Schedule(
                scheduling=job.scheduling,
                group=rank.rank,
                shared=SharedSpeed(self._peers.add_speed, job.num_ranks),
            ),
            micro_batches=MicroBatches(
                scorer=scorer,
                budget=ElasticBudget(),
                free_memory=lambda: None,
                monotonic=time.monotonic,
            ),
            clock=self._clock,
            narrator=cast("Narrator", self._spool),
        )

    def run(self) -> None:
        """As `runner` and `collect` go on once a model is loaded; without the audit."""
        attempt = self._attempt
        self._share.work(attempt.work, self._ledger, range(attempt.job.num_ranks), 0)
        attempt.scored_s = attempt.time.now_s
        self._spool.tell()
        with self._clock.measure("wait"):
            self._peers.wait_for_all("scored/0")
        total = ExactTotal.of(nll for entry in self._ledger.added for nll in entry.nll_nats)
        total_or_none = self._collectives.reduce(total)
        with self._clock.measure("wait"):
            self._peers.wait_for_all("done")
        with self._clock.measure("communicate"):
            added = self._collectives.gather(self._ledger.added)
        timings = self._collectives.gather(self._clock.snapshot())
        if added is not None and timings is not None and total_or_none is not None:
            attempt.end(added, timings, total_or_none)


@dataclass(kw_only=True)
class Attempt:
    """One launch of the job."""

    job: Job
    costs: Costs
    slowness: tuple[float, ...]
    begin_s: float
    kept: list[LedgerEntry]
    """Finished batches, of earlier attempts and of this one."""
    time: VirtualTime = field(init=False)
    store: VirtualStore = field(init=False)
    layout: NodeLayout = field(init=False)
    inside: list[VirtualCircle] = field(init=False)
    between: VirtualCircle = field(init=False)
    work: Work = field(init=False)
    ranks: list[SimulatedRank] = field(init=False)
    scored_s: float = field(init=False)
    timings: tuple[RankTiming, ...] = ()

    def __post_init__(self) -> None:
        job, costs = self.job, self.costs
        self.time = VirtualTime(self.begin_s)
        self.store = VirtualStore(self.time, costs.between, costs.store_service_s)
        self.layout = job.layout
        self.inside = [
            VirtualCircle(ranks, None, self.time, costs.inside, costs.loads_bytes_per_s)
            for ranks in self.layout.nodes
        ]
        self.between = VirtualCircle(
            self.layout.leaders, None, self.time, costs.between, costs.loads_bytes_per_s
        )
        self.resumed = list(self.kept)
        self.work = job.unfinished({entry.batch for entry in self.resumed})
        spread = job.spread(costs)
        self.ranks = [
            SimulatedRank(self, info, Scorer(self.time, costs.seconds_per_token * slow, spread))
            for info, slow in zip(self._infos(), self.slowness, strict=True)
        ]

    def _infos(self) -> Iterator[RankInfo]:
        for rank, node in enumerate(self.layout.node_by_rank):
            yield RankInfo(
                rank=rank,
                node_rank=node,
                local_rank=rank % self.job.ranks_per_node,
                world_size=self.job.num_ranks,
                local_world_size=self.job.ranks_per_node,
            )

    def run(self, death_s: float) -> bool:
        """True where it came to a result before a node died."""
        for rank in self.ranks:
            self.time.start(rank.run)
        return self.time.run(death_s)

    def end(
        self, added: list[list[LedgerEntry]], timings: list[RankTiming], total: ExactTotal
    ) -> None:
        """What rank 0 does alone; it raises unless each batch was scored once."""
        self.time.sleep(self.costs.result_s_per_batch * self.job.num_batches)
        ledger = join_ledgers(self.job.plan, self.resumed, added)
        everything = ExactTotal.of(nll for entry in ledger.entries for nll in entry.nll_nats)
        taken_over = ExactTotal.of(nll for entry in self.resumed for nll in entry.nll_nats)
        assert total + taken_over == everything
        self.timings = tuple(timings)

    @property
    def num_begun(self) -> int:
        """Batches, whether or not they came to an end."""
        return sum(rank.scorer.num_begun for rank in self.ranks)


def simulate(
    job: Job, costs: Costs, slowness: tuple[float, ...], deaths: Iterable[float] = ()
) -> Outcome:
    """Run a job until it has its result.

    Args:
        job: What there is to do.
        costs: What everything takes.
        slowness: By rank; 3 takes three times as long.
        deaths: When a node dies, in seconds since the first lease, growing. It ends the attempt, as
            in the evaluator; the next one begins `restart_s` later, with all nodes and what was
            reported. A node that dies while nothing runs is a part of that.
    """
    kept: list[LedgerEntry] = []
    begin_s, num_attempts, num_begun = 0.0, 0, 0
    times = iter(deaths)
    while True:
        death_s = next((each for each in times if each >= begin_s), math.inf)
        attempt = Attempt(job=job, costs=costs, slowness=slowness, begin_s=begin_s, kept=kept)
        is_done = attempt.run(death_s)
        num_attempts, num_begun = num_attempts + 1, num_begun + attempt.num_begun
        if is_done:
            break
        begin_s = death_s + costs.restart_s
    return Outcome(
        wall_s=attempt.time.now_s,
        ideal_s=job.ideal_s(costs, slowness),
        scored_s=attempt.scored_s,
        timings=attempt.timings,
        num_attempts=num_attempts,
        num_begun_again=num_begun - job.num_batches,
        num_requests=attempt.store.num_requests,
        store_busy_s=attempt.store.busy_s,
        longest_queue_s=attempt.store.longest_queue_s,
    )
