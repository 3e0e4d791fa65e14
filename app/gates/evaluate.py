"""A gate: two finished jobs, the rules, the verdict."""

import asyncio
from dataclasses import dataclass

from app.db import Database
from app.gates.baselines import find_baseline
from app.gates.judge import Jobs, Judgement, judge
from app.gates.rules import GateRequest, LimitRule, SpeedRule
from app.gates.runs import load_both_runs
from app.jobs.records import load_scored
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
    if not all(isinstance(rule, LimitRule) for rule in asked.rules):
        async with database.read() as session:
            job = await load_job(session, asked.candidate)
            baseline_id, missing = await find_baseline(session, asked.baseline, job)
    if baseline_id == asked.candidate:
        baseline_id, missing = None, "The baseline is the candidate itself: name another one."
    baseline, runs = None, None
    if baseline_id is not None:
        baseline = await load_scored(database, settings, baseline_id)
        if any(isinstance(rule, SpeedRule) for rule in asked.rules):
            async with database.read() as session:
                runs = await load_both_runs(session, baseline_id, asked.candidate)

    def judge_now() -> Judgement:
        side = None if baseline is None else baseline.side()
        return judge(asked.rules, Jobs(candidate.side(), side, missing, runs))

    return Evaluation(baseline_id, await asyncio.to_thread(judge_now))
