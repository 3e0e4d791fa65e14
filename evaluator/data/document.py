"""What a source yields."""

from typing import NamedTuple

from evaluator.errors import FieldMissing


class Document(NamedTuple):
    """One text, and where it came from in words that a message can use."""

    text: str
    place: str


def text_field(value: object, field: str, place: str) -> str:
    """The value where it is text.

    Raises:
        FieldMissing: It is something else.
    """
    if isinstance(value, str):
        return value
    kind = "null" if value is None else type(value).__name__
    msg = f"{place}: field {field!r} is no text but {kind}"
    raise FieldMissing(msg)


def missing_field(field: str, fields: list[str], place: str) -> FieldMissing:
    """The error for a record without the field, which names the fields that are there."""
    there = ", ".join(repr(name) for name in fields[:20]) or "no field at all"
    return FieldMissing(f"{place}: there is no field {field!r}, but {there}; name it in data.field")
