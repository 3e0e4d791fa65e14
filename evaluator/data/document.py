"""What a source yields."""

import re
from typing import NamedTuple

from evaluator.errors import DataEncoding, FieldMissing

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class Document(NamedTuple):
    """One text, and where it came from in words that a message can use."""

    text: str
    place: str
    num_replaced: int = 0
    """Invalid sequences that became U+FFFD, where that was asked for."""
    original: str | None = None
    """The text before it was detokenised; null where nothing was changed."""

    @property
    def counted(self) -> str:
        """The text whose bytes and words are counted: as it was published."""
        return self.text if self.original is None else self.original


def replace_half_pairs(document: Document) -> Document:
    """Turn each half of a surrogate pair, which no UTF-8 can carry, into U+FFFD and count it."""
    text, count = _HALF_PAIR.subn("\ufffd", document.text)
    return document._replace(text=text, num_replaced=document.num_replaced + count)


def utf8_of(document: Document) -> bytes:
    """The text as bytes.

    Raises:
        DataEncoding: It holds half a surrogate pair.
    """
    try:
        return document.text.encode("utf-8")
    except UnicodeEncodeError as error:
        msg = (
            f"{document.place}: character {error.start} is half a surrogate pair, which is no "
            "text; mend it, or ask for data.errors: replace"
        )
        raise DataEncoding(msg) from error


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
