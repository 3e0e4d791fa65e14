"""A request whose answer is read while it is still being sent, which httpx can't do over ASGI."""

import asyncio
import json
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.types import Message

DEADLINE_S = 10.0


class Frame(NamedTuple):
    """A server-sent event, or what else stood between two empty lines."""

    event: str | None
    id: str | None
    data: Any
    retry: str | None
    comment: str | None


def parse_frames(text: str) -> list[Frame]:
    """Read complete frames."""
    return [_parse_frame(block) for block in text.split("\n\n") if block]


def _parse_frame(block: str) -> Frame:
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields[name] = value.removeprefix(" ")
    data = json.loads(fields["data"]) if "data" in fields else None
    return Frame(fields.get("event"), fields.get("id"), data, fields.get("retry"), fields.get(""))


class LiveRequest:
    """A GET request; leaving the block hangs up."""

    def __init__(self, app: FastAPI, target: str, headers: dict[str, str] | None = None) -> None:
        url = urlsplit(target)
        self._app = app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": url.path,
            "raw_path": url.path.encode(),
            "query_string": url.query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "server": ("assay.test", 80),
            "client": ("127.0.0.1", 1),
        }
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._hung_up = asyncio.Event()
        self._asked = False
        self._text = ""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_over = False

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _next(self) -> Message:
        async with asyncio.timeout(DEADLINE_S):
            return await self._sent.get()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._sent.put))
        start = await self._next()
        self.status = start["status"]
        self.headers = {k.decode(): v.decode() for k, v in start["headers"]}
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hung_up.set()
        async with asyncio.timeout(DEADLINE_S):
            await self._task

    async def frame(self) -> Frame:
        """Return the next frame."""
        while "\n\n" not in self._text:
            message = await self._next()
            self._text += message.get("body", b"").decode()
            if not message.get("more_body", False):
                self.is_over = True
                break
        block, _, self._text = self._text.partition("\n\n")
        return _parse_frame(block)

    async def until(self, event: str) -> list[Frame]:
        """Return the frames up to the next one of this event."""
        frames = [await self.frame()]
        while frames[-1].event != event:
            assert not self.is_over, frames
            frames.append(await self.frame())
        return frames

    async def wait_over(self) -> None:
        """Wait for the end of the answer."""
        while not self.is_over:
            message = await self._next()
            self._text += message.get("body", b"").decode()
            self.is_over = not message.get("more_body", False)
