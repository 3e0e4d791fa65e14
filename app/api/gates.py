"""Gates: the verdict on a candidate; and baselines: jobs that were promoted to be compared with."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Body, Path, Response
from fastapi.openapi.models import Example

from app.api.deps import JsonBody, NoQueryDep, ReadDep, WriteDep, check_job_id
from app.api.gate_schemas import BaselineView, GateView
from app.api.openapi import answers
from app.api.strict import StrictRoute
from app.errors import (
    BaselineNotFound,
    BodyTooLarge,
    JobNotFound,
    NotComparable,
    RecordsMissing,
    ResultNotReady,
    UnsupportedMediaType,
)
from app.gates.baselines import load_baseline, promote
from app.gates.evaluate import Evaluation, evaluate
from app.gates.rules import BaselineName, GateRequest, JobBaseline, WrittenJobId
from app.models import Baseline
from evaluator.contract.base import Contract

router = APIRouter(prefix="/v1/gates", tags=["gates"], route_class=StrictRoute)
baselines_router = APIRouter(prefix="/v1/baselines", tags=["gates"], route_class=StrictRoute)

_JOB = "job_01jb6v8cw3f4m5n6p7q8r9s0t1"
_EXAMPLES: dict[str, Example] = {
    "against-main": Example(
        summary="The newest job of the main branch, half a percent, and a limit",
        value={
            "candidate": _JOB,
            "baseline": {"kind": "newest", "labels": {"branch": "main"}},
            "rules": [
                {"kind": "perplexity", "max_regression_percent": 0.5, "level": 0.05},
                {"kind": "limit", "figure": "token_perplexity", "at_most": 20},
            ],
        },
    )
}
_CACHE_CONTROL = "private, no-cache"

NamePath = Annotated[BaselineName, Path(description="Name of a baseline.")]


class PromoteRequest(Contract):
    """Which job becomes the baseline."""

    job: WrittenJobId
    """Its id; it must have succeeded."""


@router.post(
    "/evaluations",
    operation_id="evaluateGate",
    summary="Judge a candidate",
    dependencies=[JsonBody],
    responses=answers(
        {200: {"description": "The verdict; nothing is stored."}},
        BodyTooLarge,
        JobNotFound,
        ResultNotReady,
        NotComparable,
        RecordsMissing,
        UnsupportedMediaType,
    ),
)
async def evaluate_gate(
    request: Annotated[GateRequest, Body(openapi_examples=_EXAMPLES)],
    parts: ReadDep,
    response: Response,
    _query: NoQueryDep,
) -> GateView:
    """Compare a candidate with a baseline and say whether it may go on."""
    check_job_id(request.candidate)
    if isinstance(request.baseline, JobBaseline):
        check_job_id(request.baseline.job)
    found = await evaluate(parts.database, parts.settings, request)
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return view_gate(found, request.candidate)


@baselines_router.put(
    "/{name}",
    operation_id="promoteJob",
    summary="Make a job the baseline of this name",
    dependencies=[JsonBody],
    responses=answers(
        {
            200: {"description": "The name stood for another job before, or for this one."},
            201: {"description": "The name is new.", "model": BaselineView},
        },
        BodyTooLarge,
        JobNotFound,
        ResultNotReady,
        UnsupportedMediaType,
    ),
)
async def promote_job(
    name: NamePath,
    request: PromoteRequest,
    parts: WriteDep,
    response: Response,
    _query: NoQueryDep,
) -> BaselineView:
    """Promote a job that has succeeded; the one before is forgotten."""
    baseline, is_new = await promote(parts.database, name, check_job_id(request.job))
    response.status_code = 201 if is_new else 200
    return _view_baseline(baseline, response)


@baselines_router.get(
    "/{name}",
    operation_id="getBaseline",
    summary="The job that was promoted under a name",
    responses=answers({200: {"description": "The baseline."}}, BaselineNotFound),
)
async def get_baseline(
    name: NamePath, parts: ReadDep, response: Response, _query: NoQueryDep
) -> BaselineView:
    """Return which job was promoted, and when."""
    return _view_baseline(await load_baseline(parts.database, name), response)


def _view_baseline(baseline: Baseline, response: Response) -> BaselineView:
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return BaselineView(name=baseline.name, job=baseline.job_id, promoted_at=baseline.promoted_at)


def view_gate(found: Evaluation, candidate: str) -> GateView:
    """Return the verdict as the API shows it."""
    judgement = found.judgement
    return GateView.model_validate(
        {
            "verdict": judgement.verdict,
            "sentence": judgement.sentence,
            "candidate": candidate,
            "baseline": found.baseline_id,
            "outcomes": [asdict(each) for each in judgement.outcomes],
            "num_unpaired_documents": judgement.num_unpaired_documents,
            "differs": [each._asdict() for each in judgement.differs],
        }
    )
