"""A database with many jobs in it, as one is after years."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, text

from app.db import Database
from app.models import Job, JobLabel
from evaluator.contract.states import JobState

NUM_JOBS = 100_000
FIRST_AT = datetime(2020, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
"""Between two jobs."""
_PART = 5000
_RARE = {7: JobState.FAILED, 500: JobState.CANCELLED}


def job_id(number: int) -> str:
    """Ids sort by age, as real ones do."""
    return f"job_{number:026d}"


def _state(number: int, num_queued: int) -> JobState:
    """The newest are queued; before them most succeeded, some did not."""
    if number >= NUM_JOBS - num_queued:
        return JobState.QUEUED
    return next((state for n, state in _RARE.items() if number % n == 0), JobState.SUCCEEDED)


def _job(number: int, num_queued: int) -> dict[str, Any]:
    at = FIRST_AT + number * MINUTE
    state = _state(number, num_queued)
    was_run = state is not JobState.QUEUED
    return {
        "id": job_id(number), "state": state, "version": 9, "priority": number % 5,
        "request": {
            "model": {"kind": "folder", "path": "tiny"}, "data": {"kind": "text", "path": "a.txt"}
        },
        "device": "cpu", "num_ranks": 2, "attempt": int(was_run), "attempts_left": 2,
        "time_limit_seconds": 3600, "created_at": at, "updated_at": at,
        "started_at": at if was_run else None,
        "deadline_at": at + timedelta(hours=1) if was_run else None,
        "ended_at": at if was_run else None, "num_batches_done": 0, "num_scored_tokens_done": 0,
    }  # fmt: skip


async def fill(database: Database, *, num_queued: int) -> None:
    """Put `NUM_JOBS` jobs into an empty database; one in a hundred has a label."""
    for start in range(0, NUM_JOBS, _PART):
        numbers = range(start, start + _PART)
        labels = [
            {"job_id": job_id(n), "key": "branch", "value": "main"} for n in numbers if n % 100 == 0
        ]
        async with database.write() as session:
            await session.execute(insert(Job), [_job(n, num_queued) for n in numbers])
            await session.execute(insert(JobLabel), labels)
    if not database.is_sqlite:  # PostgreSQL does so by itself, some time later
        async with database.write() as session:
            await session.execute(text("ANALYZE"))
