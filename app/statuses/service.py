"""Use cases: report a job to a commit, and look at what the commit was told."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import CommitNotFound, ForgeNotConfigured, RepositoryNotAllowed
from app.jobs.repository import load_job, no_job
from app.models import CommitStatus, JobCommit
from app.settings import Settings
from app.statuses.badge import Badge, badge_of
from app.statuses.forges import apis
from app.statuses.reporting import attach
from app.statuses.target import CommitTarget


@dataclass(frozen=True)
class CommitRecord:
    """The commit of a job, and its status, which may be a newer job's."""

    commit: JobCommit
    status: CommitStatus

    @property
    def is_superseded(self) -> bool:
        """Whether a newer job reports there."""
        return self.status.job_id != self.commit.job_id


def check_target(target: CommitTarget, project: str, settings: Settings) -> None:
    """Refuse a commit that jobs of this project are not reported to.

    Raises:
        ForgeNotConfigured: the server has no token for the forge.
        RepositoryNotAllowed: the settings do not let the project report to the repository.
    """
    if target.forge not in apis(settings):
        msg = (
            f"this server reports nothing to {target.forge}: set "
            f"ASSAY_{target.forge.upper()}_TOKEN to a token that may write statuses"
        )
        raise ForgeNotConfigured(msg, pointer="/forge")
    written = f"{project}={target.forge}:{target.repository}".lower()
    if not any(fnmatchcase(written, each.lower()) for each in settings.commit_repositories):
        msg = (
            f"jobs of the project {project} are not reported to {target.forge}:"
            f"{target.repository}: ASSAY_COMMIT_REPOSITORIES names the pairs that are"
        )
        raise RepositoryNotAllowed(msg, pointer="/repository")


class CommitService:
    """The use cases. `wake` tells the workers that there is something to send."""

    def __init__(self, database: Database, settings: Settings, wake: Callable[[], None]) -> None:
        """Take what the use cases need."""
        self._database = database
        self._settings = settings
        self._wake = wake

    def on(self, database: Database) -> "CommitService":
        """Return the use cases on this database, which may be confined to a project."""
        return CommitService(database, self._settings, self._wake)

    async def set(self, job_id: str, target: CommitTarget) -> CommitRecord:
        """Report a job to a commit, beginning with its present state.

        Raises:
            JobNotFound: there is none with this id.
            ForgeNotConfigured, RepositoryNotAllowed: the commit may not be told.
            CommitFixed: the job is reported to another commit already.
        """
        async with self._database.write() as session:
            job = await load_job(session, job_id, lock=True)
            check_target(target, job.project, self._settings)
            await attach(session, job, target)
            record = await _load(session, job_id)
        self._wake()
        return record

    async def get(self, job_id: str) -> CommitRecord:
        """Return the commit of a job.

        Raises:
            JobNotFound: there is none with this id.
            CommitNotFound: it is reported to none.
        """
        async with self._database.read() as session:
            await load_job(session, job_id)
            return await _load(session, job_id)

    async def badge(self, job_id: str) -> Badge:
        """Return the badge of a job whose project lets anybody see it.

        Raises:
            JobNotFound: there is none with this id, or its project does not.
        """
        async with self._database.read() as session:
            job = await load_job(session, job_id)
        if job.project not in self._settings.public_badges:
            raise no_job(job_id)
        return badge_of(job.state, job.result)


async def _load(session: AsyncSession, job_id: str) -> CommitRecord:
    commit = await session.get(JobCommit, job_id)
    status = None if commit is None else await session.get(CommitStatus, commit.status_id)
    if commit is None or status is None:
        msg = f"job {job_id} is reported to no commit: PUT /v1/jobs/{job_id}/commit names one"
        raise CommitNotFound(msg)
    return CommitRecord(commit, status)
