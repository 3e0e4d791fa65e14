"""Sends what is due on one channel: messages to webhooks, or statuses of commits.

How a try is counted and fenced: `app.models.tries`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from app.db import Database
from app.jobs.repository import utcnow
from app.metrics import TRIES
from app.notify.channel import Channel, Room, Try
from app.notify.sender import Sender
from app.settings import Settings

_log = logging.getLogger(__name__)

LEASE_MARGIN_SECONDS = 5.0
"""Beyond the timeout of a try, for writing what came of it."""
KEPT = timedelta(days=30)
"""How long what has ended is kept, to be looked at."""
_SWEEP_EVERY = timedelta(hours=1)

T = TypeVar("T", bound=Try)


class Deliverer(Generic[T]):
    """One turn begins what is due, and waits for nothing."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        channel: Channel[T],
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        """Take what it works with; `now` is the clock that rows are due by."""
        timeout_s = settings.webhook_timeout_seconds
        self._database = database
        self._channel = channel
        self._sender = Sender(settings.webhook_allow_networks, timeout_s)
        self._lease = timedelta(seconds=timeout_s + LEASE_MARGIN_SECONDS)
        self._now = now
        self._under_way: dict[asyncio.Task[None], str] = {}
        """Tries by their lanes."""
        self._swept_at: datetime | None = None

    async def turn(self) -> None:
        """Begin every try that is due and has room, and drop what is old now and then."""
        for begun in await self._begin():
            task = asyncio.create_task(self._finish(begun), name=f"deliver {begun.id}")
            self._under_way[task] = begun.lane
            task.add_done_callback(self._under_way.pop)
        if self._swept_at is None or self._now() - self._swept_at > _SWEEP_EVERY:
            await self._sweep()

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def stop(self, grace_s: float = 2.0) -> None:
        """Give what is under way a moment, then break it off: it is due again after its lease."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=grace_s)
        for task in self._under_way:
            task.cancel()
        await self.idle()
        await self._sender.close()

    async def _begin(self) -> list[T]:
        room = Room(Counter(self._under_way.values()))
        if room.left <= 0:
            return []
        async with self._database.read() as session:
            due = self._channel.due(self._now(), room).limit(1)
            if (await session.execute(due)).first() is None:
                return []
        async with self._database.write() as session:
            return await self._channel.begin(session, self._now(), self._lease, room)

    async def _finish(self, begun: T) -> None:
        try:
            outcome = await self._sender.send(begun.url, begun.headers, begun.body)
            async with self._database.write() as session:
                noted = await self._channel.note(session, begun, outcome, self._now())
        except Exception:  # noqa: BLE001 - an edge: the lease runs out, and the row is due again
            _log.exception("could not deliver", extra={"delivery_id": begun.id})
            return
        if not noted:
            _log.warning("a try has been taken over", extra={"delivery_id": begun.id})
            return
        TRIES.labels("taken" if outcome.error is None else "refused").inc()
        _log.info(
            "message sent",
            extra={
                "delivery_id": begun.id,
                "receiver": begun.lane,
                "status_code": outcome.status_code,
                "delivered": outcome.error is None,
            },
        )

    async def _sweep(self) -> None:
        async with self._database.write() as session:
            await self._channel.sweep(session, self._now() - KEPT)
        self._swept_at = self._now()
