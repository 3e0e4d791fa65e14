"""Rows of webhooks: what several use cases and the worker do with them, in the caller's session."""

from datetime import datetime

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.messages import DeliveryState


def secrets_of(endpoint: WebhookEndpoint, now: datetime) -> tuple[str, ...]:
    """Return the secrets to sign with, the newest first."""
    expires_at = endpoint.previous_expires_at
    if endpoint.previous_secret is None or expires_at is None or expires_at <= now:
        return (endpoint.secret,)
    return (endpoint.secret, endpoint.previous_secret)


async def disable(session: AsyncSession, endpoint: WebhookEndpoint, reason: str) -> None:
    """Send a locked endpoint nothing more, and end what waits to be sent to it."""
    endpoint.disabled_reason = reason
    await session.execute(
        update(WebhookDelivery)
        .where(
            WebhookDelivery.endpoint_id == endpoint.id,
            WebhookDelivery.state == DeliveryState.PENDING,
        )
        .values(
            state=DeliveryState.FAILED, due_at=None, error=f"the endpoint is disabled: {reason}"
        )
    )
