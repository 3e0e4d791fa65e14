"""The messages of webhooks, for the `webhooks` section of the OpenAPI document."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Header

from app.notify.messages import TEST_EVENT, EventType, JobMessage, WebhookTest

router = APIRouter()

MessageId = Annotated[
    str, Header(description="The same at every try.", examples=["msg_01jb6v8cw3f4m5n6p7q8r9s0t1"])
]
Timestamp = Annotated[
    str, Header(pattern=r"^\d+$", description="Unix seconds of this try.", examples=["1772366400"])
]
Signature = Annotated[
    str,
    Header(
        description="`v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`; two of them, "
        "separated by a space, while a secret is being replaced.",
        examples=["v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="],
    ),
]


async def _tell_of_job(
    message: JobMessage,
    webhook_id: MessageId,
    webhook_timestamp: Timestamp,
    webhook_signature: Signature,
) -> None:
    """Tell that a job has come into a state."""


async def _tell_test(
    message: WebhookTest,
    webhook_id: MessageId,
    webhook_timestamp: Timestamp,
    webhook_signature: Signature,
) -> None:
    """Tell nothing, on request."""


def _describe(event: str, tell: Callable[..., Awaitable[None]]) -> None:
    words = re.split(r"[._]", event)
    router.add_api_route(
        event,
        tell,
        methods=["POST"],
        operation_id="on" + "".join(word.capitalize() for word in words),
        summary=f"Told: {event}",
        status_code=204,
        response_description="Delivered, as with any 2xx.",
        responses={
            410: {"description": "The webhook is disabled."},
            "default": {"description": "The message is tried again, for three days in all."},
        },
    )


for _event in EventType:
    _describe(_event, _tell_of_job)
_describe(TEST_EVENT, _tell_test)
