"""What a project sees of the database: its own jobs. This is the one place that keeps it so.

`Database.within` gives sessions of this class to whoever acts for a project. Every statement on
jobs then finds that project's alone, so the others' are not there (404) without a word of it in
routes and use cases. What belongs to a job is reached by way of its job.
"""

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from app.models import Job

PROJECT = "project"
"""Where a session's `info` has the project."""


class ProjectSession(Session):
    """A session of one project."""


@event.listens_for(ProjectSession, "do_orm_execute")
def _confine(state: ORMExecuteState) -> None:
    """Add the project to whatever a statement asks of jobs, sub-queries included."""
    project = state.session.info[PROJECT]
    state.statement = state.statement.options(with_loader_criteria(Job, Job.project == project))
