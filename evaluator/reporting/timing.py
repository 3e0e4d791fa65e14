"""Where a rank's time goes. Must not import torch."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evaluator.contract.efficiency import Limits, Work
from evaluator.contract.reports import RankTiming, Traffic
from evaluator.exchange.ranks import RankInfo
from evaluator.planning.plan import Batch

if TYPE_CHECKING:
    from evaluator.contract.speeds import LengthSpeed

Activity = Literal["load", "tokenise", "warm_up", "compute", "audit", "wait", "communicate"]


class RankClock:
    """Adds up seconds per activity and what was done in them. Activities do not nest."""

    def __init__(
        self,
        rank: RankInfo,
        started: float,
        monotonic: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        self._rank = rank
        self._started = started
        self._monotonic = monotonic
        self._processor = processor
        self._seconds: dict[Activity, float] = {}
        self._num_batches = 0
        self._num_input_tokens = 0
        self._num_scored_tokens = 0
        self._num_leases = 0
        self._processor_s = 0.0
        self._expected_s = 0.0
        self._measured_s = 0.0
        self.speeds: Callable[[], tuple[LengthSpeed, ...]] = tuple
        """What the rank has learnt of its speed; set once it scores."""
        self.traffic: Callable[[], Traffic] = Traffic
        """What the rank has sent; set once it can reach others."""
        self.num_out_of_memory: Callable[[], int] = int
        """Forwards that were tried again in smaller parts; set once it scores."""
        self.work: Callable[[], Work] = Work
        """What its forwards did; set once it scores."""
        self.limits: Limits | None = None
        """What it could do; measured at the end."""
        self.peak_memory_bytes: Callable[[], int] = peak_resident_bytes
        """How memory is read; a run on a GPU sets its own."""

    @contextmanager
    def measure(self, activity: Activity) -> Iterator[None]:
        """Charge the time spent inside to `activity`."""
        begin, processor_begin = self._monotonic(), self._processor()
        try:
            yield
        finally:
            elapsed = self._monotonic() - begin
            if activity == "compute":
                self._processor_s += self._processor() - processor_begin
            self._seconds[activity] = self._seconds.get(activity, 0.0) + elapsed

    def seconds(self, activity: Activity) -> float:
        """Charged to this activity so far."""
        return self._seconds.get(activity, 0.0)

    def count_lease(self) -> None:
        """Count a lease as drawn."""
        self._num_leases += 1

    def count(self, batch: Batch, seconds: float, expected_s: float | None) -> None:
        """Count a batch as done, with the seconds it took and those it was expected to take."""
        if expected_s is not None:
            self._expected_s += expected_s
            self._measured_s += seconds
        self._num_batches += 1
        self._num_input_tokens += batch.num_input_tokens
        self._num_scored_tokens += sum(batch.num_scored)

    def snapshot(self) -> RankTiming:
        """Everything so far."""
        seconds = self._seconds.get
        return RankTiming(
            rank=self._rank.rank,
            local_rank=self._rank.local_rank,
            node_rank=self._rank.node_rank,
            load_s=seconds("load", 0.0),
            tokenise_s=seconds("tokenise", 0.0),
            warm_up_s=seconds("warm_up", 0.0),
            compute_s=seconds("compute", 0.0),
            processor_s=self._processor_s,
            audit_s=seconds("audit", 0.0),
            wait_s=seconds("wait", 0.0),
            communicate_s=seconds("communicate", 0.0),
            wall_s=self.wall_s,
            num_leases=self._num_leases,
            expected_s=self._expected_s,
            measured_s=self._measured_s,
            speeds=self.speeds(),
            traffic=self.traffic(),
            work=self.work(),
            limits=self.limits,
            num_out_of_memory=self.num_out_of_memory(),
            num_batches=self._num_batches,
            num_input_tokens=self._num_input_tokens,
            num_scored_tokens=self._num_scored_tokens,
            peak_memory_bytes=self.peak_memory_bytes(),
        )

    @property
    def wall_s(self) -> float:
        """Seconds since the process started."""
        return self._monotonic() - self._started


def peak_resident_bytes() -> int:
    """Peak resident memory of this process.

    On Linux the program's own high-water mark: `ru_maxrss` starts at what the parent had when it
    forked, which under torchrun is more than a small run ever needs.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
