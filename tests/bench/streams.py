"""Clients that follow a job's events over real connections."""

import asyncio
from collections.abc import Callable

FRAME_S = 30.0


class Follower(asyncio.Protocol):
    """One event stream; notes when each event of one kind arrived."""

    def __init__(self, port: int, job_id: str, kind: str) -> None:
        self._port = port
        self._job_id = job_id
        self._line = f"event: {kind}".encode()
        self._rest = b""
        self._news = asyncio.Event()
        self._is_open = False
        self.arrived: list[float] = []
        """Loop times, in the order of arrival."""

    async def open(self) -> None:
        """Connect; returns once the stream has begun."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        self._transport.write(
            f"GET /v1/jobs/{self._job_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )
        await self._wait(lambda: self._is_open)

    def data_received(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._is_open = self._is_open or any(line.startswith(b"id: ") for line in lines)
        self.arrived += [now for line in lines if line.rstrip() == self._line]
        self._news.set()

    async def wait_for(self, num: int) -> float:
        """Return when the event that makes `num` arrived."""
        await self._wait(lambda: len(self.arrived) >= num)
        return self.arrived[num - 1]

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        async with asyncio.timeout(FRAME_S):
            while not is_there():
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        """Hang up."""
        self._transport.close()
