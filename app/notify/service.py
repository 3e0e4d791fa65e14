"""Use cases of webhooks: whom to tell, and what they were told."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import (
    AddressRefused,
    DeliveryNotFound,
    DeliveryPending,
    TooManyWebhooks,
    WebhookDisabled,
    WebhookNotFound,
)
from app.ids import new_id
from app.jobs.repository import utcnow
from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.addresses import AddressNotAllowed, check_url
from app.notify.endpoints import disable
from app.notify.messages import TEST_EVENT, DeliveryState, body_of_test
from app.notify.outbox import new_delivery
from app.notify.request import EndpointChange, EndpointRequest
from app.notify.schedule import NUM_TRIES
from app.notify.signing import new_secret
from app.settings import Settings

WEBHOOKS_MAX = 50
"""Of a project; each change of a job looks at them."""
OVERLAP = timedelta(hours=24)
"""How long messages are signed with the previous secret too."""


@dataclass(frozen=True, kw_only=True)
class DeliveryQuery:
    """Which deliveries of an endpoint to list; newest first."""

    states: tuple[DeliveryState, ...] = ()
    limit: int = 50
    before: str | None = None
    """Id of the last one of the page before."""


class WebhookService:
    """The use cases. `wake` tells the workers that there is something to send."""

    def __init__(self, database: Database, settings: Settings, wake: Callable[[], None]) -> None:
        """Take what the use cases need."""
        self._database = database
        self._settings = settings
        self._wake = wake

    def on(self, database: Database) -> "WebhookService":
        """Return the use cases on this database, which may be confined to a project."""
        return WebhookService(database, self._settings, self._wake)

    async def add(self, request: EndpointRequest) -> WebhookEndpoint:
        """Store an endpoint with a fresh secret.

        Raises:
            AddressRefused: messages may not go there.
            TooManyWebhooks: the project has as many as it may have.
        """
        self._check(request.url)
        now = utcnow()
        endpoint = WebhookEndpoint(
            id=new_id("wh"),
            project=self._database.home,
            url=request.url,
            description=request.description,
            events=sorted(set(request.events)),
            secret=new_secret(),
            created_at=now,
            updated_at=now,
        )
        async with self._database.write() as session:
            known = await session.scalar(
                select(func.count())
                .select_from(WebhookEndpoint)
                .where(WebhookEndpoint.project == endpoint.project)
            )
            if (known or 0) >= WEBHOOKS_MAX:
                msg = (
                    f"the project {endpoint.project} has {WEBHOOKS_MAX} webhooks, the most it may "
                    "have: delete one"
                )
                raise TooManyWebhooks(msg)
            session.add(endpoint)
        return endpoint

    async def all(self) -> list[WebhookEndpoint]:
        """Return every endpoint, oldest first."""
        query = select(WebhookEndpoint).order_by(WebhookEndpoint.id)
        async with self._database.read() as session:
            return list((await session.scalars(query)).all())

    async def get(self, webhook_id: str) -> WebhookEndpoint:
        """Return an endpoint.

        Raises:
            WebhookNotFound: there is none with this id.
        """
        async with self._database.read() as session:
            return await _load(session, webhook_id)

    async def change(self, webhook_id: str, change: EndpointChange) -> WebhookEndpoint:
        """Change an endpoint.

        Raises:
            WebhookNotFound: there is none with this id.
            AddressRefused: messages may not go there.
        """
        async with self._database.write() as session:
            endpoint = await _load(session, webhook_id, lock=True)
            if change.url is not None:
                self._check(change.url)
                endpoint.url = change.url
            if change.description is not None:
                endpoint.description = change.description
            if change.events is not None:
                endpoint.events = sorted(set(change.events))
            if change.enabled:
                endpoint.disabled_reason = None
            elif change.enabled is False and endpoint.disabled_reason is None:
                await disable(session, endpoint, "on request")
            endpoint.updated_at = utcnow()
        return endpoint

    async def delete(self, webhook_id: str) -> None:
        """Delete an endpoint, and what was or is to be sent to it.

        Raises:
            WebhookNotFound: there is none with this id.
        """
        async with self._database.write() as session:
            await session.delete(await _load(session, webhook_id, lock=True))

    async def rotate(self, webhook_id: str) -> WebhookEndpoint:
        """Give an endpoint a fresh secret; the one before is used beside it for a day.

        Raises:
            WebhookNotFound: there is none with this id.
        """
        async with self._database.write() as session:
            endpoint = await _load(session, webhook_id, lock=True)
            endpoint.previous_secret, endpoint.secret = endpoint.secret, new_secret()
            endpoint.updated_at = utcnow()
            endpoint.previous_expires_at = endpoint.updated_at + OVERLAP
        return endpoint

    async def test(self, webhook_id: str) -> WebhookDelivery:
        """Queue a message that tells of nothing.

        Raises:
            WebhookNotFound: there is none with this id.
            WebhookDisabled: it is sent nothing.
        """
        async with self._database.write() as session:
            endpoint = await _load(session, webhook_id, lock=True)
            _need_enabled(endpoint)
            now = utcnow()
            body = body_of_test(endpoint.id, now)
            delivery = new_delivery(endpoint, TEST_EVENT, body, now, job_id=None)
            session.add(delivery)
        self._wake()
        return delivery

    async def deliveries(self, webhook_id: str, query: DeliveryQuery) -> list[WebhookDelivery]:
        """Return deliveries, one more than the page holds if there is a next one.

        Raises:
            WebhookNotFound: there is none with this id.
        """
        statement = (
            select(WebhookDelivery)
            .where(WebhookDelivery.endpoint_id == webhook_id)
            .order_by(WebhookDelivery.id.desc())
            .limit(query.limit + 1)
        )
        if query.states:
            statement = statement.where(WebhookDelivery.state.in_(query.states))
        if query.before is not None:
            statement = statement.where(WebhookDelivery.id < query.before)
        async with self._database.read() as session:
            await _load(session, webhook_id)
            return list((await session.scalars(statement)).all())

    async def resend(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a message again that has ended, with its id and its full number of tries.

        Raises:
            WebhookNotFound: there is no webhook with this id.
            DeliveryNotFound: it has no such delivery.
            DeliveryPending: the message is going to be sent anyway.
            WebhookDisabled: the webhook is sent nothing.
        """
        async with self._database.write() as session:
            endpoint = await _load(session, webhook_id, lock=True)
            delivery = await session.get(WebhookDelivery, delivery_id, with_for_update=True)
            if delivery is None or delivery.endpoint_id != endpoint.id:
                msg = f"webhook {webhook_id} has no delivery {delivery_id!r}"
                raise DeliveryNotFound(msg)
            _need_enabled(endpoint)
            if delivery.state is DeliveryState.PENDING:
                msg = f"delivery {delivery_id} is pending: its next try is at {delivery.due_at}"
                raise DeliveryPending(msg)
            delivery.state, delivery.due_at = DeliveryState.PENDING, utcnow()
            delivery.tries_left = NUM_TRIES
        self._wake()
        return delivery

    def _check(self, url: str) -> None:
        try:
            check_url(url, allowed=self._settings.webhook_allow_networks)
        except AddressNotAllowed as error:
            raise AddressRefused(str(error), pointer="/url") from error


async def _load(session: AsyncSession, webhook_id: str, *, lock: bool = False) -> WebhookEndpoint:
    # A lock of this kind lets jobs go on that write messages to the endpoint meanwhile.
    how = {"key_share": True} if lock else None
    endpoint = await session.get(WebhookEndpoint, webhook_id, with_for_update=how)
    if endpoint is None:
        msg = f"there is no webhook {webhook_id!r}"
        raise WebhookNotFound(msg)
    return endpoint


def _need_enabled(endpoint: WebhookEndpoint) -> None:
    if endpoint.disabled_reason is not None:
        msg = (
            f"webhook {endpoint.id} is disabled: {endpoint.disabled_reason}; enable it with "
            'PATCH {"enabled": true}'
        )
        raise WebhookDisabled(msg)
