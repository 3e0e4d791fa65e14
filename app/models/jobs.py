"""Jobs, their attempts, ranks, ledgers and events."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Index,
    String,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, OfProject
from evaluator.contract.states import FailureReason, JobState


class Job(OfProject, Base):
    """One evaluation asked for."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_queue", "state", "device", "priority", "id"),
        Index("ix_jobs_state_deadline_at", "state", "deadline_at"),
        Index("ix_jobs_created_at_id", "created_at", "id"),
        Index("ix_jobs_state_created_at_id", "state", "created_at", "id"),
        Index("ix_jobs_project_created_at_id", "project", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    state: Mapped[JobState]
    state_reason: Mapped[FailureReason | None]
    message: Mapped[str | None]
    version: Mapped[int]
    """Grows with each change; the ETag, and the number of the change's event."""
    request: Mapped[dict[str, Any]]
    priority: Mapped[int]
    device: Mapped[str] = mapped_column(String(8))
    num_ranks: Mapped[int]
    """Slots it takes."""
    attempt: Mapped[int]
    """Number of the current attempt, the fencing token; 0 before the first."""
    attempts_left: Mapped[int]
    time_limit_seconds: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    plan: Mapped[dict[str, Any] | None]
    """A contract `PlanFacts`."""
    model_digest: Mapped[str | None] = mapped_column(String(80))
    """Of the weights that scored the ledger."""
    group_shape: Mapped[dict[str, Any] | None]
    """A contract `GroupShape`: of the scoring groups that scored the ledger."""
    stage: Mapped[str | None] = mapped_column(String(20))
    num_batches_done: Mapped[int]
    num_scored_tokens_done: Mapped[int]
    result: Mapped[dict[str, Any] | None]
    """A contract `Result` of the current attempt."""


class JobLabel(Base):
    """A word to find a job by."""

    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_key_value", "key", "value", "job_id"),)

    job_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))


class Attempt(Base):
    """One launch of a job."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_attempts_ended_at", "ended_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    launch_id: Mapped[str] = mapped_column(String(64))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """First report of a rank."""
    ended_at: Mapped[datetime | None]
    """No process of it is left, and its outcome is written."""
    stop_reason: Mapped[FailureReason | None]
    """Why it was asked to stop."""
    stop_requested_at: Mapped[datetime | None]
    reason: Mapped[FailureReason | None]
    message: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    """The contract `Failure` that names the cause best."""
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    gpus: Mapped[list[int]]
    """Indices of the GPUs it holds; empty on CPU."""


class Rank(Base):
    """A process of an attempt, as it last reported."""

    __tablename__ = "ranks"

    attempt_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True
    )
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node_rank: Mapped[int]
    local_rank: Mapped[int]
    host: Mapped[str]
    device: Mapped[str]
    last_seq: Mapped[int]
    """Number of the last report taken; older ones are repetitions."""
    last_seen_at: Mapped[datetime]
    stage: Mapped[str | None] = mapped_column(String(20))
    timing: Mapped[dict[str, Any] | None]
    """A contract `RankTiming`."""
    quarantined: Mapped[bool] = mapped_column(server_default=false())
    """The audit found it to be wrong: none of its batches count."""


class LedgerRow(Base):
    """A finished batch. Written once, unless the audit has it scored again.

    A repetition must carry the same bytes; of several rounds of the audit the last one counts.
    """

    __tablename__ = "ledger"

    job_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    batch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    rank: Mapped[int]
    nll_nats: Mapped[bytes]
    """Little-endian float64, one a window."""
    nll_squares: Mapped[bytes | None]
    """The same, sums of squares; null where an older server wrote the row."""
    num_scored: Mapped[bytes]
    """Little-endian int64, one a window."""
    nll_by_context: Mapped[bytes | None]
    """Little-endian float64, one a bucket; null where an older server wrote the row."""
    round: Mapped[int] = mapped_column(server_default="0")
    num_windows: Mapped[int] = mapped_column(server_default="0")
    num_scored_tokens: Mapped[int] = mapped_column(server_default="0")
    """Sum of `num_scored`, so that the database can count who scored how much."""


class NodeSpeedRow(Base):
    """How fast a node was with a model, when it was last measured."""

    __tablename__ = "node_speeds"
    __table_args__ = (Index("ix_node_speeds_updated_at", "updated_at"),)

    model_digest: Mapped[str] = mapped_column(String(80), primary_key=True)
    host: Mapped[str] = mapped_column(String(200), primary_key=True)
    device: Mapped[str] = mapped_column(String(8), primary_key=True)
    dtype: Mapped[str] = mapped_column(String(20), primary_key=True)
    threads_per_rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    speeds: Mapped[dict[str, Any]]
    """Seconds per input token by the length of windows, a power of two."""
    updated_at: Mapped[datetime]


class Event(Base):
    """Something that happened to a job; append-only, the source of the stream."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(String(20))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
