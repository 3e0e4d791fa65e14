"""What all answers share: their base, and how times and durations are written."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema


def format_time(value: datetime) -> str:
    """Return RFC 3339 with microseconds and `Z`."""
    text = value.astimezone(UTC).isoformat(timespec="microseconds")
    return text.removesuffix("+00:00") + "Z"


Time = Annotated[
    datetime,
    PlainSerializer(format_time, return_type=str),
    WithJsonSchema(
        {"type": "string", "format": "date-time", "examples": ["2026-03-01T12:00:00.000000Z"]}
    ),
]
"""A time in UTC."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]
DurationSeconds = Annotated[float, Field(ge=0)]


class View(BaseModel):
    """Base of what is answered. New fields may be added at any time."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)
