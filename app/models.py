"""The tables. Times are aware and UTC; constraints have fixed names for the migrations."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.notify.messages import DeliveryState
from evaluator.contract.states import FailureReason, JobState

DEFAULT_PROJECT = "default"
"""Of the jobs that nobody's token asked for, or one of all projects."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite has no time zones, so it is stored there without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times; write UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"naive time {value}"
            raise ValueError(msg)
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class Sentence(TypeDecorator[str]):
    """Text that may come from anywhere; what PostgreSQL can't store becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace NUL and halves of surrogate pairs."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode(errors="replace").decode()


class Word(TypeDecorator[Any]):
    """A member of a string enum, stored as its value."""

    impl = String(40)
    cache_ok = True

    def __init__(self, enum: type[StrEnum]) -> None:
        """Take the enum whose members are stored."""
        super().__init__()
        self.enum = enum

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write the value."""
        return None if value is None else self.enum(value).value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Read the member."""
        return None if value is None else self.enum(value)


class Base(DeclarativeBase):
    """Root of the mapped classes."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's way to map annotations
        datetime: UtcDateTime(),
        int: BigInteger(),
        str: Sentence(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(none_as_null=True),
        list[int]: JSON(),
        list[str]: JSON(),
        JobState: Word(JobState),
        FailureReason: Word(FailureReason),
        DeliveryState: Word(DeliveryState),
    }


class OfProject:
    """What belongs to a project: callers of another one do not see it (`app.auth.projects`)."""

    project: Mapped[str] = mapped_column(
        String(64), default=DEFAULT_PROJECT, server_default=DEFAULT_PROJECT
    )
    """Whose it is; never changes."""


class Token(Base):
    """A bearer token; the secret itself is not kept. Rows stay after the token is revoked."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[str] = mapped_column(String(200))
    """Words of `app.auth.tokens.Scope`, with spaces between them."""
    project: Mapped[str | None] = mapped_column(String(64))
    """Null: all of them."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Written at most once a minute."""


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


class Baseline(OfProject, Base):
    """A job that others of its project are compared with, under a name."""

    __tablename__ = "baselines"

    project: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"))
    promoted_at: Mapped[datetime]


class WebhookEndpoint(OfProject, Base):
    """An address that is told what happens to the jobs of a project."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str]
    description: Mapped[str | None]
    events: Mapped[list[str]]
    """Members of `EventType`."""
    disabled_reason: Mapped[str | None]
    """Null while it is enabled."""
    secret: Mapped[str]
    """In clear, because each message is signed with it."""
    previous_secret: Mapped[str | None]
    previous_expires_at: Mapped[datetime | None]
    """Until when messages are signed with the previous secret too."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class WebhookDelivery(Base):
    """A message to one endpoint, and what came of its last try."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_state_due_at", "state", "due_at"),
        Index("ix_webhook_deliveries_endpoint_id_id", "endpoint_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sent as `webhook-id`, the same at every try."""
    endpoint_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("webhook_endpoints.id", ondelete="CASCADE")
    )
    event: Mapped[str] = mapped_column(String(40))
    job_id: Mapped[str | None] = mapped_column(String(40))
    """No foreign key: what was sent outlives the job."""
    body: Mapped[str]
    """Exactly what is sent."""
    state: Mapped[DeliveryState]
    created_at: Mapped[datetime]
    due_at: Mapped[datetime | None]
    """Of the next try; while one is under way, when it counts as broken off. Null at the end."""
    num_tries: Mapped[int]
    """Tries begun, ever: the fencing token of the one under way."""
    tries_left: Mapped[int]
    last_try_at: Mapped[datetime | None]
    status_code: Mapped[int | None]
    latency_seconds: Mapped[float | None] = mapped_column(Double)
    response: Mapped[str | None]
    """The beginning of the answer's body."""
    error: Mapped[str | None]
    """Why the last try does not count as delivered."""
