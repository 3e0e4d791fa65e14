"""The stream of a job's events (server-sent events).

The rows of `events` are the source, so a client that was away goes on where it was. No database
session is held while nothing is sent.
"""

import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel, Field

from app.api.deps import BIGINT_MAX, JobId, NoQuery, Parts, ReadDep
from app.api.openapi import answers
from app.api.views import summarise_job, view_node_timing
from app.errors import JobNotFound, TooManyStreams
from app.models import Event, Job

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

RETRY_MS = 3000
"""What a client is told to wait before it connects again."""
PAGE_EVENTS = 500
LOOK_AGAIN_SECONDS = 1.0
"""The hub wakes a stream early; what it misses, or what another server does, is seen by then."""

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)

_EVENT_SCHEMA = {
    "type": "object",
    "description": "One event. (OpenAPI 3.1 has no way to say: a stream of these.)",
    "properties": {
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"type": "object"},
        },
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "retry": {"type": "integer"},
    },
}
_EXAMPLE = """retry: 3000

event: state
data: {"state":"running","state_reason":null,"message":null,"attempt":1,"is_terminal":false}
id: 3

event: progress
data: {"stage":"score","fraction":0.42,"num_batches_done":21,"state":"running"}
id: 24
"""


class EventsQuery(NoQuery):
    """Where to begin."""

    after: Annotated[int, Field(ge=0, le=BIGINT_MAX)] = 0
    """Number of the last event you have; the header `Last-Event-ID` wins over it."""


async def _hold_slot(parts: ReadDep) -> AsyncIterator[None]:
    with parts.streams.slot():
        yield


@router.get(
    "/{job_id}/events",
    operation_id="streamEvents",
    summary="Follow a job",
    response_model=None,
    dependencies=[Depends(_hold_slot)],
    responses=answers(
        {
            200: {
                "description": "Events as they happen. `id` is the event's number, `event` is "
                "`state`, `progress`, `timing`, `reset` or `end` (more may come); `data` is a "
                "JSON object.",
                "content": {"text/event-stream": {"schema": _EVENT_SCHEMA, "example": _EXAMPLE}},
                "headers": {
                    "Cache-Control": {"schema": {"type": "string"}},
                    "X-Accel-Buffering": {"schema": {"type": "string"}},
                },
            },
            204: {
                "description": "The job has ended and you have seen everything: do not reconnect."
            },
        },
        JobNotFound,
        TooManyStreams,
    ),
)
async def stream_events(
    job_id: JobId,
    parts: ReadDep,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[
        str | None,
        Header(description="Number of the last event you have.", examples=["17"]),
    ] = None,
) -> Response:
    """Send a job's events, those that have happened first; `end` follows the terminal state."""
    version, state = await parts.jobs.version(job_id)
    after = _position(last_event_id, query.after)
    if after is not None and after > version:
        after = None
    if state.is_terminal and after == version:
        return Response(status_code=204)
    return EventSourceResponse(
        _Stream(parts, job_id).frames(after),
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


def _position(last_event_id: str | None, after: int) -> int | None:
    """Return the number of the last event that the client has; null for one we never gave."""
    if not last_event_id:  # EventSource sends none before its first event
        return after
    return int(last_event_id) if _NUMBER.fullmatch(last_event_id) else None


def _frame(kind: str, data: BaseModel | dict[str, Any], number: int) -> bytes:
    if isinstance(data, BaseModel):
        text = data.model_dump_json()
    else:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return format_sse_event(event=kind, data_str=text, id=str(number))


def _render(events: list[Event]) -> Iterator[bytes]:
    """Yield the frames of events; of those that tell of progress only the newest."""
    newest = max((e.number for e in events if e.type == "progress"), default=None)
    for event in events:
        if event.type == "timing":
            yield _frame("timing", view_node_timing(event.data), event.number)
        elif event.type != "progress" or event.number == newest:
            yield _frame(event.type, event.data, event.number)


class _Stream:
    """One client that follows one job."""

    def __init__(self, parts: Parts, job_id: str) -> None:
        self._parts = parts
        self._job_id = job_id
        self._sent_at = time.monotonic()
        self._read = parts.streams.read  # a client may hang up at any moment

    async def frames(self, after: int | None) -> AsyncIterator[bytes]:
        """Yield what goes over the wire, until the end of the job or of the server.

        Args:
            after: number of the last event that the client has; null where it is unknown, so that
                the client is told to forget what it has.
        """
        yield format_sse_event(retry=RETRY_MS)
        if after is None:
            record = await self._read(self._parts.jobs.get(self._job_id))
            after = record.job.version
            yield _frame("reset", summarise_job(record), after)
        while not self._parts.streams.is_closing:
            version, state = await self._read(self._parts.jobs.version(self._job_id))
            while after < version:
                events = await self._read(
                    self._parts.jobs.events(self._job_id, after=after, limit=PAGE_EVENTS)
                )
                for frame in _render(events):
                    yield frame
                self._sent_at = time.monotonic()
                after = events[-1].number if events else version
            if state.is_terminal:
                yield await self._end(after)
                return
            await self._pause()
            if time.monotonic() - self._sent_at >= self._parts.settings.heartbeat_seconds:
                yield format_sse_event(comment="heartbeat")
                self._sent_at = time.monotonic()

    async def _pause(self) -> None:
        """Wait for a change, a heartbeat's time or the end of the server."""
        pause_s = min(LOOK_AGAIN_SECONDS, self._parts.settings.heartbeat_seconds)
        await self._parts.streams.unless_closing(self._parts.hub.wait(self._job_id, pause_s))

    async def _end(self, number: int) -> bytes:
        record = await self._read(self._parts.jobs.get(self._job_id))
        return _frame("end", _describe_state(record.job), number)


def _describe_state(job: Job) -> dict[str, Any]:
    return {
        "state": job.state,
        "state_reason": job.state_reason,
        "message": job.message,
        "attempt": job.attempt,
        "is_terminal": job.state.is_terminal,
    }
