"""SQL that several use cases share. Everything here runs inside the caller's session."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import mark_changed
from app.errors import JobNotFound
from app.jobs.transitions import JobEvent, next_state
from app.models import Attempt, Event, Job, JobLabel, Rank

T = TypeVar("T")

_PART = 400
"""Most keys in one IN list; SQLite has a limit on the parameters of a statement."""


def in_parts(keys: Iterable[T]) -> Iterator[list[T]]:
    """Yield the keys, as many at a time as one statement takes."""
    rest = list(keys)
    for start in range(0, len(rest), _PART):
        yield rest[start : start + _PART]


def utcnow() -> datetime:
    """Return the time, aware."""
    return datetime.now(UTC)


async def load_job(session: AsyncSession, job_id: str, *, lock: bool = False) -> Job:
    """Return the job; `lock` holds its row until the end of the transaction.

    Whoever changes a job, or anything that belongs to it, locks it first.

    Raises:
        JobNotFound: there is none with this id.
    """
    job = await session.get(Job, job_id, with_for_update=True if lock else None)
    if job is None:
        raise no_job(job_id)
    return job


def no_job(job_id: str) -> JobNotFound:
    """Return what is raised for a job that isn't there, or that the caller may not know of."""
    return JobNotFound(f"there is no job {job_id!r}")


def add_event(session: AsyncSession, job: Job, kind: str, data: dict[str, Any]) -> None:
    """Count the job's version up and append the event that carries this number."""
    job.version += 1
    job.updated_at = utcnow()
    session.add(
        Event(job_id=job.id, number=job.version, type=kind, data=data, created_at=job.updated_at)
    )
    mark_changed(session, job.id)


@dataclass(frozen=True)
class Move:
    """A job has come into a state; the session that did it has not committed yet."""

    job: Job
    version: int
    at: datetime
    data: dict[str, Any]
    """Of the event."""


def moves_of(session: AsyncSession) -> list[Move]:
    """Return what `move` has done in this session, in order."""
    moves: list[Move] = session.info.setdefault("moves", [])
    return moves


def move(session: AsyncSession, job: Job, event: JobEvent) -> None:
    """Move a locked job by `event`, and tell it to the stream and, at the commit, to the outbox.

    Set `state_reason` and `message` before, so that the event carries them.

    Raises:
        TransitionNotAllowed: the table has no such move.
    """
    job.state = next_state(job.state, event)
    job.ended_at = utcnow() if job.state.is_terminal else None
    data = {
        "state": job.state,
        "state_reason": job.state_reason,
        "message": job.message,
        "attempt": job.attempt,
        "is_terminal": job.state.is_terminal,
    }
    add_event(session, job, "state", data)
    moves_of(session).append(Move(job, job.version, job.updated_at, data))


async def load_attempts(session: AsyncSession, job_id: str) -> list[Attempt]:
    """Return all attempts of a job, oldest first."""
    query = select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
    return list((await session.scalars(query)).all())


async def lock_attempts(
    session: AsyncSession, attempt_ids: Collection[str]
) -> list[tuple[Job, Attempt]]:
    """Return these attempts with their jobs, whose rows are locked.

    In the order of jobs, so that two servers lock rows in the same order.
    """
    of_attempts = select(Attempt.job_id).where(Attempt.id.in_(attempt_ids))
    query = select(Job).where(Job.id.in_(of_attempts)).order_by(Job.id).with_for_update()
    jobs = {job.id: job for job in (await session.scalars(query)).all()}
    # A statement of its own: it sees what was committed while this one waited for the locks.
    attempts = select(Attempt).where(Attempt.id.in_(attempt_ids)).order_by(Attempt.job_id)
    return [(jobs[each.job_id], each) for each in (await session.scalars(attempts)).all()]


async def load_open_attempts(session: AsyncSession) -> list[Attempt]:
    """Return the attempts whose processes may still be there."""
    query = select(Attempt).where(Attempt.ended_at.is_(None)).order_by(Attempt.id)
    return list((await session.scalars(query)).all())


async def load_ranks(session: AsyncSession, attempt_ids: Sequence[str]) -> list[Rank]:
    """Return the ranks of these attempts."""
    query = select(Rank).where(Rank.attempt_id.in_(attempt_ids)).order_by(Rank.rank)
    return list((await session.scalars(query)).all())


async def load_labels(session: AsyncSession, job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the labels of these jobs by job."""
    labels: dict[str, dict[str, str]] = {job_id: {} for job_id in job_ids}
    query = select(JobLabel).where(JobLabel.job_id.in_(job_ids)).order_by(JobLabel.key)
    for label in (await session.scalars(query)).all():
        labels[label.job_id][label.key] = label.value
    return labels
