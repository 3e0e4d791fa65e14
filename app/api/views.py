"""Turns stored jobs into what the API shows. Pure."""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import Any

from app.api.node_schemas import (
    NodesView,
    NodeTimingView,
    NodeView,
    RankTimes,
    RankView,
    SlowestView,
    SpeedsView,
)
from app.api.schemas import (
    AttemptView,
    AuditView,
    Digests,
    FindingView,
    JobSummary,
    JobView,
    Links,
    ProgressView,
    ResultSummary,
    ResultView,
    ShareView,
)
from app.jobs.progress import progress
from app.jobs.request import JobRequest
from app.jobs.scored_by import Accounts
from app.jobs.service import JobRecord
from app.jobs.skew import find_slowest, measure_speeds
from app.models import Attempt, Job, Rank
from evaluator.contract.reports import NodeTiming, RankTiming, Result
from evaluator.contract.states import JobState


def job_path(job_id: str) -> str:
    """Return the path of a job."""
    return f"/v1/jobs/{job_id}"


def make_etag(job: Job) -> str:
    """Return the strong entity tag of a job's representation."""
    return f'"v{job.version}"'


def view_job(record: JobRecord) -> JobView:
    """Return the full representation."""
    return JobView(
        **_view_base(record),
        request=JobRequest.model_validate(record.job.request),
        attempts=[_view_attempt(attempt) for attempt in record.attempts],
        nodes=_view_nodes(record.ranks),
        result=view_result(record),
    )


def summarise_job(record: JobRecord) -> JobSummary:
    """Return the representation in a list."""
    result = _public_result(record.job)
    summary = None
    if result is not None:
        figures = result.perplexity
        summary = ResultSummary(
            token_perplexity=figures.token_perplexity,
            token_perplexity_standard_error=figures.token_perplexity_standard_error,
            bits_per_byte=figures.bits_per_byte,
            num_scored_tokens=figures.num_scored_tokens,
        )
    return JobSummary(**_view_base(record), result=summary)


def _view_base(record: JobRecord) -> dict[str, Any]:
    job, path = record.job, job_path(record.job.id)
    return {
        "id": job.id,
        "project": job.project,
        "state": job.state,
        "is_terminal": job.state.is_terminal,
        "state_reason": job.state_reason,
        "message": job.message,
        "priority": job.priority,
        "labels": record.labels,
        "attempt": job.attempt,
        "attempts_left": job.attempts_left,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "started_at": job.started_at,
        "deadline_at": job.deadline_at,
        "ended_at": job.ended_at,
        "progress": ProgressView(**progress(job, record.ranks)),
        "links": Links(
            self=path,
            cancel=f"{path}/cancel",
            retry=f"{path}/retry",
            events=f"{path}/events",
            logs=f"{path}/logs",
            nodes=f"{path}/nodes",
            result=f"{path}/result",
            windows=f"{path}/windows",
        ),
    }


def _view_attempt(attempt: Attempt) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        reason=attempt.reason,
        message=attempt.message,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
    )


def _view_nodes(ranks: Iterable[Rank]) -> list[NodeView]:
    ordered = sorted(ranks, key=lambda rank: (rank.node_rank, rank.local_rank))
    nodes = []
    for node_rank, group in groupby(ordered, key=lambda rank: rank.node_rank):
        members = list(group)
        views = [
            RankView(
                **_times(_timing(rank)),
                device=rank.device,
                stage=rank.stage,
                last_seen_at=rank.last_seen_at,
            )
            for rank in members
        ]
        nodes.append(NodeView(node_rank=node_rank, host=members[0].host, ranks=views))
    return nodes


def view_nodes(record: JobRecord) -> NodesView:
    """Return nodes and ranks of the current attempt, and how uneven they are."""
    timings = [_timing(rank) for rank in sorted(record.ranks, key=lambda rank: rank.rank)]
    speeds, slowest = measure_speeds(timings), find_slowest(timings)
    return NodesView(
        nodes=_view_nodes(record.ranks),
        speeds=None if speeds is None else SpeedsView(**asdict(speeds)),
        slowest=None if slowest is None else SlowestView(**asdict(slowest)),
    )


def _timing(rank: Rank) -> RankTiming:
    if rank.timing is not None:
        return RankTiming.model_validate(rank.timing)
    return RankTiming(rank=rank.rank, local_rank=rank.local_rank, node_rank=rank.node_rank)


def _times(timing: RankTiming) -> dict[str, Any]:
    """Name the durations as the API does: `load_s` is `load_seconds` outside."""
    values = timing.model_dump(exclude={"node_rank", "speeds"})
    return {
        f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name: value
        for name, value in values.items()
    }


def view_node_timing(data: dict[str, Any]) -> NodeTimingView:
    """Return the data of a `timing` event from the stored contract report."""
    report = NodeTiming.model_validate(data)
    return NodeTimingView(
        node_rank=report.node_rank,
        host=report.host,
        ranks=[RankTimes(**_times(timing)) for timing in report.ranks],
    )


def _public_result(job: Job) -> Result | None:
    """Return the result once it counts: one that has arrived may still be found invalid."""
    if job.state is not JobState.SUCCEEDED or job.result is None:
        return None
    return Result.model_validate(job.result)


def _view_shares(accounts: Accounts) -> list[ShareView]:
    return [ShareView(**asdict(share)) for share in accounts.shares]


def _view_audit(accounts: Accounts, result: Result) -> AuditView:
    return AuditView(
        sample=result.audit,
        num_findings=accounts.num_findings,
        findings=[FindingView.model_validate(finding) for finding in accounts.findings],
    )


def view_result(record: JobRecord) -> ResultView | None:
    """Return the result of a job that succeeded."""
    result = _public_result(record.job)
    if result is None:
        return None
    accounts = record.accounts or Accounts([], 0, [])
    return ResultView(
        perplexity=result.perplexity,
        nll_by_context=list(result.nll_by_context),
        scoring=result.scoring,
        plan=result.plan,
        digests=Digests(
            model=result.model_digest,
            data=result.data_digest,
            tokenizer=result.tokenizer_digest,
            windows=result.windows_digest,
            tokens=result.tokens_digest,
        ),
        device=result.device,
        dtype=result.dtype,
        threads_per_rank=result.threads_per_rank,
        world_size=result.world_size,
        parallelism=result.parallelism,
        num_batches_resumed=result.num_batches_resumed,
        scored_by=_view_shares(accounts),
        audit=_view_audit(accounts, result),
        sync_error=result.sync_error,
        traffic=result.traffic,
        packed=result.packed,
        efficiency=result.efficiency,
        wall_seconds=result.wall_s,
        versions=result.versions,
        warnings=list(result.warnings),
    )
