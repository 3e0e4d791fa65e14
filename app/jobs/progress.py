"""How far a job is, from its counters and what its ranks last reported. Pure."""

from collections.abc import Iterable
from typing import Any, Protocol

from app.models import Job
from evaluator.contract.states import JobState

_BUSY_FIELDS = ("compute_s", "wait_s", "communicate_s")
_NEARLY_DONE = 0.999
"""Most that is shown before the job has succeeded: 1 means that it has."""


class Timed(Protocol):
    """A rank, as far as it matters here."""

    @property
    def timing(self) -> dict[str, Any] | None:
        """A contract `RankTiming`."""


def tokens_per_second(ranks: Iterable[Timed]) -> float | None:
    """Return scored tokens a second over all ranks; None before the first batch.

    Each rank's rate counts from its own monotonic clock, so clocks that differ do no harm.
    """
    rate = 0.0
    for rank in ranks:
        timing = rank.timing or {}
        busy_s = sum(timing.get(name, 0.0) for name in _BUSY_FIELDS)
        if busy_s > 0:
            rate += timing.get("num_scored_tokens", 0) / busy_s
    return rate or None


def fraction_done(job: Job) -> float | None:
    """Return the share of scored tokens, 0 to 1; None before there is a plan."""
    if job.state is JobState.SUCCEEDED:
        return 1.0
    if not job.plan:
        return None
    total = job.plan["num_scored_tokens"]
    return min(job.num_scored_tokens_done / total, _NEARLY_DONE) if total else 0.0


def progress(job: Job, ranks: Iterable[Timed]) -> dict[str, Any]:
    """Return the progress as clients see it; durations in seconds."""
    rate = None if job.state.is_terminal else tokens_per_second(ranks)
    total = job.plan["num_scored_tokens"] if job.plan else None
    left = None if total is None else max(total - job.num_scored_tokens_done, 0)
    return {
        "stage": job.stage,
        "fraction": fraction_done(job),
        "num_batches_done": job.num_batches_done,
        "num_batches": job.plan["num_batches"] if job.plan else None,
        "num_scored_tokens_done": job.num_scored_tokens_done,
        "num_scored_tokens": total,
        "tokens_per_second": rate,
        "eta_seconds": left / rate if left is not None and rate else None,
    }
