"""Launched jobs whose ranks are played by the test: real database, no process."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select

from app.api.deps import Parts
from app.jobs.ingest import Absorber
from app.jobs.service import JobRecord
from app.launchers.base import Ended, Launch, Launcher, LaunchRef, NotStarted, Seen
from app.models import Attempt, Event
from app.workers.dispatch import Dispatcher
from app.workers.settle import Settler
from app.workers.warm import WarmPool
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.env import TOKEN_FILE
from evaluator.contract.reports import (
    Hello,
    LedgerEntry,
    PlanReady,
    Progress,
    RankTiming,
    Report,
    ReportBatch,
)
from tests.support.fake_python import made_up_result, plan_facts

ENDED = Ended(
    exit_code=0,
    signal=None,
    stopped=False,
    ended_at=datetime(2026, 1, 1, tzinfo=UTC),
    root_cause=None,
    log_tail=(),
)


class PaperLauncher:
    """Starts nothing and remembers what it was asked for."""

    kind = "paper"

    def __init__(self) -> None:
        self.started: list[Launch] = []

    async def start(self, launch: Launch) -> None:
        self.started.append(launch)

    async def look(self, ref: LaunchRef) -> Seen:
        del ref
        return NotStarted()

    async def request_stop(self, ref: LaunchRef) -> None:
        del ref

    async def sweep(self, ref: LaunchRef) -> int:
        del ref
        return 0


class Run:
    """A launched job whose ranks are played by the test."""

    def __init__(self, parts: Parts, job_id: str, attempt: Attempt, token: str) -> None:
        self.parts = parts
        self.job_id = job_id
        self.attempt_id = attempt.id
        self.token = token

    @property
    def settler(self) -> Settler:
        return Settler(self.parts.database, self.parts.settings, Absorber())

    async def send(self, *reports: Report) -> None:
        batch = ReportBatch(contract_version=CONTRACT_VERSION, reports=reports)
        await self.parts.writer.submit(self.token, self.attempt_id, batch)

    async def job(self) -> JobRecord:
        return await self.parts.jobs.get(self.job_id)

    async def events(self, kind: str) -> Sequence[Event]:
        found = await self.parts.jobs.events(self.job_id, after=0)
        return [event for event in found if event.type == kind]

    async def finish(self) -> None:
        """Report everything that a run of one rank has to say."""
        await self.send(hello(), plan(2), progress(3, 0, 1, 2), made_up_result(4, 0.6))


def hello(rank: int = 0) -> Hello:
    return Hello(
        rank=rank, seq=1, local_rank=rank, node_rank=0, world_size=1, host="here", pid=1,
        device="cpu", versions={},
    )  # fmt: skip


def plan(seq: int) -> PlanReady:
    return PlanReady(rank=0, seq=seq, plan=plan_facts())


def entry(batch: int, shift: float = 0.0, round_: int = 0) -> LedgerEntry:
    nll = (0.1, 0.2, 0.3)[batch % 3] + shift
    return LedgerEntry(
        batch=batch,
        nll_nats=(nll,),
        nll_squares=(nll * nll,),
        num_scored=(10,),
        nll_by_context=(nll,),
        round=round_,
    )


def progress(
    seq: int, *batches: int, rank: int = 0, shift: float = 0.0, round_: int = 0
) -> Progress:
    timing = RankTiming(
        rank=rank, local_rank=rank, node_rank=0, compute_s=seq, num_batches=len(batches)
    )
    return Progress(
        rank=rank, seq=seq, stage="score", timing=timing,
        entries=tuple(entry(batch, shift, round_) for batch in batches),
    )  # fmt: skip


def make_dispatcher(parts: Parts, launcher: Launcher) -> Dispatcher:
    settler = Settler(parts.database, parts.settings, Absorber())
    pool = WarmPool(parts.settings, launcher)
    return Dispatcher(parts.database, parts.settings, launcher, settler, pool)


async def launch(parts: Parts) -> Run:
    """Let the dispatcher make the next attempt, as far as the files of its run directory."""
    launcher = PaperLauncher()
    await make_dispatcher(parts, launcher).turn()
    (started,) = launcher.started
    async with parts.database.read() as session:
        query = select(Attempt).where(Attempt.launch_id == started.ref.launch_id)
        attempt = (await session.scalars(query)).one()
    token = (started.ref.run_dir / TOKEN_FILE).read_text()
    return Run(parts, attempt.job_id, attempt, token)
