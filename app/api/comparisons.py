"""Two finished jobs side by side."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from app.api.deps import NoQuery, ReadDep, check_job_id
from app.api.openapi import answers
from app.api.schemas import ComparedJob, ComparisonView
from app.errors import JobNotFound, NotComparable, RecordsMissing, ResultNotReady
from app.jobs.comparison import Comparison
from app.jobs.records import compare_jobs

router = APIRouter(prefix="/v1/comparisons", tags=["jobs"])

WrittenJobId = Annotated[str, Field(max_length=100, examples=["job_01jb6v8cw3f4m5n6p7q8r9s0t1"])]


class ComparisonQuery(NoQuery):
    """Which jobs."""

    baseline: WrittenJobId
    """Id of the job to compare with."""
    candidate: WrittenJobId
    """Id of the job in question."""


@router.get(
    "",
    operation_id="compareJobs",
    summary="Compare two jobs, piece of text by piece of text",
    responses=answers(
        {200: {"description": "The comparison; it does not change any more."}},
        JobNotFound,
        ResultNotReady,
        NotComparable,
        RecordsMissing,
    ),
)
async def compare_two(
    query: Annotated[ComparisonQuery, Query()], parts: ReadDep, response: Response
) -> ComparisonView:
    """Compare a candidate with a baseline: paired difference, its error, interval, sign test."""
    baseline, candidate = check_job_id(query.baseline), check_job_id(query.candidate)
    found = await compare_jobs(parts.database, parts.settings, baseline, candidate)
    response.headers["Cache-Control"] = "private, no-cache"
    return view_comparison(found, baseline, candidate)


def view_comparison(found: Comparison, baseline: str, candidate: str) -> ComparisonView:
    """Return the comparison as the API shows it."""
    values = asdict(found)
    values["differs"] = [each._asdict() for each in found.differs]
    values["baseline"] = ComparedJob(job=baseline, value=found.baseline)
    values["candidate"] = ComparedJob(job=candidate, value=found.candidate)
    return ComparisonView.model_validate(values)
