"""What is sent: small messages that name the job and say where to read the rest."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from app.api.view import Time, View
from evaluator.contract.states import FailureReason, JobState


class EventType(StrEnum):
    """What an endpoint can be told of. A job that is tried again may be told of twice."""

    JOB_RUNNING = "job.running"
    """A rank of an attempt reported for the first time."""
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    JOB_TIMED_OUT = "job.timed_out"
    JOB_LOST = "job.lost"


TEST_EVENT: Final = "webhook.test"
"""Sent on request only, whatever an endpoint asked to be told of."""


def event_of(state: JobState) -> EventType | None:
    """Return what a job's arrival in `state` is told as; null where nobody is told."""
    name = f"job.{state}"
    return EventType(name) if name in set(EventType) else None


class DeliveryState(StrEnum):
    """Where a message to one endpoint is."""

    PENDING = "pending"
    """It waits for its first or next try, or is being sent."""
    DELIVERED = "delivered"
    """The endpoint answered with 2xx."""
    FAILED = "failed"
    """Nothing is tried any more."""


class MessagePerplexity(View):
    """The figure and its error; the job's result has the rest."""

    token_perplexity: float | None
    token_perplexity_standard_error: float | None
    token_perplexity_interval_95: tuple[float, float] | None
    bits_per_byte: float | None
    num_scored_tokens: int


class JobData(View):
    """A job as it was when it came into this state."""

    job_id: str
    url: str
    """Where to read the job."""
    state: JobState
    state_reason: FailureReason | None
    message: str | None
    """Why, in a sentence; cut to 400 characters."""
    attempt: int
    version: int
    """Of the job; of two messages on one job the one with the larger version is newer."""
    perplexity: MessagePerplexity | None
    """Null unless the job has succeeded."""


class JobMessage(View):
    """A job has come into a state."""

    type: EventType
    timestamp: Time
    """When it did."""
    data: JobData


class EndpointData(View):
    """Whom the test is for."""

    endpoint_id: str


class WebhookTest(View):
    """Somebody asked for a test."""

    type: Literal["webhook.test"]
    timestamp: Time
    data: EndpointData


MESSAGE_MAX_CHARS = 400


def job_body(
    event: EventType,
    at: datetime,
    *,
    state_event: dict[str, Any],
    version: int,
    job_id: str,
    url: str,
    perplexity: dict[str, Any] | None,
) -> str:
    """Return the body of a message on a job.

    Args:
        event: what it is told as.
        at: when the job came into the state.
        state_event: data of the job's `state` event.
        version: of the job, with this state.
        job_id: of the job.
        url: of the job.
        perplexity: a contract `Perplexity`, of a job that has succeeded.
    """
    message = state_event["message"]
    data = JobData(
        job_id=job_id,
        url=url,
        state=state_event["state"],
        state_reason=state_event["state_reason"],
        message=None if message is None else _short(message),
        attempt=state_event["attempt"],
        version=version,
        perplexity=None if perplexity is None else MessagePerplexity.model_validate(perplexity),
    )
    return JobMessage(type=event, timestamp=at, data=data).model_dump_json()


def _short(message: str) -> str:
    """Return the beginning, without halves of surrogate pairs, which UTF-8 has not."""
    return message[:MESSAGE_MAX_CHARS].encode(errors="replace").decode()


def body_of_test(endpoint_id: str, at: datetime) -> str:
    """Return the body of a test."""
    data = EndpointData(endpoint_id=endpoint_id)
    return WebhookTest(type=TEST_EVENT, timestamp=at, data=data).model_dump_json()
