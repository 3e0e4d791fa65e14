"""A loop that turns at an interval or when woken, survives its errors, and shows its heartbeat."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

TURN_TIMEOUT_SECONDS = 120.0
"""A turn that takes longer is broken off, so that one stuck call can't stop the loop for good."""


class Loop:
    """Calls `turn` for ever."""

    def __init__(self, name: str, interval_s: float, turn: Callable[[], Awaitable[None]]) -> None:
        """Take what to call, and how long to rest in between."""
        self.name = name
        self._interval_s = interval_s
        self._turn = turn
        self._woken = asyncio.Event()
        self._turned_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._turned_at = time.monotonic()
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """End, in the middle of a turn if need be: a turn may be cut off at any point."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """Turn soon."""
        self._woken.set()

    @property
    def age_s(self) -> float:
        """Seconds since the last turn that ended well."""
        return time.monotonic() - self._turned_at

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                async with asyncio.timeout(TURN_TIMEOUT_SECONDS):
                    await self._turn()
                self._turned_at = time.monotonic()
            except Exception:  # noqa: BLE001 - an edge: the loop goes on, /readyz shows its age
                _log.exception("a turn of the loop failed", extra={"loop": self.name})
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._woken.wait()
            except TimeoutError:
                continue
