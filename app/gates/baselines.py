"""Which job a candidate is compared with: named, found by labels, or promoted under a name."""

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import BaselineNotFound
from app.gates.rules import BaselineSelector, JobBaseline, PromotedBaseline
from app.jobs.paging import JobQuery, page_query
from app.jobs.records import public_result
from app.jobs.repository import load_job, utcnow
from app.models import Baseline, Job
from evaluator.contract.states import JobState


async def promote(database: Database, name: str, job_id: str) -> tuple[Baseline, bool]:
    """Make a job that has succeeded its project's baseline of this name, instead of another.

    Returns:
        The baseline, and whether the name is new.

    Raises:
        JobNotFound: there is no such job.
        ResultNotReady: it has not succeeded.
    """
    async with database.write() as session:
        job = await load_job(session, job_id, lock=True)
        public_result(job)
        is_new = await _find(session, job.project, name) is None
        now = utcnow()
        dialect = session.get_bind().dialect.name
        insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
        values = {"job_id": job_id, "promoted_at": now}
        key = {"project": job.project, "name": name}
        statement = insert(Baseline).values(**key, **values)
        await session.execute(
            statement.on_conflict_do_update(index_elements=list(key), set_=values)
        )
    return Baseline(**key, **values), is_new


async def load_baseline(database: Database, name: str) -> Baseline:
    """Return what was promoted under a name.

    Raises:
        BaselineNotFound: nothing was.
    """
    async with database.read() as session:
        found = await _find(session, database.home, name)
    if found is None:
        raise BaselineNotFound(_never_promoted(name))
    return found


async def find_baseline(
    session: AsyncSession, wanted: BaselineSelector, candidate: Job
) -> tuple[str | None, str]:
    """Return the id of the job to compare with, or null and one sentence on why there is none.

    A job that was named by its id is not looked up.
    """
    if isinstance(wanted, JobBaseline):
        return wanted.job, ""
    if isinstance(wanted, PromotedBaseline):
        found = await _find(session, candidate.project, wanted.name)
        return (found.job_id, "") if found else (None, _never_promoted(wanted.name))
    query = JobQuery(
        states=(JobState.SUCCEEDED,),
        labels=tuple(wanted.labels.items()),
        created_before=candidate.created_at,
        limit=1,
    )
    statement = page_query(query).where(Job.project == candidate.project)
    job = (await session.scalars(statement)).first()
    if job is not None:
        return job.id, ""
    words = ", ".join(f"{key}={value}" for key, value in wanted.labels.items())
    return None, (
        f"No job labelled {words} that was submitted before the candidate has succeeded: run one, "
        "or name another baseline."
    )


async def _find(session: AsyncSession, project: str, name: str) -> Baseline | None:
    return await session.get(Baseline, (project, name))


def _never_promoted(name: str) -> str:
    return (
        f"No job was promoted as {name!r}: promote one (assay promote JOB --name {name}), or name "
        "another baseline."
    )
