"""A gate: two finished jobs, the rules, the verdict."""

import asyncio
from dataclasses import dataclass

from app.db import Database
from app.gates.baselines import find_baseline
from app.gates.judge import Judgement, judge
from app.gates.rules import ChangeRule, GateRequest
from app.jobs.records import Scored, load_scored
from app.jobs.repository import load_job
from app.settings import Settings


@dataclass(frozen=True)
class Evaluation:
    """A verdict, and the job that the candidate was compared with."""

    baseline_id: str | None
    """Null where there is none, or no rule needs one."""
    judgement: Judgement


async def evaluate(database: Database, settings: Settings, asked: GateRequest) -> Evaluation:
    """Apply the rules to a job that has succeeded.

    Raises:
        JobNotFound, ResultNotReady, RecordsMissing: of either job.
        NotComparable: it names what differs.
    """
    candidate = await load_scored(database, settings, asked.candidate)
    baseline_id, missing = None, ""
    if any(isinstance(rule, ChangeRule) for rule in asked.rules):
        async with database.read() as session:
            job = await load_job(session, asked.candidate)
            baseline_id, missing = await find_baseline(session, asked.baseline, job)
    if baseline_id == asked.candidate:
        baseline_id, missing = None, "The baseline is the candidate itself: name another one."
    baseline = None
    if baseline_id is not None:
        baseline = await load_scored(database, settings, baseline_id)
    judgement = await asyncio.to_thread(_judge, asked, baseline, candidate, missing)
    return Evaluation(baseline_id, judgement)


def _judge(
    asked: GateRequest, baseline: Scored | None, candidate: Scored, missing: str
) -> Judgement:
    side = None if baseline is None else baseline.side()
    return judge(asked.rules, side, candidate.side(), missing)
