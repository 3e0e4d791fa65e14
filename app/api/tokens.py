"""The nll of every scored token of a finished job, where it was asked for."""

import base64

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.deps import JobId, KnownEtags, NoQueryDep, ReadDep
from app.api.openapi import answers
from app.errors import JobNotFound, RecordsMissing, ResultNotReady, TokensNotKept
from app.jobs.records import check_tokens, read_file, tokens_file

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA_TYPE = "application/octet-stream"
_HEADERS = {"ETag": {"description": "Digest of the file.", "schema": {"type": "string"}}}


@router.get(
    "/{job_id}/tokens",
    operation_id="getTokens",
    summary="The nll of every scored token",
    response_class=StreamingResponse,
    responses=answers(
        {
            200: {
                "description": "`tokens.npz`, arrays of NumPy; docs/metrics.md says which.",
                "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
                "headers": _HEADERS,
            },
            304: {"description": "You have it.", "headers": _HEADERS},
        },
        JobNotFound,
        ResultNotReady,
        TokensNotKept,
        RecordsMissing,
    ),
)
async def get_tokens(
    job_id: JobId, parts: ReadDep, known: KnownEtags, _query: NoQueryDep
) -> Response:
    """Return the file that `outputs.token_nll` asked for, after checking it."""
    record = await parts.jobs.get(job_id)
    file = tokens_file(record.job, parts.settings)
    headers = {"ETag": f'"{file.digest}"', "Cache-Control": "private, no-cache"}
    if "*" in known or headers["ETag"] in known:
        return Response(status_code=304, headers=headers)
    num_bytes = await run_in_threadpool(check_tokens, file)
    digest = base64.b64encode(bytes.fromhex(file.digest.removeprefix("sha256:"))).decode()
    headers |= {
        "Content-Length": str(num_bytes),
        "Content-Disposition": f'attachment; filename="{job_id}.npz"',
        "Repr-Digest": f"sha-256=:{digest}:",
    }
    return StreamingResponse(read_file(file), media_type=MEDIA_TYPE, headers=headers)
