"""Webhooks and deliveries as the API shows them."""

from app.api.view import DurationSeconds, Number, Time, View
from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.messages import DeliveryState, EventType


class WebhookLinks(View):
    """Where to go from a webhook; paths on this server."""

    self: str
    rotate: str
    test: str
    deliveries: str


class WebhookView(View):
    """An address that is told what happens to jobs."""

    id: str
    project: str
    """It is told of the jobs of this project."""
    url: str
    description: str | None
    events: tuple[EventType, ...]
    enabled: bool
    disabled_reason: str | None
    """Null while it is enabled."""
    previous_secret_expires_at: Time | None
    """Until when messages are signed with the secret before the last rotation too."""
    created_at: Time
    updated_at: Time
    links: WebhookLinks


class WebhookWithSecret(WebhookView):
    """The same with its signing secret, which is shown in this answer only."""

    secret: str
    """`whsec_` and base64, as libraries for Standard Webhooks take it."""


class WebhookList(View):
    """All webhooks, oldest first."""

    items: tuple[WebhookView, ...]


class DeliveryView(View):
    """A message to one endpoint, and what came of its last try."""

    id: str
    """Sent as `webhook-id`, the same at every try."""
    event: str
    job_id: str | None
    """Null for a test."""
    state: DeliveryState
    body: str
    """What is sent, byte for byte."""
    created_at: Time
    next_try_at: Time | None
    """Null once nothing is tried any more; while a try is under way, when it counts as lost."""
    num_tries: Number
    tries_left: Number
    last_try_at: Time | None
    """The fields below are of that try; null before the first has ended."""
    status_code: int | None
    latency_seconds: DurationSeconds | None
    response: str | None
    """The first 2 kB of the answer's body."""
    error: str | None
    """Why the message does not count as delivered."""


class DeliveryPage(View):
    """Some of the deliveries, newest first."""

    items: tuple[DeliveryView, ...]
    next_cursor: str | None
    """Null at the end."""


def webhook_path(webhook_id: str) -> str:
    """Return where a webhook is."""
    return f"/v1/webhooks/{webhook_id}"


def _values(endpoint: WebhookEndpoint) -> dict[str, object]:
    path = webhook_path(endpoint.id)
    return {
        "id": endpoint.id,
        "project": endpoint.project,
        "url": endpoint.url,
        "description": endpoint.description,
        "events": endpoint.events,
        "enabled": endpoint.disabled_reason is None,
        "disabled_reason": endpoint.disabled_reason,
        "previous_secret_expires_at": endpoint.previous_expires_at,
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
        "links": WebhookLinks(
            self=path,
            rotate=f"{path}/rotate",
            test=f"{path}/test",
            deliveries=f"{path}/deliveries",
        ),
    }


def view_webhook(endpoint: WebhookEndpoint) -> WebhookView:
    """Return the webhook as it is shown."""
    return WebhookView.model_validate(_values(endpoint))


def view_with_secret(endpoint: WebhookEndpoint) -> WebhookWithSecret:
    """Return the webhook as it is shown once."""
    return WebhookWithSecret.model_validate(_values(endpoint) | {"secret": endpoint.secret})


def view_delivery(delivery: WebhookDelivery) -> DeliveryView:
    """Return the delivery as it is shown."""
    return DeliveryView(
        id=delivery.id,
        event=delivery.event,
        job_id=delivery.job_id,
        state=delivery.state,
        body=delivery.body,
        created_at=delivery.created_at,
        next_try_at=delivery.due_at,
        num_tries=delivery.num_tries,
        tries_left=delivery.tries_left,
        last_try_at=delivery.last_try_at,
        status_code=delivery.status_code,
        latency_seconds=delivery.latency_seconds,
        response=delivery.response,
        error=delivery.error,
    )
