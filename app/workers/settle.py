"""Ends an attempt of which no process is left: read its spool, decide, move the job."""

import asyncio
import logging
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.jobs.ingest import Absorber, Delivery
from app.jobs.ledger import load_rows, total
from app.jobs.outcome import Evidence, Outcome, decide
from app.jobs.repository import lock_attempts, move, utcnow
from app.jobs.speeds import keep_speeds
from app.jobs.transitions import JobEvent
from app.launchers.base import Ended, NotStarted, Vanished
from app.models import Attempt, Job
from app.settings import Settings
from app.workers.launching import launch_ref
from evaluator.contract.env import SPOOL_DIR
from evaluator.contract.reports import Failure, Hello, Report
from evaluator.contract.states import FailureReason

_log = logging.getLogger(__name__)
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)


class Settler:
    """Settles attempts."""

    def __init__(self, database: Database, settings: Settings, absorber: Absorber) -> None:
        """Take what it works with."""
        self._database = database
        self._settings = settings
        self._absorber = absorber

    async def settle(
        self,
        attempt_id: str,
        seen: Ended | Vanished | NotStarted,
        *,
        default_reason: FailureReason | None = None,
        default_message: str | None = None,
    ) -> None:
        """Write what the attempt came to, once; settling it again changes nothing.

        Args:
            attempt_id: the attempt; none of its processes is left.
            seen: what the launcher saw of its end.
            default_reason: why we ended it, where nobody asked to stop it.
            default_message: the same in a sentence.
        """
        async with self._database.read() as session:
            attempt = await session.get_one(Attempt, attempt_id)
        spool = launch_ref(self._settings, attempt).run_dir / SPOOL_DIR
        reports = await asyncio.to_thread(read_spool, spool)
        async with self._database.write() as session:
            [(job, attempt)] = await lock_attempts(session, [attempt_id])
            if attempt.ended_at is not None:
                return
            await self._absorber.absorb(session, [Delivery(job, attempt, reports)])
            if attempt.stop_reason is None and default_reason is not None:
                attempt.stop_reason, attempt.message = default_reason, default_message
            evidence = await _evidence(session, job, attempt, seen)
            outcome = decide(evidence)
            _close(attempt, seen, outcome)
            _move(session, job, outcome)
            if outcome.event is JobEvent.SUCCEED:
                await keep_speeds(session, job, attempt)
        self._absorber.forget(attempt.job_id)
        _log.info(
            "attempt settled",
            extra={"job_id": attempt.job_id, "attempt": attempt.number, "outcome": outcome.event},
        )


def read_spool(folder: Path) -> list[Report]:
    """Return all reports of all ranks, each rank's in order, their first words before the rest.

    So a rank is known by the time another one says that it is wrong.
    A line that can't be read ends its rank's reports: it was cut off when the rank was killed.
    """
    reports: list[Report] = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    reports.append(_REPORT.validate_json(line))
                except ValidationError:
                    _log.warning(
                        "spool ends in a broken line", extra={"file": str(path), "line": number}
                    )
                    break
    return sorted(reports, key=lambda report: not isinstance(report, Hello))


async def _evidence(
    session: AsyncSession, job: Job, attempt: Attempt, seen: Ended | Vanished | NotStarted
) -> Evidence:
    failure = attempt.failure
    return Evidence(
        seen=seen,
        stop_reason=attempt.stop_reason,
        stop_message=attempt.message,
        has_result=job.result is not None,
        result_problem=await _result_problem(session, job),
        failure=None if failure is None else Failure.model_validate(failure),
        attempts_left=job.attempts_left,
    )


async def _result_problem(session: AsyncSession, job: Job) -> str | None:
    """Return what is wrong with the result: it must be the exact sum of the ledger."""
    if job.result is None:
        return None
    claimed = job.result["perplexity"]
    rows = await load_rows(session, job.id)
    nll, num_scored = total(rows)
    if (claimed["nll_sum_nats"], claimed["num_scored_tokens"]) == (nll, num_scored):
        return None
    return (
        f"the result says {claimed['nll_sum_nats']!r} nats over {claimed['num_scored_tokens']} "
        f"tokens, the ledger's {len(rows)} batches say {nll!r} over {num_scored}"
    )


def _close(attempt: Attempt, seen: Ended | Vanished | NotStarted, outcome: Outcome) -> None:
    attempt.ended_at = utcnow()
    attempt.reason, attempt.message = outcome.reason, outcome.message
    if isinstance(seen, Ended):
        attempt.exit_code, attempt.signal = seen.exit_code, seen.signal


def _move(session: AsyncSession, job: Job, outcome: Outcome) -> None:
    if outcome.event is not JobEvent.SUCCEED:
        job.result = None
    job.state_reason, job.message = outcome.reason, outcome.message
    move(session, job, outcome.event)
