"""Liveness, readiness, and the OpenAPI document."""

import asyncio
import logging
from collections.abc import Awaitable

from fastapi import APIRouter, Request, Response

from app.api.deps import NoQueryDep, Parts, ServerDep
from app.api.openapi import answers, dump_openapi
from app.api.schemas import Check, Liveness, Readiness
from app.disk import DiskProbe, DiskRefuses
from app.error_handlers import problem
from app.errors import NotReady
from app.migrate import is_current

router = APIRouter(tags=["health"])
_log = logging.getLogger(__name__)

CHECK_TIMEOUT_SECONDS = 5.0
HEARTBEAT_MAX_SECONDS = 30.0
"""Longest that a turn of a worker loop may take; more means that it hangs."""


@router.get(
    "/livez",
    operation_id="getLiveness",
    summary="Is the process there?",
    responses=answers({}, uses_database=False, asks_for_token=False),
)
async def get_liveness(response: Response, _query: NoQueryDep) -> Liveness:
    """Answer. Looks at nothing else, so it is no reason to restart the server when it is busy."""
    response.headers["Cache-Control"] = "no-store"
    return Liveness(status="ok")


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Can the server do its work?",
    response_model=Readiness,
    responses=answers({}, NotReady, asks_for_token=False),
)
async def get_readiness(
    request: Request, response: Response, parts: ServerDep, _query: NoQueryDep
) -> Readiness | Response:
    """Check the database, its migrations, the disk and the heartbeats of the worker loops."""
    disk: DiskProbe = request.app.state.disk
    checks = [
        await _check("database", parts.database.ping()),
        await _check("migrations", _need_current(parts)),
        await _check("disk", disk.check()),
        *_check_workers(parts),
    ]
    bad = [check for check in checks if not check.ok]
    if bad:
        error = NotReady("; ".join(f"{check.name}: {check.detail}" for check in bad))
        listed = [check.model_dump() for check in checks]
        return problem(request.scope, error, more={"checks": listed})
    response.headers["Cache-Control"] = "no-store"
    return Readiness(status="ready", checks=checks)


class _Behind(Exception):
    """The database lacks a migration."""


async def _need_current(parts: Parts) -> None:
    if not await is_current(parts.database):
        raise _Behind


async def _check(name: str, work: Awaitable[None]) -> Check:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            await work
    except _Behind:
        detail = "the database lacks a migration: restart the server"
    except DiskRefuses as error:
        _log.error("the state directory can't be used", extra={"reason": str(error)})
        detail = str(error)
    except TimeoutError:
        detail = f"no answer within {CHECK_TIMEOUT_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - an edge: whatever it is, the check has failed
        _log.warning("readiness check failed", extra={"check": name}, exc_info=True)
        detail = f"{type(error).__name__}, see the server's log"
    else:
        return Check(name=name, ok=True, detail=None)
    return Check(name=name, ok=False, detail=detail)


def _check_workers(parts: Parts) -> list[Check]:
    if parts.workers is None:
        return []
    return [
        Check(
            name=f"worker:{loop}",
            ok=age_s <= HEARTBEAT_MAX_SECONDS,
            detail=None if age_s <= HEARTBEAT_MAX_SECONDS else f"hangs since {age_s:.0f} s",
        )
        for loop, age_s in sorted(parts.workers.heartbeat_ages().items())
    ]


@router.get("/openapi.json", include_in_schema=False)
async def get_openapi_document(request: Request, _query: NoQueryDep) -> Response:
    """Return the description of this API, made once."""
    state = request.app.state
    if not hasattr(state, "openapi_document"):
        state.openapi_document = dump_openapi(request.app)
    return Response(state.openapi_document, media_type="application/json")
