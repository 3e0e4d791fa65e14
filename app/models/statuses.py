"""Commits that are told of jobs, and what each was told last."""

from datetime import datetime

from sqlalchemy import Boolean, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Word
from app.models.tries import Tried
from app.statuses.target import Forge
from app.statuses.told import CommitState


class CommitStatus(Tried, Base):
    """The status of a commit under one context: a place that the newest of its jobs writes to.

    Its row is sent, not a message: whatever it says when a try begins. So a forge never has an
    older state over a newer one, and what was overtaken is not sent at all.
    """

    __tablename__ = "commit_statuses"
    __table_args__ = (Index("ix_commit_statuses_state_due_at", "state", "due_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """Of the target, by which two are the same."""
    forge: Mapped[Forge] = mapped_column(Word(Forge))
    repository: Mapped[str]
    sha: Mapped[str] = mapped_column(String(64))
    context: Mapped[str]
    job_id: Mapped[str] = mapped_column(String(40))
    """The newest of its jobs. No foreign key: what was told outlives the job."""
    wanted: Mapped[CommitState] = mapped_column(Word(CommitState))
    """What it is to say."""
    description: Mapped[str]
    sent: Mapped[CommitState | None] = mapped_column(Word(CommitState))
    """What the forge has taken last."""
    held_until: Mapped[datetime | None]
    """Nothing is sent before: a try is under way, or the forge has asked to wait."""
    num_dropped: Mapped[int]
    """Statuses of older jobs that were not sent, because a newer job reports here."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class JobCommit(Base):
    """The commit that a job is reported to."""

    __tablename__ = "job_commits"
    __table_args__ = (Index("ix_job_commits_status_id", "status_id"),)

    job_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    status_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("commit_statuses.id", ondelete="CASCADE")
    )
    awaits_verdict: Mapped[bool] = mapped_column(Boolean)
    """Its success is not told before a gate has judged it."""
