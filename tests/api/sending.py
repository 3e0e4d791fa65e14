"""A worker that sends what is due, whose clock can be moved on."""

from datetime import datetime, timedelta
from typing import Generic, TypeVar

from app.db import Database
from app.jobs.repository import utcnow
from app.notify.channel import Channel, Try
from app.settings import Settings
from app.workers.deliver import Deliverer

T = TypeVar("T", bound=Try)


class Clock:
    """The time, which can be moved on."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return utcnow() + self.ahead

    def move(self, **by: float) -> None:
        """Let time pass."""
        self.ahead += timedelta(**by)


class Sending(Generic[T]):
    """One server's worker."""

    def __init__(self, database: Database, settings: Settings, channel: Channel[T]) -> None:
        self.now = Clock()
        self.worker = Deliverer(database, settings, channel, now=self.now)

    async def turn(self) -> None:
        """Send what is due, and wait for the answers."""
        await self.worker.turn()
        await self.worker.idle()
