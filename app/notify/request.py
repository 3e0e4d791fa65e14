"""What somebody asks of webhooks."""

from typing import Annotated

from pydantic import Field

from app.notify.messages import EventType
from evaluator.contract.base import Contract

EndpointUrl = Annotated[
    str,
    Field(
        max_length=2000,
        pattern=r"^https?://[^\s\x00-\x1f\x7f]+$",
        examples=["https://ci.example.com/assay"],
    ),
]
Description = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Events = Annotated[tuple[EventType, ...], Field(min_length=1, max_length=20)]


class EndpointRequest(Contract):
    """An address that is to be told what happens to jobs."""

    url: EndpointUrl
    """Where messages are posted to; `https`, but for networks that the server's settings allow."""
    description: Description | None = None
    events: Events = tuple(EventType)
    """What it is told of; everything by default."""


class EndpointChange(Contract):
    """What to change of an endpoint; what is left out or null stays as it is."""

    url: EndpointUrl | None = None
    description: Description | None = None
    events: Events | None = None
    enabled: Annotated[bool, Field(strict=True)] | None = None
    """False ends what waits to be sent; true begins with what happens from now on."""
