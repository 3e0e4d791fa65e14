"""Sends the messages that are due.

A try begins with a commit that counts it and moves `due_at` behind the longest time that it may
take. So no other server sends the message meanwhile, and one whose server was killed is due again
by itself. A message may arrive twice that way; its id tells.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.jobs.repository import utcnow
from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.endpoints import disable, end, secrets_of
from app.notify.messages import DeliveryState
from app.notify.schedule import next_due
from app.notify.sender import Outcome, Sender
from app.notify.signing import signed_headers
from app.settings import Settings

_log = logging.getLogger(__name__)

MAX_AT_ONCE = 32
MAX_AT_ONCE_PER_ENDPOINT = 4
"""So that an endpoint which hangs does not hold up the others."""
LEASE_MARGIN_SECONDS = 5.0
"""Beyond the timeout of a try, for writing what came of it."""
KEPT = timedelta(days=30)
"""How long ended deliveries are kept for the list."""
_SWEEP_EVERY = timedelta(hours=1)


@dataclass(frozen=True)
class _Try:
    """A message whose next try this server has begun."""

    id: str
    endpoint_id: str
    number: int
    """The fencing token."""
    url: str
    headers: dict[str, str]
    body: bytes


class Deliverer:
    """One turn begins what is due, and waits for nothing."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        """Take what it works with; `now` is the clock that messages are due by."""
        timeout_s = settings.webhook_timeout_seconds
        self._database = database
        self._sender = Sender(settings.webhook_allow_networks, timeout_s)
        self._lease = timedelta(seconds=timeout_s + LEASE_MARGIN_SECONDS)
        self._now = now
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._swept_at: datetime | None = None

    async def turn(self) -> None:
        """Begin every try that is due and has room, and drop old deliveries now and then."""
        for begun in await self._begin():
            task = asyncio.create_task(self._finish(begun), name=f"deliver {begun.id}")
            self._under_way[task] = begun.endpoint_id
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

    async def _begin(self) -> list[_Try]:
        room = MAX_AT_ONCE - len(self._under_way)
        counts = Counter(self._under_way.values())
        busy = [each for each, count in counts.items() if count >= MAX_AT_ONCE_PER_ENDPOINT]
        is_due = (
            WebhookDelivery.state == DeliveryState.PENDING,
            WebhookDelivery.due_at <= self._now(),
            WebhookDelivery.endpoint_id.not_in(busy),
        )
        if room <= 0:
            return []
        async with self._database.read() as session:
            if (await session.scalar(select(WebhookDelivery.id).where(*is_due).limit(1))) is None:
                return []
        query = (
            select(WebhookDelivery, WebhookEndpoint)
            .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
            .where(*is_due)
            .order_by(WebhookDelivery.due_at, WebhookDelivery.id)
            .limit(room)
            .with_for_update(skip_locked=True, of=WebhookDelivery)
        )
        begun = []
        async with self._database.write() as session:
            for delivery, endpoint in (await session.execute(query)).all():
                if delivery.tries_left == 0:
                    end(delivery, DeliveryState.FAILED, "the server ended during the last try")
                elif counts[endpoint.id] < MAX_AT_ONCE_PER_ENDPOINT:
                    counts[endpoint.id] += 1
                    begun.append(self._begin_one(delivery, endpoint))
        return begun

    def _begin_one(self, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> _Try:
        now = self._now()
        delivery.num_tries += 1
        delivery.tries_left -= 1
        delivery.last_try_at, delivery.due_at = now, now + self._lease
        body = delivery.body.encode()
        return _Try(
            id=delivery.id,
            endpoint_id=endpoint.id,
            number=delivery.num_tries,
            url=endpoint.url,
            headers=signed_headers(
                secrets_of(endpoint, now), delivery.id, int(now.timestamp()), body
            ),
            body=body,
        )

    async def _finish(self, begun: _Try) -> None:
        try:
            outcome = await self._sender.send(begun.url, begun.headers, begun.body)
            async with self._database.write() as session:
                await self._note(session, begun, outcome)
        except Exception:  # noqa: BLE001 - an edge: the lease runs out, and the message is due again
            _log.exception("could not deliver", extra={"delivery_id": begun.id})

    async def _note(self, session: AsyncSession, begun: _Try, outcome: Outcome) -> None:
        """Write what came of a try, unless the message has been taken over since."""
        if outcome.is_gone:  # its row is locked before those of its deliveries
            endpoint = await session.get(
                WebhookEndpoint, begun.endpoint_id, with_for_update={"key_share": True}
            )
            if endpoint is not None:
                await disable(session, endpoint, "it answered 410 (gone)")
        delivery = await session.get(WebhookDelivery, begun.id, with_for_update=True)
        if delivery is None or delivery.num_tries != begun.number:
            _log.warning("a try has been taken over", extra={"delivery_id": begun.id})
            return
        delivery.status_code, delivery.latency_seconds = outcome.status_code, outcome.latency_s
        delivery.response, delivery.error = outcome.response, outcome.error
        if outcome.error is None:
            end(delivery, DeliveryState.DELIVERED)
        elif outcome.is_gone or delivery.tries_left == 0:
            end(delivery, DeliveryState.FAILED, outcome.error)
        elif delivery.state is DeliveryState.PENDING:
            delivery.due_at = next_due(
                self._now(),
                delivery.tries_left,
                retry_after_s=outcome.retry_after_s,
                chance=random.random(),  # noqa: S311 - spreads load, no secret
            )
        _log.info(
            "message sent",
            extra={
                "delivery_id": begun.id,
                "endpoint_id": begun.endpoint_id,
                "status_code": outcome.status_code,
                "delivered": outcome.error is None,
            },
        )

    async def _sweep(self) -> None:
        old = (
            WebhookDelivery.state != DeliveryState.PENDING,
            WebhookDelivery.created_at < self._now() - KEPT,
        )
        async with self._database.write() as session:
            await session.execute(delete(WebhookDelivery).where(*old))
        self._swept_at = self._now()
