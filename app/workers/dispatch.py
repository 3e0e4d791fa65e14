"""Takes queued jobs, highest priority first, as long as slots are free, and launches them.

The job at the head of a device's queue is never overtaken: a large job waits, but it does not
starve.
"""

import logging
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import ApiError
from app.ids import hash_token, new_id, new_token
from app.jobs.repository import move, utcnow
from app.jobs.transitions import JobEvent
from app.launchers.base import Launcher, LaunchError, NotStarted
from app.models import Attempt, Job
from app.settings import Settings
from app.workers.launching import Claimed, launch_ref, prepare
from app.workers.settle import Settler
from app.workers.warm import WarmPool, give_order
from evaluator.contract.states import FailureReason, JobState

_log = logging.getLogger(__name__)


class Dispatcher:
    """One turn launches all that fits."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        launcher: Launcher,
        settler: Settler,
        pool: WarmPool,
    ) -> None:
        """Take what it works with."""
        self._pool = pool
        self._database = database
        self._settings = settings
        self._launcher = launcher
        self._settler = settler

    async def turn(self) -> None:
        """Launch every job that fits now."""
        for device in ("cpu", "cuda"):
            while (claimed := await self._claim(device)) is not None:
                await self._launch(claimed)

    async def _claim(self, device: str) -> Claimed | None:
        """Make the attempt of the next job, if it fits. The launch follows after the commit."""
        async with self._database.write() as session:
            job = await _head_of_queue(session, device)
            if job is None:
                return None
            used_slots, used_gpus = await _in_use(session, device)
            if used_slots + job.num_ranks > self._settings.slots(device):
                return None
            free_gpus = [gpu for gpu in range(self._settings.gpu_slots) if gpu not in used_gpus]
            token = new_token()
            warm = self._pool.ready() if _has_one_node(job) else None
            attempt = _claim(
                job,
                token,
                launch_id=new_id("lnc") if warm is None else warm.launch_id,
                gpus=free_gpus[: job.num_ranks] if device == "cuda" else [],
            )
            session.add(attempt)
            move(session, job, JobEvent.CLAIM)
        return Claimed(job, attempt, token, warm)

    async def _launch(self, claimed: Claimed) -> None:
        try:
            if claimed.warm is not None:
                self._pool.hand_over(
                    claimed.warm, launch_ref(self._settings, claimed.attempt).run_dir
                )
            launch = await prepare(claimed, self._database, self._settings)
            if claimed.warm is None:
                await self._launcher.start(launch)
            else:
                give_order(launch, claimed.job.num_ranks)
        except ApiError as error:
            await self._give_up(claimed, _reason_of(error), error.detail)
        except (LaunchError, OSError) as error:
            _log.exception("launch failed", extra={"attempt_id": claimed.attempt.id})
            await self._give_up(claimed, FailureReason.LAUNCH_FAILED, f"launch failed: {error}")
        except Exception as error:  # noqa: BLE001 - an edge: the attempt must not hang on a defect
            _log.exception("launch failed", extra={"attempt_id": claimed.attempt.id})
            message = f"the launch could not be prepared ({error!r}): see the server's log"
            await self._give_up(claimed, FailureReason.INTERNAL, message)

    async def _give_up(self, claimed: Claimed, reason: FailureReason, message: str) -> None:
        """End an attempt that could not be launched; its run directory may not even exist."""
        ref = launch_ref(self._settings, claimed.attempt)
        if ref.run_dir.is_dir():  # a supervisor that comes up late must find the door closed
            await self._launcher.request_stop(ref)
        await self._settler.settle(
            claimed.attempt.id, NotStarted(), default_reason=reason, default_message=message
        )


def _reason_of(error: ApiError) -> FailureReason:
    """Say what is wrong with the request now; trying again would not change it."""
    if error.code in set(FailureReason):
        return FailureReason(error.code)
    about_data = (error.pointer or "").startswith("/data")
    return FailureReason.DATA_NOT_FOUND if about_data else FailureReason.MODEL_NOT_FOUND


async def _head_of_queue(session: AsyncSession, device: str) -> Job | None:
    # Not by sorting, which would read the whole queue: the index gives the highest priority, and
    # the oldest of those that have it.
    queued = Job.state == JobState.QUEUED, Job.device == device
    highest = select(func.max(Job.priority)).where(*queued).scalar_subquery()
    query = (
        select(Job)
        .where(*queued, Job.priority >= highest)
        .order_by(Job.priority, Job.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return (await session.scalars(query)).one_or_none()


async def _in_use(session: AsyncSession, device: str) -> tuple[int, set[int]]:
    """Return the slots and the GPUs of attempts whose processes may still be there."""
    query = (
        select(Job.num_ranks, Attempt.gpus)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.ended_at.is_(None), Job.device == device)
    )
    rows = (await session.execute(query)).all()
    return sum(row[0] for row in rows), {gpu for row in rows for gpu in row[1]}


def _has_one_node(job: Job) -> bool:
    """Whether one agent is enough. What is wrong with a request is told when it is prepared."""
    launch = job.request.get("launch")
    return isinstance(launch, dict) and launch.get("nodes") == 1


def _claim(job: Job, token: str, *, launch_id: str, gpus: list[int]) -> Attempt:
    """Count the attempt and make its row; the first one starts the job's clock."""
    now = utcnow()
    job.attempt += 1
    job.attempts_left -= 1
    job.stage = None
    job.state_reason, job.message = None, None
    if job.started_at is None:
        job.started_at = now
        job.deadline_at = now + timedelta(seconds=job.time_limit_seconds)
    return Attempt(
        id=new_id("att"),
        job_id=job.id,
        number=job.attempt,
        launch_id=launch_id,
        token_hash=hash_token(token),
        created_at=now,
        gpus=gpus,
    )
