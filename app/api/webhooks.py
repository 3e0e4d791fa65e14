"""Routes of webhooks: add, list, change, delete, rotate the secret, test, look at deliveries."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from app.api.deps import DeliveryId, HooksDep, JsonBody, NoQuery, NoQueryDep, WebhookId
from app.api.openapi import answers
from app.api.strict import StrictRoute
from app.api.webhook_schemas import (
    DeliveryPage,
    DeliveryView,
    WebhookList,
    WebhookView,
    WebhookWithSecret,
    view_delivery,
    view_webhook,
    view_with_secret,
    webhook_path,
)
from app.errors import (
    AddressRefused,
    BodyTooLarge,
    DeliveryNotFound,
    DeliveryPending,
    TooManyWebhooks,
    UnsupportedMediaType,
    WebhookDisabled,
    WebhookNotFound,
)
from app.notify.messages import DeliveryState
from app.notify.request import EndpointChange, EndpointRequest
from app.notify.service import DeliveryQuery

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)

_NO_STORE = "no-store"


class DeliveryListQuery(NoQuery):
    """Which deliveries to list. `state` may be repeated."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Most deliveries in a page."""
    cursor: Annotated[str, Field(pattern=r"^msg_[0-9a-z]{26}$")] | None = None
    """`next_cursor` of the page before."""
    state: Annotated[tuple[DeliveryState, ...], Field(max_length=3)] = ()
    """Deliveries in any of these states."""


@router.post(
    "",
    operation_id="addWebhook",
    summary="Be told what happens to jobs",
    status_code=201,
    dependencies=[JsonBody],
    responses=answers(
        {
            201: {
                "description": "The webhook, with its secret.",
                "headers": {
                    "Location": {
                        "description": "Path of the webhook.",
                        "schema": {"type": "string"},
                    }
                },
            }
        },
        AddressRefused,
        BodyTooLarge,
        TooManyWebhooks,
        UnsupportedMediaType,
    ),
)
async def add_webhook(
    request: EndpointRequest, parts: HooksDep, response: Response, _query: NoQueryDep
) -> WebhookWithSecret:
    """Store an address; what happens to jobs from now on is posted to it, signed."""
    endpoint = await parts.webhooks.add(request)
    response.headers["Location"] = webhook_path(endpoint.id)
    response.headers["Cache-Control"] = _NO_STORE
    return view_with_secret(endpoint)


@router.get("", operation_id="listWebhooks", summary="List webhooks", responses=answers({}))
async def list_webhooks(parts: HooksDep, response: Response, _query: NoQueryDep) -> WebhookList:
    """Return the webhooks; a project has at most 50."""
    response.headers["Cache-Control"] = _NO_STORE
    return WebhookList(items=tuple(map(view_webhook, await parts.webhooks.all())))


@router.get(
    "/{webhook_id}",
    operation_id="getWebhook",
    summary="Look at a webhook",
    responses=answers({}, WebhookNotFound),
)
async def get_webhook(
    webhook_id: WebhookId, parts: HooksDep, response: Response, _query: NoQueryDep
) -> WebhookView:
    """Return a webhook without its secret."""
    response.headers["Cache-Control"] = _NO_STORE
    return view_webhook(await parts.webhooks.get(webhook_id))


@router.patch(
    "/{webhook_id}",
    operation_id="changeWebhook",
    summary="Change, disable or enable a webhook",
    dependencies=[JsonBody],
    responses=answers({}, AddressRefused, BodyTooLarge, UnsupportedMediaType, WebhookNotFound),
)
async def change_webhook(
    webhook_id: WebhookId, change: EndpointChange, parts: HooksDep, _query: NoQueryDep
) -> WebhookView:
    """Change what the request names. Messages that wait go to a new URL too."""
    return view_webhook(await parts.webhooks.change(webhook_id, change))


@router.delete(
    "/{webhook_id}",
    operation_id="deleteWebhook",
    summary="Delete a webhook",
    status_code=204,
    responses=answers({204: {"description": "It is gone."}}, WebhookNotFound),
)
async def delete_webhook(webhook_id: WebhookId, parts: HooksDep, _query: NoQueryDep) -> None:
    """Delete a webhook with its deliveries, those that wait included."""
    await parts.webhooks.delete(webhook_id)


@router.post(
    "/{webhook_id}/rotate",
    operation_id="rotateWebhookSecret",
    summary="Give a webhook a fresh secret",
    responses=answers({}, WebhookNotFound),
)
async def rotate_webhook_secret(
    webhook_id: WebhookId, parts: HooksDep, response: Response, _query: NoQueryDep
) -> WebhookWithSecret:
    """Return the new secret. For 24 hours messages carry a signature by the one before too."""
    response.headers["Cache-Control"] = _NO_STORE
    return view_with_secret(await parts.webhooks.rotate(webhook_id))


@router.post(
    "/{webhook_id}/test",
    operation_id="testWebhook",
    summary="Send a test message",
    status_code=202,
    responses=answers(
        {202: {"description": "The message is queued."}}, WebhookDisabled, WebhookNotFound
    ),
)
async def send_test(webhook_id: WebhookId, parts: HooksDep, _query: NoQueryDep) -> DeliveryView:
    """Queue a message of type `webhook.test`; the list of deliveries shows what comes of it."""
    return view_delivery(await parts.webhooks.test(webhook_id))


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="listWebhookDeliveries",
    summary="See what was sent and answered",
    responses=answers({}, WebhookNotFound),
)
async def list_webhook_deliveries(
    webhook_id: WebhookId,
    query: Annotated[DeliveryListQuery, Query()],
    parts: HooksDep,
    response: Response,
) -> DeliveryPage:
    """Return deliveries, newest first. Those that have ended are kept for 30 days."""
    wanted = DeliveryQuery(states=query.state, limit=query.limit, before=query.cursor)
    found = await parts.webhooks.deliveries(webhook_id, wanted)
    items = tuple(map(view_delivery, found[: query.limit]))
    response.headers["Cache-Control"] = _NO_STORE
    return DeliveryPage(items=items, next_cursor=items[-1].id if len(found) > query.limit else None)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/resend",
    operation_id="resendWebhookDelivery",
    summary="Send a message again",
    status_code=202,
    responses=answers(
        {202: {"description": "The message is queued."}},
        DeliveryNotFound,
        DeliveryPending,
        WebhookDisabled,
        WebhookNotFound,
    ),
)
async def resend_webhook_delivery(
    webhook_id: WebhookId, delivery_id: DeliveryId, parts: HooksDep, _query: NoQueryDep
) -> DeliveryView:
    """Queue a message that was delivered or has failed, with the same id and body."""
    return view_delivery(await parts.webhooks.resend(webhook_id, delivery_id))
