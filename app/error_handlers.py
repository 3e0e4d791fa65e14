"""Turns errors into RFC 9457 problems, those of the framework included.

No answer repeats what the client sent at length: input may be huge, may hold NaN, which JSON has
not, or half a surrogate pair, which UTF-8 has not.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from app.disk import disk_error
from app.errors import (
    ApiError,
    BodyTooLarge,
    DatabaseUnavailable,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotReady,
    RouteNotFound,
    TokenInvalid,
    TokenMissing,
    TooManyStreams,
    UnsupportedMediaType,
)
from app.metrics import REJECTED
from evaluator.contract.places import place_in, without_echoes, words_of
from evaluator.contract.strict_json import RepeatedMember

_log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
PROBLEM_URN = "urn:assay:problem:"

_PLACES_MAX = 20
_TEXT_MAX_CHARS = 400
_RETRY_AFTER_SECONDS = "5"
_CHALLENGE = 'Bearer realm="assay"'

_LOCATIONS = frozenset({"body", "query", "path", "header"})
DATABASE_ERRORS = (DBAPIError, PoolTimeoutError)
_UNREACHABLE = (OperationalError, InterfaceError, PoolTimeoutError)


def clean(text: str) -> str:
    """Return `text` short, and without what can't be sent as UTF-8."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= _TEXT_MAX_CHARS else f"{text[:_TEXT_MAX_CHARS]}..."


def problem(
    scope: Scope,
    error: ApiError,
    *,
    places: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """Return the answer that tells of `error`.

    Args:
        scope: of the request.
        error: its class gives title, code and status, its message the detail.
        places: what is wrong where, as `in`, `pointer` and `detail`.
        headers: further headers.
        more: further members.
    """
    REJECTED.labels(error.code).inc()
    if error.pointer is not None:
        places = [{"in": "body", "pointer": error.pointer, "detail": error.detail}]
    body = {
        "type": PROBLEM_URN + error.code,
        "title": error.title(),
        "status": error.status,
        "detail": clean(error.detail),
        "instance": quote(clean(scope["path"])),
        "code": error.code,
        "request_id": scope.get("state", {}).get("request_id", ""),
        "errors": [{name: clean(text) for name, text in place.items()} for place in places],
        **(more or {}),
    }
    return Response(
        json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
        error.status,
        {"Cache-Control": "no-store", **_usual_headers(error), **(headers or {})},
        PROBLEM_TYPE,
    )


def _usual_headers(error: ApiError) -> dict[str, str]:
    match error:
        case TokenMissing():
            return {"WWW-Authenticate": _CHALLENGE}  # RFC 6750, 3.1: without an error then
        case TokenInvalid():
            return {"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'}
        case InsufficientScope(scope=scope):
            named = f'error="insufficient_scope", scope="{scope}"'
            return {"WWW-Authenticate": f"{_CHALLENGE}, {named}"}
        case BodyTooLarge():
            return {"Connection": "close"}  # the rest of the body is not read
        case TooManyStreams() | DatabaseUnavailable() | NotReady():
            return {"Retry-After": _RETRY_AFTER_SECONDS}
    return {}


def _pointer(location: Iterable[str | int]) -> str:
    """Return the JSON pointer of a place (RFC 6901)."""
    return "".join(
        f"/{str(part).replace('~', '~0').replace('/', '~1')[:_TEXT_MAX_CHARS]}" for part in location
    )


def _place(error: Mapping[str, Any], body: Any) -> dict[str, str]:
    first, *rest = error["loc"] or ("body",)
    if error["type"] == "json_invalid":
        return {"in": "body", "pointer": "", "detail": _syntax(error, body)}
    location = str(first) if first in _LOCATIONS else "body"
    if location == "body":
        rest = [*place_in(body, rest, is_missing=error["type"] == "missing")]
    return {"in": location, "pointer": _pointer(rest), "detail": words_of(error)}


def _syntax(error: Mapping[str, Any], body: Any) -> str:
    """Say what of a body is not JSON, with line and column."""
    reason = error.get("ctx", {}).get("error")
    if reason is None or not isinstance(body, str):  # pydantic's parser names line and column
        return f"not JSON: {error['msg'].removeprefix('Invalid JSON: ')}"
    at: int = error["loc"][-1]
    line, column = body.count("\n", 0, at) + 1, at - body.rfind("\n", 0, at)
    return f"not JSON, at line {line}, column {column}: {reason}"


def _unreadable(cause: BaseException | None) -> str:
    """Say why a body could not be parsed that may be JSON by its syntax."""
    match cause:
        case UnicodeDecodeError():
            return f"the body is not UTF-8: byte {cause.start} is wrong"
        case RecursionError():
            return "the body is nested too deeply"
        case RepeatedMember():
            return f"the body has an object with {cause.name!r} twice: send it once"
        case ValueError():  # of JSON, only whole numbers beyond Python's limit
            return "the body has a whole number with too many digits"
    return "the body can't be read"


def _describe(places: Sequence[Mapping[str, str]], num_all: int) -> str:
    first = places[0]
    where = first["pointer"] or ("the body" if first["in"] == "body" else f"the {first['in']}")
    text = f"{where}: {first['detail']}"
    return text if num_all == 1 else f"{text} (and {num_all - 1} more)"


async def _on_validation_error(request: Request, error: RequestValidationError) -> Response:
    """Answer 422. Only place and message are taken over, never the input."""
    found = without_echoes(error.errors())
    places = [_place(item, error.body) for item in found[:_PLACES_MAX]]
    return problem(request.scope, InvalidRequest(_describe(places, len(found))), places=places)


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return problem(request.scope, error)


def database_problem(scope: Scope, error: Exception) -> Response:
    """Answer 503 while the database can't be reached or written; else it is a defect."""
    if (refused := _disk_error(scope, error)) is not None:
        return refused
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if not lost and not isinstance(error, _UNREACHABLE):
        raise error
    _log.error("the database does not answer", exc_info=error)
    return problem(scope, DatabaseUnavailable("the database does not answer: try again later"))


async def _on_database_error(request: Request, error: Exception) -> Response:
    return database_problem(request.scope, error)


async def _on_os_error(request: Request, error: Exception) -> Response:
    """Answer 503 while the disk is full; any other error of the system is a defect."""
    if (refused := _disk_error(request.scope, error)) is not None:
        return refused
    raise error


def _disk_error(scope: Scope, error: Exception) -> Response | None:
    """Answer 503 where the disk refused a write; null for any other error."""
    detail = disk_error(scope["app"].state.parts.settings.state_dir, error)
    if detail is None:
        return None
    _log.error("the disk refuses", extra={"detail": detail}, exc_info=error)
    return problem(scope, DatabaseUnavailable(detail))


def _allowed_methods(routes: Iterable[APIRoute], scope: Scope) -> str:
    """Return the methods of all routes at this path; the framework names only the first one's."""
    methods: set[str] = set()
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def install_error_handlers(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Answer every error as a problem.

    Args:
        app: the application.
        routes: all of its routes, for the header `Allow`.
    """

    async def on_http_error(request: Request, error: HTTPException) -> Response:
        scope = request.scope
        match error.status_code:
            case 400:  # FastAPI could not parse the body
                detail = _unreadable(error.__cause__)
                place = {"in": "body", "pointer": "", "detail": detail}
                return problem(scope, InvalidRequest(detail), places=[place])
            case 404:
                return problem(scope, RouteNotFound(f"there is no {clean(scope['path'])}"))
            case 405:
                allowed = _allowed_methods(routes, scope)
                detail = f"{clean(scope['path'])} takes {allowed}, not {clean(scope['method'])}"
                return problem(scope, MethodNotAllowed(detail), headers={"Allow": allowed})
            case 413:
                return problem(scope, BodyTooLarge(str(error.detail)))
            case 415:
                return problem(scope, UnsupportedMediaType(str(error.detail)))
        kind = (
            InvalidRequest
            if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
            else InternalError
        )
        return problem(scope, kind(str(error.detail)))

    app.exception_handler(ApiError)(_on_api_error)
    app.exception_handler(RequestValidationError)(_on_validation_error)
    app.exception_handler(HTTPException)(on_http_error)
    for kind in DATABASE_ERRORS:
        app.exception_handler(kind)(_on_database_error)
    app.exception_handler(OSError)(_on_os_error)
