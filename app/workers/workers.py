"""The loops together."""

import asyncio

from app.db import Database
from app.jobs.ingest import Absorber
from app.launchers.base import Launcher
from app.notify.webhook_channel import WebhookChannel
from app.settings import Settings
from app.statuses.channel import StatusChannel
from app.workers.deliver import Deliverer
from app.workers.dispatch import Dispatcher
from app.workers.loop import Loop
from app.workers.reconcile import Reconciler
from app.workers.settle import Settler
from app.workers.warm import WarmPool

_INTERVAL_SECONDS = 0.5


class Workers:
    """Starts, wakes and stops the loops."""

    def __init__(
        self, database: Database, settings: Settings, launcher: Launcher, absorber: Absorber
    ) -> None:
        """Wire the loops."""
        settler = Settler(database, settings, absorber)
        self._pool = WarmPool(settings, launcher)
        dispatcher = Dispatcher(database, settings, launcher, settler, self._pool)
        reconciler = Reconciler(database, settings, launcher, settler)
        self._deliverer = Deliverer(database, settings, WebhookChannel())
        self._reporter = Deliverer(database, settings, StatusChannel(settings))
        self._loops = (
            Loop("reconcile", _INTERVAL_SECONDS, reconciler.turn),
            Loop("dispatch", _INTERVAL_SECONDS, dispatcher.turn),
            Loop("warm", _INTERVAL_SECONDS, self._pool.turn),
            Loop("deliver", _INTERVAL_SECONDS, self._deliverer.turn),
            Loop("statuses", _INTERVAL_SECONDS, self._reporter.turn),
        )

    async def start(self) -> None:
        """Begin; launches that are running are adopted by the first turn."""
        await self._pool.clear()
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        """End. Launches go on, but those that wait for a job."""
        for loop in self._loops:
            await loop.stop()
        await asyncio.gather(self._deliverer.stop(), self._reporter.stop())
        await self._pool.clear()

    def wake(self) -> None:
        """Turn all loops soon."""
        for loop in self._loops:
            loop.wake()

    def heartbeat_ages(self) -> dict[str, float]:
        """Return seconds since each loop last turned well."""
        return {loop.name: loop.age_s for loop in self._loops}
