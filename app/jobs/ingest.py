"""Takes reports in: one writer, one transaction for all that arrived within 50 ms.

The same `absorb` reads the spool of a launch that has ended, so a report counts once whichever
way it came.
"""

import asyncio
import hmac
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import ApiError, AttemptNotCurrent, ContractMismatch, TokenInvalid
from app.ids import hash_token
from app.jobs.ledger import agree, to_row
from app.jobs.progress import progress
from app.jobs.repository import add_event, load_job, move, utcnow
from app.jobs.transitions import JobEvent
from app.models import Attempt, Job, LedgerRow, Rank
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import (
    Failure,
    Hello,
    NodeTiming,
    PlanReady,
    Progress,
    RankTiming,
    Report,
    ReportBatch,
    Result,
    Stage,
)
from evaluator.contract.states import FailureReason, JobState

_log = logging.getLogger(__name__)

BATCH_SECONDS = 0.05
"""How long the writer gathers reports before it commits them."""
PROGRESS_EVENT_SECONDS = 0.5
"""Least time between two progress events of a job."""
_REPORTING = (JobState.STARTING, JobState.RUNNING)
_STAGES = get_args(Stage)
"""In their order."""
_SQL_PARAMETERS = 500
"""Most values in one IN list; SQLite has a limit on them."""


class Absorber:
    """Applies reports to the rows of their attempt. Remembers when it last told the stream."""

    def __init__(self) -> None:
        """Start with no job told of."""
        self._told_at: dict[str, float] = {}

    async def absorb(
        self, session: AsyncSession, attempt: Attempt, reports: Sequence[Report]
    ) -> int:
        """Apply what is new in `reports`, in order, and return how many were.

        The attempt's job row is locked first. Reports of an attempt that is not the current one
        of its job, or that has ended, change nothing.
        """
        job = await load_job(session, attempt.job_id, lock=True)
        await session.refresh(attempt)
        if attempt.number != job.attempt or attempt.ended_at is not None:
            return 0
        query = select(Rank).where(Rank.attempt_id == attempt.id)
        ranks = {row.rank: row for row in (await session.scalars(query)).all()}
        new = _take_numbers(session, attempt, ranks, reports)
        finished: list[Progress] = []
        stage = job.stage
        for report in new:
            if isinstance(report, Progress):
                finished.append(report)
            elif isinstance(report, PlanReady | Result):  # these depend on what came before
                await _take_entries(session, job, attempt, finished)
                finished = []
            await self._apply(session, job, attempt, ranks, report)
        await _take_entries(session, job, attempt, finished)
        job.stage = _stage_of(job, ranks.values())
        if new:
            self._tell_progress(session, job, ranks, force=job.stage != stage)
        return len(new)

    async def _apply(
        self,
        session: AsyncSession,
        job: Job,
        attempt: Attempt,
        ranks: dict[int, Rank],
        report: Report,
    ) -> None:
        """Apply one report, but for its ledger entries."""
        match report:
            case Hello():
                _take_hello(session, job, attempt)
            case PlanReady():
                _take_plan(session, job, report)
            case Progress():
                ranks[report.rank].stage = report.stage
                _take_timing(ranks, report.timing)
            case NodeTiming():
                for timing in report.ranks:
                    _take_timing(ranks, timing)
                add_event(session, job, "timing", report.model_dump(mode="json"))
            case Result():
                self._tell_progress(session, job, ranks, force=True)
                _take_result(session, job, report)
            case Failure():
                _take_failure(attempt, report)

    def _tell_progress(
        self, session: AsyncSession, job: Job, ranks: dict[int, Rank], *, force: bool
    ) -> None:
        now = time.monotonic()
        if not force and now - self._told_at.get(job.id, 0.0) < PROGRESS_EVENT_SECONDS:
            job.version += 1  # what the job shows has changed, so must its entity tag
            return
        self._told_at[job.id] = now
        add_event(session, job, "progress", {"state": job.state, **progress(job, ranks.values())})

    def forget(self, job_id: str) -> None:
        """Drop what is remembered of a job that has ended."""
        self._told_at.pop(job_id, None)


def _take_numbers(
    session: AsyncSession, attempt: Attempt, ranks: dict[int, Rank], reports: Sequence[Report]
) -> list[Report]:
    """Return the reports that follow what is known of their rank, and count them as known."""
    new: list[Report] = []
    for report in reports:
        rank = ranks.get(report.rank)
        if rank is None:
            if not isinstance(report, Hello):
                continue  # a rank introduces itself first; the spool has both
            rank = ranks[report.rank] = _new_rank(attempt, report)
            session.add(rank)
        if report.seq != rank.last_seq + 1:
            continue  # seen already, or one before it is missing: the spool has it
        rank.last_seq, rank.last_seen_at = report.seq, utcnow()
        new.append(report)
    return new


def _new_rank(attempt: Attempt, hello: Hello) -> Rank:
    return Rank(
        attempt_id=attempt.id,
        rank=hello.rank,
        node_rank=hello.node_rank,
        local_rank=hello.local_rank,
        host=hello.host,
        device=hello.device,
        last_seq=0,
        last_seen_at=utcnow(),
    )


def _stage_of(job: Job, ranks: Iterable[Rank]) -> str | None:
    """Return the stage of the most advanced rank; a job reduces only once all is scored."""
    stages = {rank.stage for rank in ranks}
    reached = [stage for stage in _STAGES if stage in stages]
    if not reached:
        return None
    all_scored = job.plan is not None and job.num_batches_done >= job.plan["num_batches"]
    return "score" if reached[-1] == "reduce" and not all_scored else reached[-1]


def _take_hello(session: AsyncSession, job: Job, attempt: Attempt) -> None:
    if attempt.started_at is None:
        attempt.started_at = utcnow()
    if job.state is JobState.STARTING:
        move(session, job, JobEvent.REPORT)


def _take_result(session: AsyncSession, job: Job, report: Result) -> None:
    """Keep the result; one that comes while the job is being cancelled is too late."""
    if job.state in _REPORTING:
        job.result = report.model_dump(mode="json")
        move(session, job, JobEvent.RESULT)


def _take_timing(ranks: dict[int, Rank], timing: RankTiming) -> None:
    if timing.rank in ranks:
        ranks[timing.rank].timing = timing.model_dump(mode="json")


def _take_plan(session: AsyncSession, job: Job, report: PlanReady) -> None:
    """Store plan, model and groups, unless finished batches belong to others.

    Every rank of such an attempt refuses to go on; who puts the old files back can retry.
    """
    shape = report.group.model_dump()
    before = (job.plan and job.plan["digest"], job.model_digest, job.group_shape)
    now = (report.plan.digest, report.model_digest, shape)
    changed = any(old and new and old != new for old, new in zip(before, now, strict=True))
    if changed and job.num_batches_done:
        add_event(session, job, "plan_changed", {"plan": now[0], "model": now[1], "group": shape})
        return
    job.plan = report.plan.model_dump(mode="json")
    job.model_digest = report.model_digest
    job.group_shape = shape


async def _take_entries(
    session: AsyncSession, job: Job, attempt: Attempt, reports: Sequence[Progress]
) -> None:
    """Insert finished batches; one that is there already must carry the same bytes."""
    batches = [entry.batch for report in reports for entry in report.entries]
    known = await _known_rows(session, job.id, batches)
    for report in reports:
        for entry in report.entries:
            row = to_row(entry, job_id=job.id, attempt=attempt.number, rank=report.rank)
            first = known.setdefault(entry.batch, row)
            if first is row:
                session.add(row)
                job.num_batches_done += 1
                job.num_scored_tokens_done += sum(entry.num_scored)
            elif agree(first, row):
                first.nll_squares = first.nll_squares or row.nll_squares
            else:
                finding = {
                    "batch": entry.batch,
                    "first_attempt": first.attempt,
                    "first_rank": first.rank,
                    "second_attempt": row.attempt,
                    "second_rank": row.rank,
                }
                add_event(session, job, "audit", finding)


async def _known_rows(
    session: AsyncSession, job_id: str, batches: Sequence[int]
) -> dict[int, LedgerRow]:
    known: dict[int, LedgerRow] = {}
    for start in range(0, len(batches), _SQL_PARAMETERS):
        some = batches[start : start + _SQL_PARAMETERS]
        query = select(LedgerRow).where(LedgerRow.job_id == job_id, LedgerRow.batch.in_(some))
        known |= {row.batch: row for row in (await session.scalars(query)).all()}
    return known


def _take_failure(attempt: Attempt, report: Failure) -> None:
    """Keep the failure that explains most: the first, but a broken connection only follows."""
    if report.reason is FailureReason.SUPERSEDED:
        return
    if attempt.failure is None or attempt.failure["reason"] == FailureReason.COMMUNICATION:
        attempt.failure = report.model_dump(mode="json")


@dataclass(frozen=True)
class _Pending:
    attempt_id: str
    reports: tuple[Report, ...]
    done: asyncio.Future[None]


class ReportWriter:
    """Checks tokens, gathers reports, and commits them in one transaction."""

    def __init__(self, database: Database, absorber: Absorber) -> None:
        """Take the database and what applies reports."""
        self._database = database
        self._absorber = absorber
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue(maxsize=10_000)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="report-writer")

    async def stop(self) -> None:
        """Write what has arrived, then end."""
        if self._task is None:
            return
        await self._queue.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def submit(self, token: str, attempt_id: str, batch: ReportBatch) -> None:
        """Take reports of an attempt; returns once they are committed.

        Raises:
            ContractMismatch: the evaluator speaks another version.
            TokenInvalid: no attempt has this id and this token.
            AttemptNotCurrent: the attempt has ended or was superseded.
        """
        if batch.contract_version != CONTRACT_VERSION:
            msg = f"the run speaks contract {batch.contract_version}, the server {CONTRACT_VERSION}"
            raise ContractMismatch(msg)
        await self._check(token, attempt_id)
        done = asyncio.get_running_loop().create_future()
        await self._queue.put(_Pending(attempt_id, batch.reports, done))
        await done

    async def _check(self, token: str, attempt_id: str) -> None:
        query = (
            select(Attempt.token_hash, Attempt.ended_at, Attempt.number, Job.attempt)
            .join(Job, Job.id == Attempt.job_id)
            .where(Attempt.id == attempt_id)
        )
        async with self._database.read() as session:
            row = (await session.execute(query)).one_or_none()
        if row is None or not hmac.compare_digest(row[0], hash_token(token)):
            msg = "the bearer token is not that of this attempt"
            raise TokenInvalid(msg)
        if row[1] is not None or row[2] != row[3]:
            msg = "this attempt has ended or another one has taken its place"
            raise AttemptNotCurrent(msg)

    async def _run(self) -> None:
        while True:
            pending = [await self._queue.get()]
            await asyncio.sleep(BATCH_SECONDS)
            while not self._queue.empty():
                pending.append(self._queue.get_nowait())
            await self._write(pending)
            for _ in pending:
                self._queue.task_done()

    async def _write(self, pending: list[_Pending]) -> None:
        """Commit all; if that fails, each attempt by itself, so that one can't spoil the rest."""
        try:
            await self._commit(pending)
        except Exception:  # noqa: BLE001 - an edge: the failure goes to those who wait for it
            _log.warning("report batch failed, trying each attempt alone", exc_info=True)
            for group in _by_attempt(pending).values():
                await self._commit_alone(group)

    async def _commit(self, pending: list[_Pending]) -> None:
        async with self._database.write() as session:
            groups = _by_attempt(pending)
            query = select(Attempt).where(Attempt.id.in_(groups))
            # In the order of jobs, so that two servers lock rows in the same order.
            for attempt in sorted((await session.scalars(query)).all(), key=lambda a: a.job_id):
                reports = [report for item in groups[attempt.id] for report in item.reports]
                await self._absorber.absorb(session, attempt, reports)
        _resolve(pending, None)

    async def _commit_alone(self, group: list[_Pending]) -> None:
        try:
            await self._commit(group)
        except ApiError as error:
            _resolve(group, error)
        except Exception as error:  # noqa: BLE001 - an edge: told to the poster, who tries again
            _log.exception(
                "reports could not be written", extra={"attempt_id": group[0].attempt_id}
            )
            _resolve(group, error)


def _by_attempt(pending: Iterable[_Pending]) -> dict[str, list[_Pending]]:
    groups: defaultdict[str, list[_Pending]] = defaultdict(list)
    for item in pending:
        groups[item.attempt_id].append(item)
    return dict(groups)


def _resolve(pending: Iterable[_Pending], error: Exception | None) -> None:
    for item in pending:
        if item.done.done():
            continue
        if error is None:
            item.done.set_result(None)
        else:
            item.done.set_exception(error)
