"""How uneven ranks are, and which is the slowest and why. Pure; definitions: docs/metrics.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Literal

from evaluator.contract.reports import RankTiming

Reason = Literal["slow_compute", "slow_load", "waiting"]


@dataclass(frozen=True)
class Speeds:
    """Seconds of compute for each token fed, over ranks that have fed any."""

    least_seconds: float
    most_seconds: float
    ratio: float
    """The most by the least; 1 where all are alike."""
    coefficient_of_variation: float
    """Standard deviation by mean; 0 where all are alike."""


@dataclass(frozen=True)
class Slowest:
    """The rank that lost most against the others."""

    rank: int
    node_rank: int
    reason: Reason
    """The largest of what follows."""
    load_excess_seconds: float
    """Until it could score, above the median of the others."""
    compute_excess_seconds: float
    """Of compute, above what its tokens take at the others' median speed."""
    waiting_seconds: float
    """In which it waited for others or exchanged with them."""


def measure_speeds(timings: Sequence[RankTiming]) -> Speeds | None:
    """Compare ranks by their compute; None with fewer than two that have scored."""
    paces = [_pace(timing) for timing in timings if timing.num_input_tokens]
    if len(paces) < 2 or min(paces) <= 0:
        return None
    return Speeds(
        least_seconds=min(paces),
        most_seconds=max(paces),
        ratio=max(paces) / min(paces),
        coefficient_of_variation=pstdev(paces) / fmean(paces),
    )


def find_slowest(timings: Sequence[RankTiming]) -> Slowest | None:
    """Name the rank with the largest excess of load and compute; None with fewer than two."""
    if len(timings) < 2:
        return None
    found = [_account(timing, timings) for timing in timings]
    # Of equals the first.
    return max(found, key=lambda each: each.load_excess_seconds + each.compute_excess_seconds)


def _account(timing: RankTiming, timings: Sequence[RankTiming]) -> Slowest:
    others = [each for each in timings if each is not timing]
    paces = [_pace(each) for each in others if each.num_input_tokens]
    load = max(0.0, _until_scoring(timing) - median(map(_until_scoring, others)))
    usual = timing.num_input_tokens * median(paces) if paces else timing.compute_s
    # Of a scoring group the first rank counts tokens, for all.
    compute = max(0.0, timing.compute_s - usual) if timing.num_input_tokens else 0.0
    waiting = timing.wait_s + timing.communicate_s
    excesses: dict[Reason, float] = {
        "slow_compute": compute, "slow_load": load, "waiting": waiting
    }  # fmt: skip
    return Slowest(
        rank=timing.rank,
        node_rank=timing.node_rank,
        reason=max(excesses, key=excesses.__getitem__),
        load_excess_seconds=load,
        compute_excess_seconds=compute,
        waiting_seconds=waiting,
    )


def _pace(timing: RankTiming) -> float:
    return timing.compute_s / timing.num_input_tokens


def _until_scoring(timing: RankTiming) -> float:
    return timing.load_s + timing.tokenise_s + timing.warm_up_s
