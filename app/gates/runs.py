"""Finds the repeats of a job, and how fast each was."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import NotComparable
from app.gates.speed import Runs
from app.jobs.progress import tokens_per_second
from app.jobs.records import public_result
from app.jobs.repository import load_job
from app.models import Attempt, Job, Rank
from evaluator.contract.states import JobState

MAX_RUNS = 20
"""Most repeats that count, the newest ones."""
_MAX_LOOKED_AT = 1000
_NOT_THE_SAME_RUN = ("priority", "limits")
"""What of a request does not make another run of it."""

_RESULT_SAYS = ("device", "dtype", "threads_per_rank", "world_size", "data_digest")
_SCORING_SAYS = ("window", "stride", "batch_tokens")


async def load_both_runs(
    session: AsyncSession, baseline_id: str, candidate_id: str
) -> tuple[Runs, Runs]:
    """Return the runs of both jobs.

    Raises:
        NotComparable: they are repeats of each other, or a rank's times are gone.
    """
    baseline, candidate = [await load_job(session, each) for each in (baseline_id, candidate_id)]
    is_same_model = baseline.model_digest == candidate.model_digest
    if is_same_model and _asked(baseline.request) == _asked(candidate.request):
        msg = (
            "the jobs are repeats of each other: they have the same request, labels included, and "
            "the same model; give them labels that tell them apart"
        )
        raise NotComparable(msg)
    return await _load_runs(session, baseline), await _load_runs(session, candidate)


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in _NOT_THE_SAME_RUN}


async def _load_runs(session: AsyncSession, job: Job) -> Runs:
    query = (
        select(Job.id, Job.request)
        .where(
            Job.id != job.id,
            Job.project == job.project,
            Job.state == JobState.SUCCEEDED,
            Job.device == job.device,
            Job.num_ranks == job.num_ranks,
            Job.model_digest == job.model_digest,
        )
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(_MAX_LOOKED_AT)
    )
    wanted = _asked(job.request)
    rows = (await session.execute(query)).all()
    repeats = [row.id for row in rows if _asked(row.request) == wanted][: MAX_RUNS - 1]
    place, speed = await _load_run(session, job)
    found = [await _load_run(session, await load_job(session, each)) for each in repeats]
    return Runs(place, [speed, *(speed for where, speed in found if where == place)])


async def _load_run(session: AsyncSession, job: Job) -> tuple[dict[str, str], float]:
    """Return where a job ran, and how fast."""
    query = (
        select(Rank)
        .join(Attempt, Attempt.id == Rank.attempt_id)
        .where(Attempt.job_id == job.id, Attempt.number == job.attempt)
    )
    ranks = (await session.scalars(query)).all()
    speed = tokens_per_second(ranks)
    if speed is None:
        msg = f"the ranks of job {job.id} have left no times: run it again"
        raise NotComparable(msg)
    result = public_result(job)
    place = {name: str(getattr(result, name)) for name in _RESULT_SAYS}
    place |= {f"scoring.{name}": str(getattr(result.scoring, name)) for name in _SCORING_SAYS}
    return place | {"hosts": ", ".join(sorted({rank.host for rank in ranks}))}, speed
