"""What all tables share: column types, constraint names, and whose a row is."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
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
