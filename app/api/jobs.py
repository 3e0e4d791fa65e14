"""Routes of jobs: ask for one, list, look, wait, cancel, retry, result."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import Field

from app.api.deps import (
    Condition,
    IfMatch,
    JobId,
    JsonBody,
    KnownEtags,
    NoQuery,
    NoQueryDep,
    Parts,
    QueryTime,
    ReadDep,
    WaitSeconds,
    WriteDep,
)
from app.api.openapi import JOB_HEADERS, LOCATION_HEADERS, REQUEST_EXAMPLES, Answers, answers
from app.api.schemas import JobPage, JobView, ResultView
from app.api.strict import StrictRoute
from app.api.views import job_path, make_etag, summarise_job, view_job, view_result
from app.errors import (
    BodyTooLarge,
    DataNotFound,
    DeviceUnavailable,
    HubDisabled,
    InlineTooLarge,
    InvalidCursor,
    JobNotFound,
    ModelIncomplete,
    ModelNotFound,
    ParallelismInvalid,
    PathNotAllowed,
    PreconditionFailed,
    ResultNotReady,
    TooManyRanks,
    TransitionNotAllowed,
    UnsupportedMediaType,
    WeightsUnsafe,
)
from app.jobs.paging import JobQuery
from app.jobs.records import public_result
from app.jobs.request import JobRequest
from app.jobs.service import JobRecord
from evaluator.contract.states import JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)

_RETRY_AFTER_SECONDS = "2"
_CACHE_CONTROL = "private, no-cache"

Label = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][\w./-]{0,63}:[^\x00-\x1f\x7f]{0,200}$", examples=["branch:main"]),
]


class ListQuery(NoQuery):
    """Which jobs to list. `state` and `label` may be repeated."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Most jobs in a page."""
    cursor: Annotated[str, Field(max_length=500, pattern=r"^[\w=-]+$")] | None = None
    """`next_cursor` of the page before; needs the same filters."""
    state: Annotated[tuple[JobState, ...], Field(max_length=20)] = ()
    """Jobs in any of these states."""
    label: Annotated[tuple[Label, ...], Field(max_length=32)] = ()
    """`key:value`; jobs that carry all of these labels."""
    created_after: QueryTime | None = None
    """RFC 3339 with a time zone."""
    created_before: QueryTime | None = None
    """RFC 3339 with a time zone."""


def _set_job_headers(response: Response, record: JobRecord) -> None:
    response.headers["ETag"] = make_etag(record.job)
    response.headers["Cache-Control"] = _CACHE_CONTROL
    response.headers["Vary"] = "Authorization, Prefer"


def _set_accepted_headers(response: Response, record: JobRecord) -> None:
    _set_job_headers(response, record)
    response.headers["Location"] = job_path(record.job.id)
    response.headers["Retry-After"] = _RETRY_AFTER_SECONDS


def _accepted(description: str) -> Answers:
    return {202: {"description": description, "headers": {**JOB_HEADERS, **LOCATION_HEADERS}}}


@router.post(
    "",
    operation_id="submitJob",
    summary="Ask for an evaluation",
    status_code=202,
    dependencies=[JsonBody],
    responses=answers(
        _accepted("The job is stored and queued."),
        BodyTooLarge,
        DataNotFound,
        DeviceUnavailable,
        HubDisabled,
        InlineTooLarge,
        ModelIncomplete,
        ModelNotFound,
        ParallelismInvalid,
        PathNotAllowed,
        TooManyRanks,
        UnsupportedMediaType,
        WeightsUnsafe,
    ),
)
async def submit_job(
    request: Annotated[JobRequest, Body(openapi_examples=REQUEST_EXAMPLES)],
    parts: WriteDep,
    response: Response,
    _query: NoQueryDep,
) -> JobView:
    """Store a job and queue it; the evaluation runs later, `links` say where to follow it."""
    record = await parts.jobs.submit(request)
    _set_accepted_headers(response, record)
    return view_job(record)


@router.get(
    "",
    operation_id="listJobs",
    summary="List jobs",
    responses=answers(
        {
            200: {
                "description": "A page of jobs, newest first.",
                "headers": {
                    "Link": {
                        "description": 'The next page, with `rel="next"`; absent at the end.',
                        "schema": {"type": "string"},
                    }
                },
            }
        },
        InvalidCursor,
    ),
)
async def list_jobs(
    query: Annotated[ListQuery, Query()], parts: ReadDep, request: Request, response: Response
) -> JobPage:
    """List jobs, newest first; jobs that arrive meanwhile do not shift the pages."""
    page = await parts.jobs.page(
        JobQuery(
            states=query.state,
            labels=tuple(_split_label(label) for label in query.label),
            created_after=query.created_after,
            created_before=query.created_before,
            limit=query.limit,
            cursor=query.cursor,
        )
    )
    if page.next_cursor is not None:
        target = request.url.include_query_params(cursor=page.next_cursor)
        response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return JobPage(
        items=[summarise_job(record) for record in page.items], next_cursor=page.next_cursor
    )


def _split_label(written: str) -> tuple[str, str]:
    key, _, value = written.partition(":")
    return key, value


@router.get(
    "/{job_id}",
    operation_id="getJob",
    summary="Look at a job, or wait for it",
    response_model=JobView,
    responses=answers(
        {
            200: {
                "description": "The job.",
                "headers": {
                    **JOB_HEADERS,
                    "Preference-Applied": {
                        "description": "The wait that was granted.",
                        "schema": {"type": "string", "examples": ["wait=20"]},
                    },
                },
            },
            304: {"description": "You have the current version.", "headers": JOB_HEADERS},
        },
        JobNotFound,
    ),
)
async def get_job(
    job_id: JobId,
    parts: ReadDep,
    response: Response,
    wait_seconds: WaitSeconds,
    known: KnownEtags,
    _query: NoQueryDep,
) -> JobView | Response:
    """Return the job as it is, or with `Prefer: wait=N` once it has ended or the time is over."""
    record = await _look(parts, job_id, wait_seconds)
    _set_job_headers(response, record)
    if wait_seconds is not None:
        response.headers["Preference-Applied"] = f"wait={wait_seconds}"
    if "*" in known or make_etag(record.job) in known:
        return Response(status_code=304, headers=dict(response.headers))
    return view_job(record)


async def _look(parts: Parts, job_id: str, wait_seconds: int | None) -> JobRecord:
    if wait_seconds:
        await parts.streams.unless_closing(parts.jobs.wait(job_id, wait_seconds))
    return await parts.jobs.get(job_id)


@router.post(
    "/{job_id}/cancel",
    operation_id="cancelJob",
    summary="Stop a job",
    status_code=202,
    responses=answers(
        {
            **_accepted("The job is being stopped; it is `cancelled` once no process is left."),
            200: {
                "description": "The job is cancelled, now or already before.",
                "model": JobView,
                "headers": JOB_HEADERS,
            },
        },
        JobNotFound,
        TransitionNotAllowed,
        PreconditionFailed,
    ),
)
async def cancel_job(
    job_id: JobId, parts: WriteDep, response: Response, condition: IfMatch, _query: NoQueryDep
) -> JobView:
    """Stop a job. Asking again changes nothing; a job that ended otherwise can't be cancelled."""
    if_version = await _check_condition(parts, job_id, condition)
    record = await parts.jobs.cancel(job_id, if_version=if_version)
    if record.job.state is JobState.CANCELLED:
        response.status_code = 200
        _set_job_headers(response, record)
    else:
        _set_accepted_headers(response, record)
    return view_job(record)


@router.post(
    "/{job_id}/retry",
    operation_id="retryJob",
    summary="Try a job again",
    status_code=202,
    responses=answers(
        _accepted("The job is queued again."), JobNotFound, TransitionNotAllowed, PreconditionFailed
    ),
)
async def retry_job(
    job_id: JobId, parts: WriteDep, response: Response, condition: IfMatch, _query: NoQueryDep
) -> JobView:
    """Queue a job that ended without a result; what it has scored is not scored again."""
    if_version = await _check_condition(parts, job_id, condition)
    record = await parts.jobs.retry(job_id, if_version=if_version)
    _set_accepted_headers(response, record)
    return view_job(record)


async def _check_condition(parts: Parts, job_id: str, condition: Condition | None) -> int | None:
    """Return the version that the change is for; the service checks it again under its lock."""
    if condition is None:
        return None
    version, _ = await parts.jobs.version(job_id)
    if version not in condition.versions:
        msg = f'the entity tag of the job is now "v{version}", which If-Match does not name'
        raise PreconditionFailed(msg)
    return version


@router.get(
    "/{job_id}/result",
    operation_id="getResult",
    summary="The result alone",
    responses=answers(
        {200: {"description": "The result.", "headers": JOB_HEADERS}}, JobNotFound, ResultNotReady
    ),
)
async def get_result(
    job_id: JobId, parts: ReadDep, response: Response, _query: NoQueryDep
) -> ResultView:
    """Return the result of a job that has succeeded."""
    record = await parts.jobs.get(job_id)
    public_result(record.job)
    result = view_result(record)
    assert result is not None, "public_result has raised then"
    _set_job_headers(response, record)
    return result
