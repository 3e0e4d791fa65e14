"""Counts the open event streams, and lets streams and long waits end when the server does."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from app.errors import TooManyStreams

T = TypeVar("T")


class Streams:
    """Slots for streams, and one signal that the server is shutting down."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` streams at once."""
        self._limit = limit
        self._num_open = 0
        self._closing = asyncio.Event()
        self._reads: set[asyncio.Task[Any]] = set()

    @property
    def num_open(self) -> int:
        """Streams that are open now."""
        return self._num_open

    @property
    def is_closing(self) -> bool:
        """Whether the server is shutting down."""
        return self._closing.is_set()

    def close(self) -> None:
        """End all streams and waits soon; uvicorn waits for them before it stops the app."""
        self._closing.set()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the slots.

        Raises:
            TooManyStreams: all are taken.
        """
        if self._num_open >= self._limit:
            msg = f"{self._limit} event streams are open, and there may be no more: try again later"
            raise TooManyStreams(msg)
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; a client that goes away meanwhile does not cut it off.

        A cancelled database call leaves a connection half opened or half closed, and whatever
        tidies that up is cancelled again at its next step: the connection is lost.
        """
        task = asyncio.create_task(work)
        self._reads.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._reads.discard(task)
        if not task.cancelled():
            task.exception()  # seen: nobody may be left to whom it matters

    async def drain(self) -> None:
        """Wait for the reads that their clients have left."""
        await asyncio.gather(*self._reads, return_exceptions=True)

    async def unless_closing(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what `work` returns, or null at once when the server is shutting down."""
        task = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            closing.cancel()
            await asyncio.gather(task, closing, return_exceptions=True)
