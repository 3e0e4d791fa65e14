"""Looks after launches: ends what is over time, and settles what has ended.

It works from the database and the run directories alone, so it makes no difference whether this
server or one before it started a launch.
"""

import logging
from datetime import datetime, timedelta

from sqlalchemy import select

from app.db import Database
from app.jobs.repository import load_job, load_open_attempts, load_ranks, move, utcnow
from app.jobs.transitions import JobEvent
from app.launchers.base import Alive, Ended, Launcher, LaunchRef, NotStarted, Vanished
from app.models import Attempt, Job, Rank
from app.settings import Settings
from app.workers.launching import launch_ref
from app.workers.settle import Settler
from evaluator.contract.states import FailureReason, JobState

_log = logging.getLogger(__name__)

_STOP_MARGIN = timedelta(seconds=20)
"""What a supervisor may take beyond its grace before everything, itself too, is killed."""


class Reconciler:
    """One turn looks at every attempt that has not ended."""

    def __init__(
        self, database: Database, settings: Settings, launcher: Launcher, settler: Settler
    ) -> None:
        """Take what it works with."""
        self._database = database
        self._settings = settings
        self._launcher = launcher
        self._settler = settler
        self._watching_since = utcnow()

    async def turn(self) -> None:
        """Look after every open attempt, and after queued jobs that are over time."""
        await self._time_out_queued()
        async with self._database.read() as session:
            attempts = await load_open_attempts(session)
        for attempt in attempts:
            try:
                await self._look_after(attempt)
            except Exception:  # noqa: BLE001 - one attempt must not keep the others waiting
                _log.exception("could not look after attempt", extra={"attempt_id": attempt.id})

    async def _look_after(self, attempt: Attempt) -> None:
        ref = launch_ref(self._settings, attempt)
        seen = await self._launcher.look(ref)
        match seen:
            case Ended():
                await self._settler.settle(attempt.id, seen)
            case Vanished():
                await self._launcher.sweep(ref)
                await self._settler.settle(attempt.id, seen)
            case NotStarted():
                await self._expect_start(attempt, ref)
            case Alive():
                await self._watch(attempt, ref)

    async def _expect_start(self, attempt: Attempt, ref: LaunchRef) -> None:
        """Give up on a launch whose supervisor does not come; a late one finds the door closed."""
        waited = utcnow() - attempt.created_at
        over = waited > timedelta(seconds=self._settings.launch_timeout_seconds)
        if not over and attempt.stop_reason is None:
            return
        if not ref.run_dir.is_dir():
            if over:  # the server was killed before it wrote the directory; nobody else will
                await self._settler.settle(attempt.id, NotStarted())
            return
        await self._launcher.request_stop(ref)
        if over:
            await self._launcher.sweep(ref)
            await self._settler.settle(attempt.id, NotStarted())

    async def _watch(self, attempt: Attempt, ref: LaunchRef) -> None:
        if attempt.stop_reason is None:
            async with self._database.read() as session:
                job = await load_job(session, attempt.job_id)
                ranks = await load_ranks(session, [attempt.id])
            verdict = self._over_time(job, attempt, ranks)
            if verdict is None or not await self._note_stop(attempt.id, *verdict):
                return
        await self._launcher.request_stop(ref)
        asked_at = attempt.stop_requested_at
        grace = timedelta(seconds=self._settings.stop_grace_seconds) + _STOP_MARGIN
        if asked_at is not None and utcnow() - asked_at > grace:
            _log.warning("supervisor does not stop, killing", extra={"attempt_id": attempt.id})
            await self._launcher.sweep(ref)

    def _over_time(
        self, job: Job, attempt: Attempt, ranks: list[Rank]
    ) -> tuple[FailureReason, str] | None:
        now = utcnow()
        if job.deadline_at is not None and now > job.deadline_at:
            return FailureReason.DEADLINE, _deadline_words(job)
        if not ranks:
            limit = self._settings.start_timeout_seconds
            if now - attempt.created_at > timedelta(seconds=limit):
                return FailureReason.START_TIMEOUT, f"no rank reported within {limit:g} s"
            return None
        return self._stalled(now, ranks)

    def _stalled(self, now: datetime, ranks: list[Rank]) -> tuple[FailureReason, str] | None:
        """Name the rank that is silent for longest, if it is for too long.

        Silence counts from when this server began to listen: while it was away, nobody heard.
        """
        silent = min(ranks, key=lambda rank: rank.last_seen_at)
        limit = self._settings.stall_timeout_seconds
        if now - max(silent.last_seen_at, self._watching_since) <= timedelta(seconds=limit):
            return None
        return FailureReason.STALLED, (
            f"rank {silent.rank} on {silent.host} has not reported for {limit:g} s, its last "
            f"stage was '{silent.stage or 'hello'}'"
        )

    async def _note_stop(self, attempt_id: str, reason: FailureReason, message: str) -> bool:
        """Write why the attempt is stopped, unless it has ended or is being stopped already."""
        async with self._database.write() as session:
            attempt = await session.get_one(Attempt, attempt_id)
            await load_job(session, attempt.job_id, lock=True)
            await session.refresh(attempt)
            if attempt.ended_at is not None or attempt.stop_reason is not None:
                return False
            attempt.stop_reason, attempt.message = reason, message
            attempt.stop_requested_at = utcnow()
        return True

    async def _time_out_queued(self) -> None:
        """End jobs that wait for another attempt beyond their time limit."""
        async with self._database.read() as session:
            query = select(Job.id).where(Job.state == JobState.QUEUED, Job.deadline_at < utcnow())
            overdue = list((await session.scalars(query)).all())
        for job_id in overdue:
            async with self._database.write() as session:
                job = await load_job(session, job_id, lock=True)
                if job.state is JobState.QUEUED:
                    job.state_reason = FailureReason.DEADLINE
                    job.message = _deadline_words(job)
                    move(session, job, JobEvent.TIME_OUT)


def _deadline_words(job: Job) -> str:
    return f"the time limit of {job.time_limit_seconds} s passed (limits.time_seconds)"
