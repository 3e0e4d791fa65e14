"""JSON whose objects have each member once: else the last one would win without a word."""

from collections import Counter
from typing import Any


class RepeatedMember(ValueError):
    """An object has a member twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"an object has the member {name[:200]!r} twice; keep one of them")
        self.name = name


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; for `json` as `object_pairs_hook`.

    Raises:
        RepeatedMember: A name comes twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedMember(name)
    return members
