"""Where in a document a validation error is, and its words: all that knows how pydantic tells."""

from collections.abc import Mapping, Sequence
from typing import Any

_KEY = "[key]"
"""What pydantic appends when the name of a member is wrong, not its value."""

Location = Sequence[str | int]


def without_echoes(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors less those that only follow from another one.

    Pydantic counts the items of a list that were right, so a list that is long enough is also said
    to be too short where one of them was wrong.
    """
    places = [tuple(error["loc"]) for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if error["type"] != "too_short"
        or not any(len(one) > len(place) and one[: len(place)] == place for one in places)
    ]


def words_of(error: Mapping[str, Any]) -> str:
    """Return what is wrong, in words that need no knowledge of the library.

    Args:
        error: one of pydantic's.
    """
    context = error.get("ctx", {})
    match error["type"], context:
        case "union_tag_not_found", {"discriminator": name}:
            return f"it lacks {name}, which says what kind it is"
        case "union_tag_invalid", {"discriminator": name, "tag": tag, "expected_tags": expected}:
            return f"{name[1:-1]} is {tag!r}, expected one of {expected}"
    return str(error["msg"]).removeprefix("Value error, ")


def place_in(document: Any, location: Location, *, is_missing: bool) -> tuple[str | int, ...]:
    """Return the way from the top of a document to what is wrong.

    Pydantic's location has the tag of every discriminated union on the way, which no part of the
    document is called by. A tag is the value of a member, so it is told by walking the document.

    Args:
        document: the JSON document that was validated; null where it is not at hand.
        location: of the error.
        is_missing: the last part is the name of a member that is not there.
    """
    parts = tuple(location)
    if parts and parts[-1] == _KEY:
        parts = parts[:-1]
    found = _walk(document, parts, is_missing=is_missing)
    if found is not None:
        return found
    return parts if document is None else _as_far_as_it_goes(document, parts)


def _walk(value: Any, parts: Location, *, is_missing: bool) -> tuple[str | int, ...] | None:
    """Return the parts that lead on from `value`, null where they lead nowhere."""
    if not parts:
        return ()
    head, rest = parts[0], parts[1:]
    if _has(value, head):
        found = _walk(value[head], rest, is_missing=is_missing)
        if found is not None:
            return (head, *found)
    if is_missing and not rest:
        return (head,) if isinstance(value, dict) and head not in value else None
    if isinstance(value, dict) and isinstance(head, str) and head in value.values():
        return _walk(value, rest, is_missing=is_missing)
    return None


def _as_far_as_it_goes(value: Any, parts: Location) -> tuple[str | int, ...]:
    """Return the parts that are there: a value that stands for a larger one has no members."""
    if not parts or not _has(value, parts[0]):
        return ()
    return (parts[0], *_as_far_as_it_goes(value[parts[0]], parts[1:]))


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)
