"""What a project sees of the database: what is its own. This is the one place that keeps it so.

`Database.within` gives sessions of this class to whoever acts for a project. Every statement on
what belongs to projects (`OfProject`) then finds that project's alone, so the others' are not
there (404) without a word of it in routes and use cases. What belongs to a job is reached by way
of its job.
"""

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from app.models import Base, OfProject

PROJECT = "project"
"""Where a session's `info` has the project."""


class ProjectSession(Session):
    """A session of one project."""


@event.listens_for(ProjectSession, "do_orm_execute")
def _confine(state: ORMExecuteState) -> None:
    """Add the project to whatever a statement asks of what projects own, sub-queries included."""
    project = state.session.info[PROJECT]
    owned = (mapper.class_ for mapper in Base.registry.mappers)
    state.statement = state.statement.options(
        *(
            with_loader_criteria(each, each.project == project)
            for each in owned
            if issubclass(each, OfProject)
        )
    )
