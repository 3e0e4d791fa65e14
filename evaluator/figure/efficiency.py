"""How near a run came to what its machines can do; formulas in docs/metrics.md."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from evaluator.contract.efficiency import Bound, Efficiency
from evaluator.contract.reports import RankTiming

NEAR = 1 / 3
"""Share of a limit from which it is said to bound; what is left may be the other, or neither."""

STARVED = 2 / 3
"""Share of the processor time below which others are to blame, not how ranks compute."""


def efficiency(
    timings: Sequence[RankTiming], why_unknown: str | None, num_threads: int | None
) -> Efficiency:
    """The efficiency of all ranks together.

    Args:
        timings: Of all ranks.
        why_unknown: Why operations are not counted; None where they are.
        num_threads: Of each rank that compute; None where a GPU does.
    """
    computed_s = math.fsum(timing.compute_s for timing in timings)
    waited_s = math.fsum(timing.wait_s + timing.communicate_s for timing in timings)
    num_fed = sum(timing.work.num_fed_tokens for timing in timings)
    num_planned = sum(timing.num_input_tokens for timing in timings)
    num_scored = sum(timing.num_scored_tokens for timing in timings)
    processor = _share(
        math.fsum(timing.processor_s for timing in timings),
        None if num_threads is None else computed_s * num_threads,
    )
    waiting = _share(waited_s, waited_s + computed_s)
    if why_unknown is None and not num_fed:
        why_unknown = "earlier attempts had scored everything"
    sums = _sums(timings) if why_unknown is None else _Sums()
    peak_share = _share(sums.operations, sums.possible_operations)
    bandwidth_share = _share(sums.read_bytes, sums.possible_bytes)
    return Efficiency(
        num_forwards=sum(timing.work.num_forwards for timing in timings),
        num_fed_tokens=num_fed,
        num_head_positions=sum(timing.work.num_head_positions for timing in timings),
        padding_share=_share(num_fed - num_planned, num_fed),
        fed_tokens_per_scored_token=_share(num_fed, num_scored),
        waiting_share=waiting,
        processor_share=processor,
        operations_per_second=_share(sums.operations, computed_s),
        peak_operations_per_second=_share(sums.possible_operations, computed_s),
        bytes_per_second=_share(sums.read_bytes, computed_s),
        peak_bytes_per_second=_share(sums.possible_bytes, computed_s),
        peak_share=peak_share,
        bandwidth_share=bandwidth_share,
        bound=_bound(waiting, processor, peak_share, bandwidth_share),
        why_unknown=why_unknown,
    )


class _Sums(NamedTuple):
    """Over all ranks: what was done, and what would have fitted into the same seconds."""

    operations: float | None = None
    possible_operations: float | None = None
    read_bytes: float | None = None
    possible_bytes: float | None = None


def _sums(timings: Sequence[RankTiming]) -> _Sums:
    works, limits = [t.work for t in timings], [(t.compute_s, t.limits) for t in timings]
    return _Sums(
        math.fsum(work.operations or 0.0 for work in works),
        math.fsum(s * each.operations_per_second for s, each in limits if each is not None),
        math.fsum(work.weight_bytes or 0.0 for work in works),
        math.fsum(s * each.bytes_per_second for s, each in limits if each is not None),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _bound(
    waiting: float | None,
    processor: float | None,
    peak_share: float | None,
    bandwidth_share: float | None,
) -> Bound | None:
    if peak_share is None or bandwidth_share is None:
        return None
    if waiting is not None and waiting > 1 / 2:
        return "waiting"
    if processor is not None and processor < STARVED:
        return "contention"
    if max(peak_share, bandwidth_share) < NEAR:
        return "overhead"
    return "compute" if peak_share >= bandwidth_share else "memory"
