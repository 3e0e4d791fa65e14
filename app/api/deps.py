"""What routes need, as `Annotated` dependencies: services, ids, query and header values.

All of them are coroutines: the framework runs a plain function in a thread, which costs more than
it does, and waits when all threads are busy.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.streams import Streams
from app.api.strict import refuse_repeated
from app.auth.access import Access, Caller
from app.auth.tokens import Scope
from app.db import Database
from app.errors import DeliveryNotFound, JobNotFound, UnsupportedMediaType, WebhookNotFound
from app.jobs.hub import Hub
from app.jobs.service import JobService
from app.jobs.writer import ReportWriter
from app.notify.service import WebhookService
from app.settings import Settings
from app.statuses.service import CommitService
from app.workers import Workers

WAIT_MAX_SECONDS = 60
BIGINT_MAX = 2**63 - 1

_JOB_ID = re.compile(r"job_[0-9a-z]{1,36}")
_WEBHOOK_ID = re.compile(r"wh_[0-9a-z]{1,36}")
_DELIVERY_ID = re.compile(r"msg_[0-9a-z]{1,36}")
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ETAG = re.compile(r'(?:W/)?"[^"]*"')
_OUR_ETAG = re.compile(r'"v(\d{1,18})"')
_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


@dataclass(frozen=True)
class Parts:
    """The parts of a running server that routes talk to; `app.main` makes them."""

    settings: Settings
    database: Database
    access: Access
    hub: Hub
    jobs: JobService
    webhooks: WebhookService
    commits: CommitService
    writer: ReportWriter
    workers: Workers | None
    """Null where another process runs the loops."""
    streams: Streams


async def _whole_server(
    request: Request, _once: Annotated[None, Depends(refuse_repeated)]
) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


ServerDep = Annotated[Parts, Depends(_whole_server)]
"""The parts with all projects: for routes that ask for no token and look at no job."""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="apiToken",
    description="A token of `assay token create`; a server on loopback without any asks for none.",
)


async def _callers_parts(
    request: Request,
    server: ServerDep,
    needed: SecurityScopes,
    _for_the_document: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Parts:
    """Return the parts, confined to the caller's project.

    Raises:
        InsufficientScope: the caller may not use this route.
    """
    caller: Caller = request.state.caller  # app.middleware has asked who it is
    for scope in needed.scopes:
        caller.need(Scope(scope))
    if caller.project is None:
        return server
    database = server.database.within(caller.project)
    return replace(
        server,
        database=database,
        jobs=server.jobs.on(database),
        webhooks=server.webhooks.on(database),
        commits=server.commits.on(database),
    )


ReadDep = Annotated[Parts, Security(_callers_parts, scopes=[Scope.JOBS_READ])]
"""The parts, for a caller who may look at jobs."""
WriteDep = Annotated[Parts, Security(_callers_parts, scopes=[Scope.JOBS_WRITE])]
"""The parts, for a caller who may submit, cancel and retry them."""
MetricsDep = Annotated[Parts, Security(_callers_parts, scopes=[Scope.METRICS_READ])]
"""The parts, for a caller who may read the server's figures."""
HooksDep = Annotated[Parts, Security(_callers_parts, scopes=[Scope.HOOKS_WRITE])]
"""The parts, for a caller who may see and change webhooks."""


def check_job_id(job_id: str) -> str:
    """Refuse what can't be an id before it gets to the database.

    Raises:
        JobNotFound: it can't be one.
    """
    if not _JOB_ID.fullmatch(job_id):
        msg = (
            f"{job_id[:60]!r} is not the id of a job: ids look like job_01jb6v8cw3f4m5n6p7q8r9s0t1"
        )
        raise JobNotFound(msg)
    return job_id


async def _job_id(
    job_id: Annotated[
        str, Path(description="Id of a job.", examples=["job_01jb6v8cw3f4m5n6p7q8r9s0t1"])
    ],
) -> str:
    return check_job_id(job_id)


JobId = Annotated[str, Depends(_job_id)]


async def _webhook_id(
    webhook_id: Annotated[
        str, Path(description="Id of a webhook.", examples=["wh_01jb6v8cw3f4m5n6p7q8r9s0t1"])
    ],
) -> str:
    if not _WEBHOOK_ID.fullmatch(webhook_id):
        msg = f"{webhook_id[:60]!r} is not the id of a webhook: GET /v1/webhooks lists them"
        raise WebhookNotFound(msg)
    return webhook_id


WebhookId = Annotated[str, Depends(_webhook_id)]


async def _delivery_id(
    delivery_id: Annotated[
        str, Path(description="Id of a delivery.", examples=["msg_01jb6v8cw3f4m5n6p7q8r9s0t1"])
    ],
) -> str:
    if not _DELIVERY_ID.fullmatch(delivery_id):
        msg = f"{delivery_id[:60]!r} is not the id of a delivery: the webhook's list has them"
        raise DeliveryNotFound(msg)
    return delivery_id


DeliveryId = Annotated[str, Depends(_delivery_id)]


class NoQuery(BaseModel):
    """A query without parameters; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


NoQueryDep = Annotated[NoQuery, Query()]


def _parse_time(value: Any) -> datetime:
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        code, msg = "time_format", "a time like 2026-03-01T12:00:00Z; write + as %2B in a query"
        raise PydanticCustomError(code, msg)
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        code, msg = "time_range", "there is no such time, or it is too far away"
        raise PydanticCustomError(code, msg) from error


QueryTime = Annotated[
    datetime,
    BeforeValidator(_parse_time),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""RFC 3339 with a time zone."""


async def require_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON.

    Raises:
        UnsupportedMediaType: it is not.
    """
    written = request.headers.get("content-type", "")
    kind = written.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not is_json:
        msg = f"send Content-Type: application/json, not {written[:80]!r}"
        raise UnsupportedMediaType(msg)


JsonBody = Depends(require_json)


async def _wait_seconds(
    prefer: Annotated[
        list[str] | None,
        Header(
            description=f"`wait=20`: answer when the job has ended, or after 20 seconds (at most "
            f"{WAIT_MAX_SECONDS}). Anything else is ignored (RFC 7240).",
            examples=["wait=20"],
        ),
    ] = None,
) -> int | None:
    """Return the wait that the client prefers, capped."""
    found = _WAIT.search(",".join(prefer or ()))
    return None if found is None else min(int(found[1]), WAIT_MAX_SECONDS)


WaitSeconds = Annotated[int | None, Depends(_wait_seconds)]


def parse_etags(written: Iterable[str]) -> list[str]:
    """Return the entity tags of `If-Match` or `If-None-Match`; `*` stands for any."""
    text = ",".join(written).strip()
    return ["*"] if text == "*" else _ETAG.findall(text)


async def _known_etags(
    if_none_match: Annotated[
        list[str] | None,
        Header(
            description="Entity tags you have; when one is current the answer is 304, without a "
            "body.",
            examples=['"v17"'],
        ),
    ] = None,
) -> list[str]:
    return [tag.removeprefix("W/") for tag in parse_etags(if_none_match or ())]


KnownEtags = Annotated[list[str], Depends(_known_etags)]


@dataclass(frozen=True)
class Condition:
    """The versions that a job may have for a change to be made."""

    versions: frozenset[int]


async def _condition(
    if_match: Annotated[
        list[str] | None,
        Header(
            description="Entity tag of the job as you read it; if the job has changed since, "
            "nothing is done and the answer is 412.",
            examples=['"v17"'],
        ),
    ] = None,
) -> Condition | None:
    """Return null where any version will do. Weak tags match nothing (RFC 9110, 13.1.1)."""
    if if_match is None:
        return None
    tags = parse_etags(if_match)
    if tags == ["*"]:
        return None
    ours = (_OUR_ETAG.fullmatch(tag) for tag in tags)
    return Condition(frozenset(int(found[1]) for found in ours if found))


IfMatch = Annotated[Condition | None, Depends(_condition)]
