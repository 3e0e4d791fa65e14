"""Routes of a job's commit, and of its badge."""

from fastapi import APIRouter, Response

from app.api.deps import JobId, JsonBody, KnownEtags, NoQueryDep, ReadDep, ServerDep, WriteDep
from app.api.openapi import answers
from app.api.strict import StrictRoute
from app.api.view import Number, Time, View
from app.errors import (
    BodyTooLarge,
    CommitFixed,
    CommitNotFound,
    ForgeNotConfigured,
    JobNotFound,
    RepositoryNotAllowed,
    UnsupportedMediaType,
)
from app.notify.messages import DeliveryState
from app.statuses.service import CommitRecord
from app.statuses.target import CommitTarget, Forge
from app.statuses.told import CommitState

router = APIRouter(prefix="/v1/jobs", tags=["commits"], route_class=StrictRoute)

_CACHE_CONTROL = "no-store"
_BADGE_CACHE_CONTROL = "public, max-age=60"
_BADGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": _BADGE_CACHE_CONTROL,
}


class StatusView(View):
    """What the commit is told, and what came of the last try."""

    state: CommitState
    """What it is to say; forges have words of their own for it."""
    description: str
    sent: CommitState | None
    """What the forge has taken last; null before."""
    delivery: DeliveryState
    num_tries: Number
    """Tries begun, ever."""
    tries_left: Number
    last_try_at: Time | None
    next_try_at: Time | None
    """While a try is under way: when it counts as broken off. Null at the end."""
    status_code: int | None
    error: str | None
    """Why the last try does not count."""
    response: str | None
    """The beginning of the forge's answer, where the last try does not count."""
    num_dropped: Number
    """Statuses of older jobs that were not sent, because a newer job reports here."""


class CommitView(View):
    """The commit that a job is reported to."""

    forge: Forge
    repository: str
    sha: str
    context: str
    awaits_verdict: bool
    """Its success is not told before a gate has judged it."""
    is_superseded: bool
    """A newer job reports there, and this one does no more."""
    status: StatusView | None
    """Null where it is superseded."""


def view_commit(record: CommitRecord) -> CommitView:
    """Return the public representation."""
    row = record.status
    status = None
    if not record.is_superseded:
        status = StatusView(
            state=row.wanted,
            description=row.description,
            sent=row.sent,
            delivery=row.state,
            num_tries=row.num_tries,
            tries_left=row.tries_left,
            last_try_at=row.last_try_at,
            next_try_at=row.due_at,
            status_code=row.status_code,
            error=row.error,
            response=None if row.error is None else row.response,
            num_dropped=row.num_dropped,
        )
    return CommitView(
        forge=row.forge,
        repository=row.repository,
        sha=row.sha,
        context=row.context,
        awaits_verdict=record.commit.awaits_verdict,
        is_superseded=record.is_superseded,
        status=status,
    )


@router.put(
    "/{job_id}/commit",
    operation_id="setCommit",
    summary="Report a job to a commit",
    dependencies=[JsonBody],
    responses=answers(
        {},
        BodyTooLarge,
        CommitFixed,
        ForgeNotConfigured,
        JobNotFound,
        RepositoryNotAllowed,
        UnsupportedMediaType,
    ),
)
async def set_commit(
    job_id: JobId, target: CommitTarget, parts: WriteDep, response: Response, _query: NoQueryDep
) -> CommitView:
    """Set the commit's status to the job's state, now and whenever that changes."""
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return view_commit(await parts.commits.set(job_id, target))


@router.get(
    "/{job_id}/commit",
    operation_id="getCommit",
    summary="See what a job's commit was told",
    responses=answers({}, CommitNotFound, JobNotFound),
)
async def get_commit(
    job_id: JobId, parts: ReadDep, response: Response, _query: NoQueryDep
) -> CommitView:
    """Return the commit of a job, what it is told, and what the forge answered."""
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return view_commit(await parts.commits.get(job_id))


@router.get(
    "/{job_id}/badge.svg",
    operation_id="getBadge",
    summary="A picture of a job's state or perplexity",
    response_class=Response,
    responses=answers(
        {
            200: {
                "description": "The badge.",
                "content": {"image/svg+xml": {"schema": {"type": "string"}}},
                "headers": {
                    "ETag": {
                        "description": "Strong entity tag of the picture.",
                        "schema": {"type": "string"},
                    },
                    "Cache-Control": {
                        "description": f"`{_BADGE_CACHE_CONTROL}`.",
                        "schema": {"type": "string"},
                    },
                },
            },
            304: {"description": "You have the current picture."},
        },
        JobNotFound,
        asks_for_token=False,
    ),
)
async def get_badge(
    job_id: JobId, parts: ServerDep, known: KnownEtags, _query: NoQueryDep
) -> Response:
    """Return the badge, to anybody, where the job's project is one of `ASSAY_PUBLIC_BADGES`."""
    badge = await parts.commits.badge(job_id)
    headers = {**_BADGE_HEADERS, "ETag": badge.etag}
    if "*" in known or badge.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(badge.svg, media_type="image/svg+xml", headers=headers)
