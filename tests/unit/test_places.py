from typing import Any

import pytest
from pydantic import ValidationError

from evaluator.contract.data import InlineData, JsonlData
from evaluator.contract.places import place_in, without_echoes


@pytest.mark.parametrize(
    ("document", "location", "is_missing", "place"),
    [
        ({"m": {"kind": "f"}}, ("m", "f", "path"), True, ("m", "path")),
        ({"m": {"kind": "f", "path": 1}}, ("m", "f", "path"), False, ("m", "path")),
        ({"m": {"kind": "f"}}, ("m", "f"), False, ("m",)),
        # A member that has the name of the tag.
        ({"m": {"kind": "f", "f": 1}}, ("m", "f", "f"), False, ("m", "f")),
        # Names that are values of others, but no tags.
        ({"labels": {"a": "b", "b": 3}}, ("labels", "b"), False, ("labels", "b")),
        ({"a": "m"}, ("m",), True, ("m",)),
        ({"m": [{"t": "x", "n": [1, 2]}]}, ("m", 0, "x", "n", 1), False, ("m", 0, "n", 1)),
        ({"labels": {"": "x"}}, ("labels", "", "[key]"), False, ("labels", "")),
        ({"a": 1}, (), False, ()),
        # A short form, which stands for a larger value.
        ({"data": "wikitext-3"}, ("data", "known", "name"), False, ("data",)),
        (None, ("a", "b"), False, ("a", "b")),
    ],
)
def test_the_way_in_the_document(
    document: Any, location: tuple[str | int, ...], is_missing: bool, place: tuple[str | int, ...]
) -> None:
    assert place_in(document, location, is_missing=is_missing) == place


@pytest.mark.parametrize(
    ("documents", "kinds"),
    [(["\ud800"], ["value_error"]), ([1, "a"], ["string_type"]), ([], ["too_short"])],
)
def test_a_wrong_item_is_one_error(documents: list[object], kinds: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        InlineData.model_validate({"kind": "inline", "documents": documents})
    found = without_echoes([dict(error) for error in raised.value.errors()])
    assert [error["type"] for error in found] == kinds


def test_a_text_that_is_too_long_is_told_in_characters() -> None:
    with pytest.raises(ValidationError, match="at most 100 characters"):
        JsonlData.model_validate({"kind": "jsonl", "path": "a", "join": "x" * 101})
    with pytest.raises(ValidationError, match="half of a surrogate pair"):
        JsonlData.model_validate({"kind": "jsonl", "path": "a", "join": "\ud800"})
