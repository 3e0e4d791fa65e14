"""Server-sent events from bytes. Pure: no socket.

Lines end at CR, LF or CRLF alone: splitting at every Unicode line end, as `str.splitlines` does,
would cut JSON that carries U+2028.

Source: the WHATWG HTML standard, section "Server-sent events".
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LINE_END = re.compile(rb"\r\n|\r(?!\Z)|\n")  # a CR at the very end may be half of a CRLF


@dataclass(frozen=True)
class Event:
    """One thing that happened to a job."""

    id: str | None
    """Number of the event; what to resume after."""
    type: str
    """`state`, `progress`, `timing`, `end`, or a word of a newer server."""
    data: dict[str, Any]


class EventParser:
    """Takes chunks as they arrive and returns the events that became complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._last_id: str | None = None
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes.

        Raises:
            ValueError: an event's data is not a JSON object in UTF-8.
        """
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        for line in lines:
            event = self._take(line.decode())
            if event is not None:
                yield event

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id":
            self._last_id = value
        return None  # a comment (no name) or a field that we have no use for

    def _dispatch(self) -> Event | None:
        text, kind = "\n".join(self._data), self._type or "message"
        self._data, self._type = [], ""
        if not text:
            return None
        data = json.loads(text)
        if not isinstance(data, dict):
            msg = f"the data of event {self._last_id} is no JSON object"
            raise ValueError(msg)
        return Event(self._last_id, kind, data)
