"""The per-window records of a finished job."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.deps import JobId, KnownEtags, NoQueryDep, ReadDep
from app.api.openapi import answers
from app.errors import JobNotFound, RecordsMissing, ResultNotReady
from app.jobs.records import check_digest, read_chunks, read_file, records_file

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA_TYPE = "application/x-ndjson"
_HEADERS = {
    "ETag": {
        "description": "Digest of the uncompressed records; ends in `-gzip` where they are sent "
        "compressed.",
        "schema": {"type": "string"},
    },
    "Content-Encoding": {
        "description": "`gzip` where that was accepted.",
        "schema": {"type": "string"},
    },
}


def accepts_gzip(written: str) -> bool:
    """Tell whether a header `Accept-Encoding` allows gzip (RFC 9110, section 12.5.3)."""
    weights: dict[str, float] = {}
    for item in written.lower().split(","):
        name, _, parameters = item.partition(";")
        key, _, weight = parameters.replace(" ", "").partition("=")
        try:
            weights[name.strip()] = float(weight) if key == "q" else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


@router.get(
    "/{job_id}/windows",
    operation_id="getWindows",
    summary="The per-window records of a result",
    response_class=StreamingResponse,
    responses=answers(
        {
            200: {
                "description": "One `WindowRecord` a line, in text order.",
                "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
                "headers": _HEADERS,
            },
            304: {"description": "You have them.", "headers": _HEADERS},
        },
        JobNotFound,
        ResultNotReady,
        RecordsMissing,
    ),
)
async def get_windows(
    job_id: JobId,
    parts: ReadDep,
    known: KnownEtags,
    _query: NoQueryDep,
    accept_encoding: Annotated[
        str, Header(description="`gzip` halves the transfer and more.", examples=["gzip"])
    ] = "",
) -> Response:
    """Return document, place, scored tokens and nll of every window, after checking them."""
    record = await parts.jobs.get(job_id)
    file = records_file(record.job, parts.settings)
    is_gzip = accepts_gzip(accept_encoding)
    headers = {
        "ETag": f'"{file.digest}{"-gzip" if is_gzip else ""}"',
        "Cache-Control": "private, no-cache",
        "Vary": "Accept-Encoding",
    }
    if "*" in known or headers["ETag"] in known:
        return Response(status_code=304, headers=headers)
    await run_in_threadpool(check_digest, file)
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
    chunks = read_file(file) if is_gzip else read_chunks(file)
    return StreamingResponse(chunks, media_type=MEDIA_TYPE, headers=headers)
