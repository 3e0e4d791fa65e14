"""Messages to webhooks, as a channel. A message may arrive twice; its id tells."""

import random
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.channel import Channel, Room, Try
from app.notify.endpoints import disable, secrets_of
from app.notify.messages import DeliveryState
from app.notify.schedule import next_due
from app.notify.sender import Outcome
from app.notify.signing import signed_headers


class WebhookChannel(Channel[Try]):
    """Rows of `webhook_deliveries`; their lane is the endpoint."""

    def due(self, now: datetime, room: Room) -> Select[*tuple[Any, ...]]:
        """Return the statement that finds messages to send."""
        return (
            select(WebhookDelivery, WebhookEndpoint)
            .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
            .where(
                WebhookDelivery.state == DeliveryState.PENDING,
                WebhookDelivery.due_at <= now,
                WebhookDelivery.endpoint_id.not_in(room.full),
            )
            .order_by(WebhookDelivery.due_at, WebhookDelivery.id)
            .limit(room.left)
        )

    async def begin(
        self, session: AsyncSession, now: datetime, lease: timedelta, room: Room
    ) -> list[Try]:
        """Begin tries, signed for now."""
        locked = self.due(now, room).with_for_update(skip_locked=True, of=WebhookDelivery)
        begun = []
        for delivery, endpoint in (await session.execute(locked)).all():
            if delivery.tries_left == 0:
                delivery.end(DeliveryState.FAILED, "the server ended during the last try")
            elif room.take(endpoint.id):
                number, body = delivery.begin_try(now, lease), delivery.body.encode()
                secrets = secrets_of(endpoint, now)
                begun.append(
                    Try(
                        id=delivery.id,
                        number=number,
                        lane=endpoint.id,
                        url=endpoint.url,
                        headers=signed_headers(secrets, delivery.id, int(now.timestamp()), body),
                        body=body,
                    )
                )
        return begun

    async def note(
        self, session: AsyncSession, begun: Try, outcome: Outcome, now: datetime
    ) -> bool:
        """Write what came of a try; 410 disables the endpoint."""
        if outcome.is_gone:  # its row is locked before those of its deliveries
            endpoint = await session.get(
                WebhookEndpoint, begun.lane, with_for_update={"key_share": True}
            )
            if endpoint is not None:
                await disable(session, endpoint, "it answered 410 (gone)")
        delivery = await session.get(WebhookDelivery, begun.id, with_for_update=True)
        if delivery is None or delivery.num_tries != begun.number:
            return False
        delivery.note_answer(outcome)
        if outcome.error is None:
            delivery.end(DeliveryState.DELIVERED)
        elif outcome.is_gone or delivery.tries_left == 0:
            delivery.end(DeliveryState.FAILED, outcome.error)
        elif delivery.state is DeliveryState.PENDING:
            delivery.due_at = next_due(
                now,
                delivery.tries_left,
                retry_after_s=outcome.retry_after_s,
                chance=random.random(),  # noqa: S311 - spreads load, no secret
            )
        return True

    async def sweep(self, session: AsyncSession, before: datetime) -> None:
        """Drop ended deliveries made before then."""
        old = (
            WebhookDelivery.state != DeliveryState.PENDING,
            WebhookDelivery.created_at < before,
        )
        await session.execute(delete(WebhookDelivery).where(*old))
