"""Pure ASGI middleware: request id and log line, errors nobody caught, token, size of the body.

Pure, because the wrapper classes of the framework break streams and context variables.
"""

import logging
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import metrics
from app.error_handlers import DATABASE_ERRORS, database_problem, problem
from app.errors import ApiError, BodyTooLarge, InternalError
from app.ids import new_id
from app.log import request_id_var

_log = logging.getLogger(__name__)

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET_PATHS = ("/livez", "/readyz", "/v1/attempts/")
"""Asked every second or oftener; their lines are for debugging."""
_PATH_MAX_CHARS = 200
_METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
_OPEN_PATHS = frozenset({"/livez", "/readyz", "/openapi.json"})
"""They tell of no job."""
_OPEN_PREFIX = "/v1/attempts/"
"""Runs report here, each with the token of its own attempt."""
_BADGE_PATH = re.compile(r"/v1/jobs/[^/]+/badge\.svg")
"""Shown by pages that have no token; a setting says of which projects."""


class RequestContext:
    """Gives each request an id, writes its line into the log, and answers what nobody caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        request_id = wanted if REQUEST_ID_PATTERN.fullmatch(wanted) else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_var.set(request_id)
        try:
            await self._serve(scope, receive, send, request_id)
        finally:
            request_id_var.reset(token)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started_at, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception:
            _log.exception("request failed", extra=_describe(scope))
            if status:
                raise  # too late for an answer: the server cuts the connection
            detail = f"the server's log tells more under request id {request_id}"
            answer = problem(scope, InternalError(detail))
            answer.headers["Connection"] = "close"
            await answer(scope, receive, send_marked)
        finally:
            seconds = time.perf_counter() - started_at
            _count(scope, status, seconds)
            level = logging.DEBUG if scope["path"].startswith(_QUIET_PATHS) else logging.INFO
            if _log.isEnabledFor(level):
                extra = _describe(scope) | {
                    "status": status,
                    "duration_ms": round(seconds * 1000, 1),
                }
                _log.log(level, "request", extra=extra)


def _count(scope: Scope, status: int, seconds: float) -> None:
    # The template of the route, never the path: its ids would be a label value each.
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    metrics.REQUESTS.labels(method, route, str(status)).inc()
    metrics.REQUEST_SECONDS.labels(method, route).observe(seconds)


def _describe(scope: Scope) -> dict[str, str]:
    return {"method": scope["method"], "path": scope["path"][:_PATH_MAX_CHARS]}


class AskForToken:
    """Finds out who sends a request, before anything else is looked at.

    All paths but a few need a token, so that a new route is closed until somebody opens it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and not _is_open(scope["path"]):
            access = scope["app"].state.parts.access
            try:
                caller = await access.identify(Headers(scope=scope).getlist("authorization"))
            except ApiError as error:
                await problem(scope, error)(scope, receive, send)
                return
            except DATABASE_ERRORS as error:
                await database_problem(scope, error)(scope, receive, send)
                return
            scope["state"]["caller"] = caller
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return (
        path in _OPEN_PATHS
        or path.startswith(_OPEN_PREFIX)
        or _BADGE_PATH.fullmatch(path) is not None
    )


class BodyLimit:
    """Refuses a body that is too large.

    By its declared length before a byte of it is read, and by what has arrived where no length is
    declared.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._detail = f"the body has more than {max_bytes} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._max_bytes:
            await problem(scope, BodyTooLarge(self._detail))(scope, receive, send)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                # Not an ApiError: FastAPI lets only this one through while it reads a body.
                raise HTTPException(413, self._detail)
            return message

        await self._app(scope, receive_counted, send)
