"""Use cases of the public API: submit, look, wait, cancel, retry."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import (
    AttemptNotFound,
    DeviceUnavailable,
    NodeNotFound,
    ParallelismInvalid,
    PreconditionFailed,
    TooManyRanks,
)
from app.ids import new_id
from app.jobs.hub import Hub
from app.jobs.paging import JobQuery, encode_cursor, page_query
from app.jobs.paths import resolve_data, resolve_model
from app.jobs.repository import (
    add_event,
    load_attempts,
    load_job,
    load_labels,
    load_ranks,
    move,
    no_job,
    utcnow,
)
from app.jobs.request import JobRequest
from app.jobs.scored_by import Accounts, load_accounts
from app.jobs.transitions import JobEvent
from app.launchers.rundir import log_name
from app.models import Attempt, Event, Job, JobLabel, Rank
from app.settings import Settings
from evaluator.contract.launch import Layout
from evaluator.contract.parallelism import Parallelism, resolve
from evaluator.contract.states import FailureReason, JobState

_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class JobRecord:
    """A job and what belongs to it."""

    job: Job
    labels: dict[str, str]
    attempts: list[Attempt]
    ranks: list[Rank]
    """Of the current attempt."""
    accounts: Accounts | None = None
    """Who scored what; null until the job has succeeded."""


@dataclass(frozen=True)
class Page:
    """Some of the jobs; their attempts and ranks are left out."""

    items: list[JobRecord]
    next_cursor: str | None


class JobService:
    """The use cases. `wake` tells the workers that there is something to do."""

    def __init__(
        self, database: Database, settings: Settings, hub: Hub, wake: Callable[[], None]
    ) -> None:
        """Take what the use cases need."""
        self._database = database
        self._settings = settings
        self._hub = hub
        self._wake = wake

    def on(self, database: Database) -> "JobService":
        """Return the use cases on this database, which may be confined to a project."""
        return JobService(database, self._settings, self._hub, self._wake)

    async def submit(self, request: JobRequest) -> JobRecord:
        """Store a job and queue it.

        Raises:
            InvalidRequest: a path is refused or missing, or the server has too few slots.
        """
        device = self._device(request)
        _check_parallelism(request.launch)
        await asyncio.to_thread(resolve_model, request.model, self._settings)
        await asyncio.to_thread(resolve_data, request.data, self._settings)
        job = _new_job(request, device, self._database.home)
        async with self._database.write() as session:
            session.add(job)
            await session.flush()
            session.add_all(
                JobLabel(job_id=job.id, key=key, value=value)
                for key, value in request.labels.items()
            )
            add_event(session, job, "state", _queued_data(job))
        self._wake()
        return JobRecord(job, dict(request.labels), [], [])

    def _device(self, request: JobRequest) -> str:
        """Choose the device and check that the job can ever fit."""
        layout = request.launch
        device = layout.device
        if device == "auto":
            device = "cuda" if self._settings.gpu_slots else "cpu"
        num_slots = self._settings.slots(device)
        setting = "ASSAY_GPU_SLOTS" if device == "cuda" else "ASSAY_CPU_SLOTS"
        if num_slots == 0:
            msg = (
                f"{device} asked, but this server has no slots for it: choose another device, or "
                f"set {setting} to the number of ranks that may run on it"
            )
            raise DeviceUnavailable(msg, pointer="/launch/device")
        if layout.num_ranks > num_slots:
            msg = (
                f"{layout.num_ranks} ranks on {device} asked, this server has {num_slots} {device} "
                f"slots: ask for fewer, or raise {setting}"
            )
            raise TooManyRanks(msg, pointer="/launch/ranks_per_node")
        return device

    async def get(self, job_id: str) -> JobRecord:
        """Return the job.

        Raises:
            JobNotFound: there is none with this id.
        """
        async with self._database.read() as session:
            return await _record(session, await load_job(session, job_id))

    async def version(self, job_id: str) -> tuple[int, JobState]:
        """Return version and state, cheaply.

        Raises:
            JobNotFound: there is none with this id.
        """
        async with self._database.read() as session:
            query = select(Job.version, Job.state).where(Job.id == job_id)
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise no_job(job_id)
        return row.version, row.state

    async def wait(self, job_id: str, timeout_s: float) -> JobRecord:
        """Return the job once it is terminal, or as it is after `timeout_s` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            _, state = await self.version(job_id)
            left = deadline - asyncio.get_running_loop().time()
            if state.is_terminal or left <= 0:
                return await self.get(job_id)
            await self._hub.wait(job_id, min(left, _LOOK_AGAIN_SECONDS))

    async def page(self, query: JobQuery) -> Page:
        """Return a page of jobs.

        Raises:
            InvalidCursor: the cursor is broken or belongs to other filters.
        """
        async with self._database.read() as session:
            jobs = list((await session.scalars(page_query(query))).all())
            labels = await load_labels(session, [job.id for job in jobs])
        more = len(jobs) > query.limit
        items = [JobRecord(job, labels[job.id], [], []) for job in jobs[: query.limit]]
        return Page(items, encode_cursor(query, items[-1].job) if more else None)

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> JobRecord:
        """Ask a job to stop; one that is being cancelled or was is left as it is.

        Raises:
            TransitionNotAllowed: it has already ended otherwise.
            PreconditionFailed: its version is not `if_version`.
        """
        async with self._database.write() as session:
            job = await load_job(session, job_id, lock=True)
            _check_version(job, if_version)
            if job.state not in (JobState.CANCELLING, JobState.CANCELLED):
                await _cancel(session, job)
            record = await _record(session, job)
        self._wake()
        return record

    async def retry(self, job_id: str, *, if_version: int | None = None) -> JobRecord:
        """Queue a job again that ended without a result, with its full number of attempts.

        Raises:
            TransitionNotAllowed: it has not ended, or has a result.
            PreconditionFailed: its version is not `if_version`.
        """
        async with self._database.write() as session:
            job = await load_job(session, job_id, lock=True)
            _check_version(job, if_version)
            job.state_reason, job.message = None, None
            job.started_at, job.deadline_at = None, None
            job.attempts_left = JobRequest.model_validate(job.request).limits.attempts
            move(session, job, JobEvent.RETRY)
            record = await _record(session, job)
        self._wake()
        return record

    async def events(self, job_id: str, *, after: int, limit: int = 500) -> list[Event]:
        """Return events with a number above `after`, oldest first."""
        query = (
            select(Event)
            .where(Event.job_id == job_id, Event.number > after)
            .order_by(Event.number)
            .limit(limit)
        )
        async with self._database.read() as session:
            return list((await session.scalars(query)).all())

    def log_file(self, record: JobRecord, attempt: int | None, node: int) -> Path:
        """Return a node's log of an attempt (null: the current one); it may not exist yet.

        Raises:
            AttemptNotFound: the job has no attempt of this number.
            NodeNotFound: the job has no node of this rank.
        """
        num_nodes = JobRequest.model_validate(record.job.request).launch.nodes
        if node >= num_nodes:
            msg = f"job {record.job.id} has no node {node}: its nodes are 0 to {num_nodes - 1}"
            raise NodeNotFound(msg)
        number = record.job.attempt if attempt is None else attempt
        if attempt is not None and attempt not in {known.number for known in record.attempts}:
            msg = f"job {record.job.id} has no attempt {attempt}"
            raise AttemptNotFound(msg)
        return self._settings.runs_dir / record.job.id / str(number) / log_name(node)


def _check_parallelism(layout: Layout) -> None:
    if not isinstance(layout.parallelism, Parallelism):
        return
    try:
        resolve(layout.parallelism, layout.num_ranks)
    except ValueError as error:
        raise ParallelismInvalid(str(error), pointer="/launch/parallelism") from error


def _new_job(request: JobRequest, device: str, project: str) -> Job:
    now = utcnow()
    return Job(
        id=new_id("job"),
        project=project,
        state=JobState.QUEUED,
        version=0,
        request=request.model_dump(mode="json"),
        priority=request.priority,
        device=device,
        num_ranks=request.launch.num_ranks,
        attempt=0,
        attempts_left=request.limits.attempts,
        time_limit_seconds=request.limits.time_seconds,
        created_at=now,
        updated_at=now,
        num_batches_done=0,
        num_scored_tokens_done=0,
    )


def _queued_data(job: Job) -> dict[str, object]:
    return {
        "state": job.state,
        "state_reason": None,
        "message": None,
        "attempt": 0,
        "is_terminal": False,
    }


async def _record(session: AsyncSession, job: Job) -> JobRecord:
    labels = await load_labels(session, [job.id])
    attempts = await load_attempts(session, job.id)
    current = [attempt.id for attempt in attempts if attempt.number == job.attempt]
    ranks = await load_ranks(session, current)
    succeeded = job.state is JobState.SUCCEEDED
    accounts = await load_accounts(session, job.id) if succeeded else None
    return JobRecord(job, labels[job.id], attempts, ranks, accounts)


async def _cancel(session: AsyncSession, job: Job) -> None:
    """Move a locked job towards `cancelled`; a running attempt is stopped by the reconciler."""
    job.state_reason, job.message = FailureReason.CANCELLED, "stopped on request"
    move(session, job, JobEvent.CANCEL)
    query = select(Attempt).where(Attempt.job_id == job.id, Attempt.ended_at.is_(None))
    for attempt in (await session.scalars(query)).all():
        attempt.stop_reason = FailureReason.CANCELLED
        attempt.stop_requested_at = utcnow()


def _check_version(job: Job, if_version: int | None) -> None:
    if if_version is not None and job.version != if_version:
        msg = f"job {job.id} is at version {job.version}, not {if_version}: read it again"
        raise PreconditionFailed(msg)
