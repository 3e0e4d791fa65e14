"""The log of an attempt: by offset, for those who follow it, or its last lines."""

import codecs
import os
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool

from app.api.deps import BIGINT_MAX, JobId, NoQuery, ReadDep
from app.api.openapi import answers
from app.errors import AttemptNotFound, JobNotFound, NodeNotFound
from app.jobs.service import JobRecord
from app.launchers.rundir import latest_log

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

LIMIT_MAX_BYTES = 1_048_576
TAIL_MAX_LINES = 10_000
_CHARACTER_MAX_BYTES = 4
_NEXT_OFFSET = "Next-Offset"


class LogQuery(NoQuery):
    """Which part of which log."""

    attempt: Annotated[int, Field(ge=1, le=BIGINT_MAX)] | None = None
    """Number of the attempt; without it the current one."""
    node: Annotated[int, Field(ge=0, le=BIGINT_MAX)] = 0
    """Rank of the node whose processes wrote it."""
    offset: Annotated[int, Field(ge=0, le=BIGINT_MAX)] | None = None
    """Byte to begin at: 0, or `Next-Offset` of the answer before."""
    limit: Annotated[int, Field(ge=_CHARACTER_MAX_BYTES, le=LIMIT_MAX_BYTES)] = LIMIT_MAX_BYTES
    """Most bytes to read."""
    tail: Annotated[int, Field(ge=0, le=TAIL_MAX_LINES)] | None = None
    """The last lines, this many at most, instead of `offset`."""

    @model_validator(mode="after")
    def _one_way(self) -> "LogQuery":
        if self.offset is not None and self.tail is not None:
            code, msg = "offset_and_tail", "give either offset or tail"
            raise PydanticCustomError(code, msg)
        return self


class Chunk(NamedTuple):
    """Part of a log."""

    text: str
    next_offset: int


@router.get(
    "/{job_id}/logs",
    operation_id="getLogs",
    summary="Read the log of a node in an attempt",
    response_class=PlainTextResponse,
    responses=answers(
        {
            200: {
                "description": "Output of the node's processes; empty as long as there is none. "
                "Bytes that are not UTF-8 are replaced by U+FFFD.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
                "headers": {
                    _NEXT_OFFSET: {
                        "description": "Give it as `offset` to read on.",
                        "required": True,
                        "schema": {"type": "string", "pattern": "^[0-9]+$"},
                    }
                },
            }
        },
        JobNotFound,
        AttemptNotFound,
        NodeNotFound,
    ),
)
async def get_logs(job_id: JobId, query: Annotated[LogQuery, Query()], parts: ReadDep) -> Response:
    """Return part of a log. A log only grows, so an offset stays good."""
    record = await parts.jobs.get(job_id)
    path = parts.jobs.log_file(record, query.attempt, query.node)
    if query.tail is not None:
        chunk = await run_in_threadpool(read_tail, path, query.tail, query.limit)
    else:
        chunk = await run_in_threadpool(
            read_chunk,
            path,
            query.offset or 0,
            query.limit,
            is_complete=_has_ended(record, query.attempt),
        )
    return PlainTextResponse(
        chunk.text, headers={_NEXT_OFFSET: str(chunk.next_offset), "Cache-Control": "no-store"}
    )


def _has_ended(record: JobRecord, number: int | None) -> bool:
    wanted = record.job.attempt if number is None else number
    return any(a.number == wanted and a.ended_at is not None for a in record.attempts)


def read_chunk(path: Path, offset: int, limit: int, *, is_complete: bool) -> Chunk:
    """Read up to `limit` bytes from byte `offset`.

    A character that is cut at the end is left for the next call, unless the log is complete.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(limit) if offset < size else b""
    except FileNotFoundError:
        return Chunk("", offset)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    is_last = is_complete and offset + len(data) >= size
    text = decoder.decode(data, final=is_last)
    kept_back = 0 if is_last else len(decoder.getstate()[0])
    return Chunk(text, offset + len(data) - kept_back)


def read_tail(path: Path, num_lines: int, limit: int) -> Chunk:
    """Read the last lines, up to `limit` bytes.

    While a log is full, its newest output is in another file; that is what a tail is about.
    """
    latest = latest_log(path)
    for candidate in (latest, path):
        try:
            with candidate.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - limit))
                data = file.read(limit)
        except FileNotFoundError:
            continue
        next_offset = size if candidate == path else path.stat().st_size
        lines = data.splitlines(keepends=True)[-num_lines:] if num_lines else []
        return Chunk(b"".join(lines).decode(errors="replace"), next_offset)
    return Chunk("", 0)
