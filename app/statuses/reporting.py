"""Who writes to a commit's status, and what it is to say; all of it in the caller's session.

A job's row is locked before that of its status. Of two jobs on one status the newer one is told:
ids of jobs sort by time.
"""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import CommitFixed
from app.gates.verdict import Verdict
from app.ids import new_id
from app.jobs.repository import utcnow
from app.models import CommitStatus, Job, JobCommit
from app.notify.messages import DeliveryState
from app.notify.schedule import NUM_TRIES
from app.statuses.target import CommitTarget
from app.statuses.told import Inconclusive, Told, is_open, tell_job, tell_verdict
from evaluator.contract.states import JobState


async def attach(
    session: AsyncSession, job: Job, target: CommitTarget, *, awaits_verdict: bool = False
) -> CommitStatus:
    """Report a locked job to a commit from now on, beginning with its present state.

    Attaching it to the same commit again changes nothing, but that a status which was given up is
    tried again.

    Args:
        session: the caller's; the job's row is in the database.
        job: it belongs to this one commit for good.
        target: the commit; `app.statuses.service.check_target` says whether it may be told.
        awaits_verdict: its success is told by `report_verdict` only. Whoever asks for this has to
            call that, or the commit stays pending.

    Raises:
        CommitFixed: the job is reported to another commit already.
    """
    known = await session.get(JobCommit, job.id)
    if known is not None:
        status = await lock_status(session, known.status_id)
        if status.key != target.key:
            msg = (
                f"job {job.id} is reported to {status.forge}:{status.repository}@{status.sha} as "
                f"{status.context!r}, and stays there: submit another job"
            )
            raise CommitFixed(msg)
        if status.state is DeliveryState.FAILED and status.job_id == job.id:
            arm(status, utcnow())
        return status
    told = _tell(job, awaits_verdict)
    status, is_new = await _find_or_make(session, target, told)
    session.add(JobCommit(job_id=job.id, status_id=status.id, awaits_verdict=awaits_verdict))
    if not is_new:
        _contend(status, told)
    await session.flush()
    return status


async def report_verdict(
    session: AsyncSession,
    job: Job,
    verdict: Verdict,
    sentence: str,
    *,
    inconclusive: Inconclusive = "failure",
) -> None:
    """Tell the verdict on a locked job that has succeeded; nothing is done if it has no commit.

    In a later transaction than the one that ended the job, whose state would be told instead.

    Args:
        session: the caller's.
        job: the candidate.
        verdict: of its gate.
        sentence: why, cut to what a status holds.
        inconclusive: what a verdict of neither kind is told as (`ASSAY_COMMIT_INCONCLUSIVE`).
    """
    known = await session.get(JobCommit, job.id)
    if known is None:
        return
    known.awaits_verdict = False
    tell(
        await lock_status(session, known.status_id),
        tell_verdict(job.id, verdict, sentence, inconclusive),
    )


async def lock_status(session: AsyncSession, status_id: str) -> CommitStatus:
    """Return a status that a job belongs to, as it is now, with its row locked."""
    query = select(CommitStatus).where(CommitStatus.id == status_id).with_for_update()
    return (await session.scalars(query, execution_options={"populate_existing": True})).one()


def tell(status: CommitStatus, told: Told, *, now: datetime | None = None) -> None:
    """Let a locked status say what its newest job is told as; what older jobs are is counted."""
    if told.job_id != status.job_id:
        status.num_dropped += 1
    elif told != told_of(status):
        _write(status, told)
        arm(status, now or utcnow())


def told_of(status: CommitStatus) -> Told:
    """Return what a status is to say."""
    return Told(status.job_id, status.wanted, status.description)


def note_sent(status: CommitStatus, told: Told) -> None:
    """Note that the forge has taken `told`, maybe of a job that a newer one has followed."""
    is_over = told.job_id != status.job_id and not is_open(told.state)
    status.sent = None if is_over else told.state


def arm(status: CommitStatus, now: datetime) -> None:
    """Let a locked status be sent as soon as may be, with its full number of tries."""
    status.state, status.tries_left = DeliveryState.PENDING, NUM_TRIES
    status.due_at = now if status.held_until is None else max(now, status.held_until)


def _contend(status: CommitStatus, told: Told) -> None:
    """Let a job have a locked status of other jobs if it is the newest."""
    if told.job_id > status.job_id:
        if status.state is DeliveryState.PENDING:
            status.num_dropped += 1
        if not is_open(status.sent):
            status.sent = None  # the end of another job is nothing to go on from
        status.job_id = told.job_id
        _write(status, told)
        arm(status, utcnow())
    else:
        status.num_dropped += 1


def _write(status: CommitStatus, told: Told) -> None:
    status.wanted, status.description = told.state, told.description
    status.updated_at = utcnow()


def _tell(job: Job, awaits_verdict: bool) -> Told:
    result = job.result if job.state is JobState.SUCCEEDED else None
    return tell_job(
        job.id,
        job.state,
        reason=job.state_reason,
        result=result,
        awaits_verdict=awaits_verdict,
    )


async def _find_or_make(
    session: AsyncSession, target: CommitTarget, told: Told
) -> tuple[CommitStatus, bool]:
    """Return the locked status of a target, and whether it is new."""
    now, made_id = utcnow(), new_id("cs")
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = insert(CommitStatus).values(
        id=made_id,
        key=target.key,
        **target.model_dump(),
        job_id=told.job_id,
        wanted=told.state,
        description=told.description,
        state=DeliveryState.PENDING,
        num_dropped=0,
        num_tries=0,
        tries_left=NUM_TRIES,
        created_at=now,
        updated_at=now,
        due_at=now,
    )
    await session.execute(values.on_conflict_do_nothing(index_elements=["key"]))
    found = select(CommitStatus.id).where(CommitStatus.key == target.key)
    status = await lock_status(session, (await session.scalars(found)).one())
    return status, status.id == made_id
