"""The route that runs report to. Internal: only the evaluator calls it."""

import json
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError

from app.api.deps import Parts, require_json
from app.api.openapi import answers
from app.errors import (
    AttemptNotCurrent,
    BodyTooLarge,
    ContractMismatch,
    TokenInvalid,
    UnsupportedMediaType,
)
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import ReportBatch

router = APIRouter(prefix="/v1/attempts", tags=["internal"])

_ATTEMPT_ID = re.compile(r"[a-z]{1,8}_[0-9a-z]{1,36}")
_bearer = HTTPBearer(
    auto_error=False, scheme_name="attemptToken", description="The token of the attempt."
)


def _check_id(attempt_id: str, credentials: HTTPAuthorizationCredentials | None) -> str:
    """Return the token, unless it can't be one of this attempt."""
    if credentials is None or not credentials.credentials or not _ATTEMPT_ID.fullmatch(attempt_id):
        msg = "send `Authorization: Bearer` with the token of this attempt"
        raise TokenInvalid(msg)
    return credentials.credentials


def _refuse_query(request: Request) -> None:
    places = [
        {"type": "extra_forbidden", "loc": ("query", name), "msg": "there is no such parameter"}
        for name in request.query_params
    ]
    if places:
        raise RequestValidationError(places)


def parse_batch(body: bytes) -> ReportBatch:
    """Return the reports of a body.

    Raises:
        ContractMismatch: another version; checked first, since its reports can't be understood.
        RequestValidationError: this version, but malformed.
    """
    try:
        return ReportBatch.model_validate_json(body)
    except ValidationError as error:
        document = _parse(body)
        _check_version(document)
        places = error.errors(include_url=False, include_context=False, include_input=False)
        located: list[dict[str, Any]] = [{**p, "loc": ("body", *p["loc"])} for p in places]
        raise RequestValidationError(located, body=document) from error


def _parse(body: bytes) -> Any:
    """Return the document that was refused, null where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _check_version(document: Any) -> None:
    version = document.get("contract_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != CONTRACT_VERSION:
        msg = f"the run speaks contract {str(version)[:20]}, the server {CONTRACT_VERSION}"
        raise ContractMismatch(msg)


@router.post(
    "/{attempt_id}/reports",
    operation_id="postReports",
    summary="Take reports of a run",
    status_code=204,
    response_class=Response,
    responses=answers(
        {204: {"description": "The reports are stored."}},
        AttemptNotCurrent,
        BodyTooLarge,
        ContractMismatch,
        TokenInvalid,
        UnsupportedMediaType,
        asks_for_token=False,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ReportBatch"}}
            },
        }
    },
)
async def post_reports(
    request: Request,
    attempt_id: Annotated[str, Path(description="Id of an attempt.")],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Response:
    """Store reports of one rank, in their order; those that are known already change nothing."""
    # Plain calls where other routes have dependencies: a thousand ranks report every second, and
    # the framework would take longer to solve the dependencies than to do what they do.
    await require_json(request)
    token = _check_id(attempt_id, credentials)
    _refuse_query(request)
    batch = parse_batch(await request.body())
    parts: Parts = request.app.state.parts
    await parts.writer.submit(token, attempt_id, batch)
    return Response(status_code=204)
