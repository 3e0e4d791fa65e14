from typing import Any

import pytest

from evaluator.contract.places import place_in


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
