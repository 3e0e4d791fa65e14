"""Writes statuses in the transaction that moves their jobs: both are committed, or neither is."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.jobs.repository import Move, in_parts, moves_of
from app.models import CommitStatus, JobCommit
from app.statuses.reporting import tell
from app.statuses.told import Told, tell_job
from evaluator.contract.states import JobState


async def note_statuses(session: AsyncSession) -> None:
    """Let the commits of the jobs that have moved say so; called before each commit."""
    moves = {each.job.id: each for each in moves_of(session)}  # the last one of each job
    for job_ids in in_parts(moves):
        query = (
            select(JobCommit, CommitStatus)
            .join(CommitStatus, CommitStatus.id == JobCommit.status_id)
            .where(JobCommit.job_id.in_(job_ids))
            .order_by(CommitStatus.id)
            .with_for_update(of=CommitStatus)
            .execution_options(populate_existing=True)
        )
        for commit, status in (await session.execute(query)).all():
            move = moves[commit.job_id]
            tell(status, _told(move, commit), now=move.at)


def _told(move: Move, commit: JobCommit) -> Told:
    state: JobState = move.data["state"]
    return tell_job(
        move.job.id,
        state,
        reason=move.data["state_reason"],
        result=move.job.result if state is JobState.SUCCEEDED else None,
        awaits_verdict=commit.awaits_verdict,
    )
