"""Applies reports to what is stored of their attempts.

Reports come by HTTP and, once a launch has ended, from its spool; either way `Absorber` applies
them, so a report counts once. What it needs is loaded for all attempts together, then every report
is applied in memory: the number of statements does not grow with the number of attempts.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from sqlalchemy.ext.asyncio import AsyncSession

from app.jobs.ledger import (
    Batch,
    add_rows,
    agree,
    drop_rows,
    is_complete,
    load_known,
    replace_row,
    to_row,
)
from app.jobs.progress import progress
from app.jobs.ranks import Ranks, RankState, load_states, save_states
from app.jobs.repository import add_event, move, utcnow
from app.jobs.transitions import JobEvent
from app.models import Attempt, Job
from evaluator.contract.reports import (
    Failure,
    Hello,
    NodeTiming,
    PlanReady,
    Progress,
    Quarantine,
    RankTiming,
    Report,
    Result,
    Stage,
)
from evaluator.contract.states import FailureReason, JobState

PROGRESS_EVENT_SECONDS = 0.5
"""Least time between two progress events of a job."""
_REPORTING = (JobState.STARTING, JobState.RUNNING)
_STAGES = get_args(Stage)
"""In their order."""
_AFTER_SCORE = _STAGES[_STAGES.index("score") + 1 :]


@dataclass(frozen=True)
class Delivery:
    """Reports of one attempt, in order; its job's row is locked."""

    job: Job
    attempt: Attempt
    reports: Sequence[Report]

    @property
    def is_current(self) -> bool:
        """Whether the attempt may still change its job."""
        return self.attempt.number == self.job.attempt and self.attempt.ended_at is None


@dataclass
class _Turn:
    """What one attempt's reports are applied to."""

    job: Job
    attempt: Attempt
    ranks: Ranks
    """All of the attempt where the stream is told, else at least those that report."""
    reports: list[Report]
    """Those that are new."""
    added: dict[int, Batch] = field(default_factory=dict)
    """Batches to add to the ledger, by number."""
    replaced: dict[int, Batch] = field(default_factory=dict)
    """Batches to put in the place of those in the ledger."""


class Absorber:
    """Applies reports. Remembers when it last told the stream of a job's progress."""

    def __init__(self) -> None:
        """Start with no job told of."""
        self._told_at: dict[str, float] = {}

    async def absorb(self, session: AsyncSession, deliveries: Sequence[Delivery]) -> None:
        """Apply what is new, in order.

        A quarantine takes batches out of the ledger, so what follows it starts anew from there.
        Reports of an attempt that is not the current one of its job, or that has ended, change
        nothing.

        Args:
            session: of the transaction that holds the locks.
            deliveries: one for each attempt.
        """
        waiting = [_parts(each) for each in deliveries if each.is_current]
        while waiting:
            await self._absorb(session, [parts.pop(0) for parts in waiting])
            waiting = [parts for parts in waiting if parts]

    async def _absorb(self, session: AsyncSession, current: Sequence[Delivery]) -> None:
        now = time.monotonic()
        telling = {each.attempt.id for each in current if self._tells(each, now)}
        ranks = await load_states(session, telling, _single_ranks(current, telling))
        turns = [_begin(each, ranks.get(each.attempt.id, {})) for each in current]
        for turn in turns:
            await _take_quarantine(session, turn)
        known = await load_known(
            session,
            [
                (turn.job.id, entry.batch)
                for turn in turns
                for report in turn.reports
                if isinstance(report, Progress)
                for entry in report.entries
            ],
        )
        for turn in turns:
            stage = turn.job.stage
            for report in turn.reports:
                _apply(session, turn, report, known)
            if turn.attempt.id in telling:
                turn.job.stage = _stage_of(turn.job, turn.ranks.values())
            if turn.reports:
                self._tell(session, turn, now, force=turn.job.stage != stage)
        await save_states(session, (rank for turn in turns for rank in turn.ranks.values()))
        await add_rows(session, [row for turn in turns for row in turn.added.values()])
        for row in (row for turn in turns for row in turn.replaced.values()):
            await replace_row(session, row)

    def _tells(self, delivery: Delivery, now: float) -> bool:
        """Say whether the stream may be told: it is time, or more may change than counters."""
        job = delivery.job
        if self._is_time(job, now):
            return True
        num_new = 0
        for report in delivery.reports:
            if not isinstance(report, Progress) or report.stage != job.stage:
                return True
            num_new += len(report.entries)
        return job.plan is not None and job.num_batches_done + num_new >= job.plan["num_batches"]

    def _is_time(self, job: Job, now: float) -> bool:
        return now - self._told_at.get(job.id, -PROGRESS_EVENT_SECONDS) >= PROGRESS_EVENT_SECONDS

    def _tell(self, session: AsyncSession, turn: _Turn, now: float, *, force: bool) -> None:
        if not force and not self._is_time(turn.job, now):
            turn.job.version += 1  # what the job shows has changed, so must its entity tag
            return
        self._told_at[turn.job.id] = now
        _add_progress(session, turn)

    def forget(self, job_id: str) -> None:
        """Drop what is remembered of a job that has ended."""
        self._told_at.pop(job_id, None)


def _parts(delivery: Delivery) -> list[Delivery]:
    """Cut so that a quarantine is the first report of its part."""
    reports = delivery.reports
    cuts = [at for at, report in enumerate(reports) if at and isinstance(report, Quarantine)]
    edges = zip([0, *cuts], [*cuts, len(reports)], strict=True)
    return [replace(delivery, reports=reports[begin:end]) for begin, end in edges]


async def _take_quarantine(session: AsyncSession, turn: _Turn) -> None:
    """Take out what a wrong rank has scored; what it says from now on does not count."""
    if not turn.reports or not isinstance(turn.reports[0], Quarantine):
        return
    suspect = turn.reports[0].suspect
    job, author = turn.job, suspect.author
    dropped = await drop_rows(session, job.id, author)
    job.num_batches_done -= dropped.num_batches
    job.num_scored_tokens_done -= dropped.num_scored_tokens
    # Nothing more is taken of earlier attempts anyway.
    if author.attempt == turn.attempt.number and author.rank in turn.ranks:
        turn.ranks[author.rank].quarantined = True
        turn.ranks[author.rank].seen_at = utcnow()
    add_event(session, job, "quarantine", suspect.model_dump(mode="json"))


def _single_ranks(deliveries: Sequence[Delivery], without: set[str]) -> set[tuple[str, int]]:
    """Return the ranks that report, by attempt and number."""
    return {
        (each.attempt.id, report.rank)
        for each in deliveries
        if each.attempt.id not in without
        for report in each.reports
    }


def _begin(delivery: Delivery, ranks: Ranks) -> _Turn:
    new = _take_numbers(delivery.attempt, ranks, delivery.reports)
    return _Turn(delivery.job, delivery.attempt, ranks, new)


def _apply(
    session: AsyncSession,
    turn: _Turn,
    report: Report,
    known: dict[tuple[str, int], Batch],
) -> None:
    """Apply one report."""
    match report:
        case Hello():
            _take_hello(session, turn)
        case PlanReady():
            _take_plan(session, turn.job, report)
        case Progress():
            turn.ranks[report.rank].stage = report.stage
            _take_timing(turn.ranks, report.timing)
            _take_entries(session, turn, report, known)
        case NodeTiming():
            for timing in report.ranks:
                _take_timing(turn.ranks, timing)
            add_event(session, turn.job, "timing", report.model_dump(mode="json"))
        case Result():
            _add_progress(session, turn)
            _take_result(session, turn.job, report)
        case Failure():
            _take_failure(turn.attempt, report)


def _add_progress(session: AsyncSession, turn: _Turn) -> None:
    data = {"state": turn.job.state, **progress(turn.job, turn.ranks.values())}
    add_event(session, turn.job, "progress", data)


def _take_numbers(attempt: Attempt, ranks: Ranks, reports: Sequence[Report]) -> list[Report]:
    """Return the reports that follow what is known of their rank, and count them as known."""
    new: list[Report] = []
    now = utcnow()
    for report in reports:
        rank = ranks.get(report.rank)
        if rank is None:
            if not isinstance(report, Hello):
                continue  # a rank introduces itself first; the spool has both
            rank = ranks[report.rank] = RankState(attempt.id, report.rank, hello=report)
        if report.seq != rank.last_seq + 1:
            continue  # seen already, or one before it is missing: the spool has it
        rank.last_seq, rank.seen_at = report.seq, now
        new.append(report)
    return new


def _stage_of(job: Job, ranks: Iterable[RankState]) -> str | None:
    """Return the stage of the most advanced rank; after scoring only once all is scored."""
    stages = {rank.stage for rank in ranks}
    reached = [stage for stage in _STAGES if stage in stages]
    if not reached:
        return None
    all_scored = job.plan is not None and job.num_batches_done >= job.plan["num_batches"]
    return "score" if reached[-1] in _AFTER_SCORE and not all_scored else reached[-1]


def _take_hello(session: AsyncSession, turn: _Turn) -> None:
    if turn.attempt.started_at is None:
        turn.attempt.started_at = utcnow()
    if turn.job.state is JobState.STARTING:
        move(session, turn.job, JobEvent.REPORT)


def _take_result(session: AsyncSession, job: Job, report: Result) -> None:
    """Keep the result; one that comes while the job is being cancelled is too late."""
    if job.state in _REPORTING:
        job.result = report.model_dump(mode="json")
        move(session, job, JobEvent.RESULT)


def _take_timing(ranks: Ranks, timing: RankTiming) -> None:
    if timing.rank in ranks:
        ranks[timing.rank].timing = timing.model_dump()


def _take_plan(session: AsyncSession, job: Job, report: PlanReady) -> None:
    """Store plan and model, unless finished batches belong to others.

    Every rank of such an attempt refuses to go on; who puts the old files back can retry.
    """
    before = (job.plan and job.plan["digest"], job.model_digest)
    now = (report.plan.digest, report.model_digest)
    changed = any(old and new and old != new for old, new in zip(before, now, strict=True))
    if changed and job.num_batches_done:
        add_event(session, job, "plan_changed", {"plan": now[0], "model": now[1]})
        return
    job.plan = report.plan.model_dump(mode="json")
    job.model_digest = report.model_digest


def _take_entries(
    session: AsyncSession,
    turn: _Turn,
    report: Progress,
    known: dict[tuple[str, int], Batch],
) -> None:
    """Add finished batches; one that is there already must carry the same bytes."""
    job = turn.job
    if turn.ranks[report.rank].quarantined:
        return
    for entry in report.entries:
        row = to_row(entry, job_id=job.id, attempt=turn.attempt.number, rank=report.rank)
        first = known.setdefault((job.id, entry.batch), row)
        if first is row:
            turn.added[entry.batch] = row
            job.num_batches_done += 1
            job.num_scored_tokens_done += sum(entry.num_scored)
        else:
            _compare(session, turn, known, first, row)


def _compare(
    session: AsyncSession,
    turn: _Turn,
    known: dict[tuple[str, int], Batch],
    first: Batch,
    row: Batch,
) -> None:
    """Keep one of two scorings of a batch.

    Reports of ranks come in any order. A round scores only what the audit has dropped, so the
    latest one counts. Otherwise equal numbers are a repetition, and the first scoring stays; where
    they differ that of the later attempt counts, since its result is made of it, and it is told.
    """
    before, now = (first.attempt, first.round), (row.attempt, row.round)
    if now < before:
        return
    is_same = agree(first, row)
    if now > before and (row.round or not is_same):
        _replace(turn, known, row)
    elif is_same and not is_complete(first):
        _replace(
            turn, known, row._replace(attempt=first.attempt, rank=first.rank, round=first.round)
        )
    if not is_same and (now == before or row.round == 0):
        finding = {
            "batch": row.batch,
            "first_attempt": first.attempt,
            "first_rank": first.rank,
            "second_attempt": row.attempt,
            "second_rank": row.rank,
        }
        add_event(session, turn.job, "audit", finding)


def _replace(turn: _Turn, known: dict[tuple[str, int], Batch], row: Batch) -> None:
    known[row.job_id, row.batch] = row
    (turn.added if row.batch in turn.added else turn.replaced)[row.batch] = row


def _take_failure(attempt: Attempt, report: Failure) -> None:
    """Keep the failure that explains most: the first, but a broken connection only follows."""
    if report.reason is FailureReason.SUPERSEDED:
        return
    if attempt.failure is None or attempt.failure["reason"] == FailureReason.COMMUNICATION:
        attempt.failure = report.model_dump(mode="json")
