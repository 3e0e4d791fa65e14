"""What the server costs: start, memory, reports, lists, claims, event streams.

Nothing is asserted of a time, because timings depend on the machine and on its neighbours; that
nothing is lost is. Beside each wall time stands the CPU time, which neighbours change less.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app.db import Database
from app.jobs.ingest import Absorber
from app.jobs.paging import JobQuery, encode_cursor
from app.models import Job, LedgerRow
from app.models import Rank as RankRow
from app.settings import Settings
from app.workers.dispatch import Dispatcher
from app.workers.settle import Settler
from app.workers.warm import WarmPool
from evaluator.contract.states import JobState
from tests.api import factories
from tests.api.played import PaperLauncher
from tests.bench.filled import FIRST_AT, MINUTE, fill, job_id
from tests.bench.machine import milliseconds, publish
from tests.bench.pinned import Pinned, database_url, pinned_server, start_s
from tests.bench.reporters import NUM_ENTRIES, Rank, Target, close, report
from tests.bench.streams import Follower

KINDS = ("sqlite", "postgresql")
USED = ("fastapi", "uvicorn", "pydantic", "sqlalchemy", "aiosqlite", "psycopg")
ROUNDS = 5
NUM_REPORTERS = 1024
STEPS = ((256, 5), (512, 5), (1024, 30), (1280, 5), (1536, 5), (1792, 5), (2048, 5))
"""Reports a second, and for how many seconds."""
NUM_STREAMS = 200
NUM_EVENTS = 40
EVENT_PERIOD_S = 1.0
NUM_REQUESTS = 200
NUM_QUEUED = 50_000
"""Of the hundred thousand jobs."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    name: str = request.param
    return name


def test_start_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for kind in KINDS:
        with database_url(kind) as url:
            found = [start_s(tmp_path / f"{kind}{n}", url) for n in range(ROUNDS)]
        starts, sizes = zip(*found, strict=True)
        rows.append(
            {
                "database": kind,
                "start_to_ready_s": median(starts),
                "max_s": max(starts),
                "resident_mb": median(sizes) / 1e6,
            }
        )
    publish("server_start", rows, capsys, *USED)


async def _totals(pinned: Pinned) -> tuple[int, int]:
    """Batches in the ledger, and the sum of the ranks' last numbers."""
    database = pinned.database()
    async with database.read() as session:
        batches = await session.scalar(select(func.count()).select_from(LedgerRow))
        numbers = await session.scalar(select(func.sum(RankRow.last_seq)))
    await database.close()
    return batches or 0, int(numbers or 0)


async def _report_steps(pinned: Pinned, num_jobs: int) -> list[dict[str, Any]]:
    database = pinned.database()
    attempts = [await pinned.launch(database) for _ in range(num_jobs)]
    await database.close()
    per_job = NUM_REPORTERS // num_jobs
    ranks = [
        Rank(Target(pinned.server.port, *attempt), rank, rank * 1_000_000)
        for attempt in attempts
        for rank in range(per_job)
    ]
    await report(ranks, rate=512, seconds=2)  # they say hello
    rows = []
    for rate, seconds in STEPS:
        began, cpu_s = time.monotonic(), pinned.cpu_s()
        tally = await report(ranks, rate=rate, seconds=seconds)
        wall_s, cpu_s = time.monotonic() - began, pinned.cpu_s() - cpu_s
        num = len(tally.latencies_s)
        rows.append(
            {
                "jobs": num_jobs,
                "asked_per_s": rate,
                "reports": num,
                "done_per_s": num / wall_s,
                **milliseconds(tally.latencies_s),
                "cpu_ms_per_report": 1000 * cpu_s / num,
                "core_busy": cpu_s / wall_s,
                "resident_mb": pinned.process.memory_info().rss / 1e6,
                "refused": tally.num_refused,
            }
        )
    await close(ranks)
    num_sent = sum(rank.seq for rank in ranks)
    assert not any(row["refused"] for row in rows)
    assert await _totals(pinned) == ((num_sent - len(ranks)) * NUM_ENTRIES, num_sent)
    return rows


@pytest.mark.parametrize("num_jobs", [1, 128, 1024])
def test_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, num_jobs: int
) -> None:
    """As one job of 1024 ranks, and as many jobs of few: the two cost at different places."""
    with pinned_server(tmp_path, kind) as pinned:
        rows = asyncio.run(_report_steps(pinned, num_jobs))
    publish(f"server_reports_{kind}_{num_jobs}", rows, capsys, *USED)


def _ask(http: httpx.Client, query: dict[str, Any]) -> list[float]:
    times = []
    for _ in range(NUM_REQUESTS):
        began = time.monotonic()
        answer = http.get("/v1/jobs", params=query)
        times.append(time.monotonic() - began)
        assert answer.status_code == httpx.codes.OK
        assert answer.json()["items"] or query.get("state") == "running"
    return times


def _deep(**filters: Any) -> str:
    """The cursor of a page near the oldest jobs."""
    last = Job(id=job_id(500), created_at=FIRST_AT + 500 * MINUTE)
    return encode_cursor(JobQuery(**filters), last)


async def _claims(database: Database, settings: Settings) -> list[float]:
    launcher = PaperLauncher()
    settler = Settler(database, settings, Absorber())
    dispatcher = Dispatcher(database, settings, launcher, settler, WarmPool(settings, launcher))
    times = []
    for _ in range(NUM_REQUESTS):
        began = time.monotonic()
        claimed = await dispatcher._claim("cpu")
        times.append(time.monotonic() - began)
        assert claimed is not None
    return times


async def _fill_and_claim(pinned: Pinned) -> list[float]:
    database = pinned.database()
    await fill(database, num_queued=NUM_QUEUED)
    settings = pinned.settings.model_copy(update={"cpu_slots": 10 * NUM_REQUESTS})
    times = await _claims(database, settings)
    await database.close()
    return times


def test_lists_and_claims_among_many_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    with pinned_server(tmp_path, kind) as pinned:
        rows = [{"what": "claim", **milliseconds(asyncio.run(_fill_and_claim(pinned)))}]
        succeeded = JobState.SUCCEEDED
        for what, query in (
            ("first page", {}),
            ("deep page", {"cursor": _deep()}),
            ("deep page of a state", {"state": succeeded, "cursor": _deep(states=(succeeded,))}),
            ("page of a state that is rare", {"state": "cancelled"}),
            ("page of a state that none has", {"state": "running"}),
            ("page of a label", {"label": "branch:main"}),
        ):
            rows.append({"what": what, **milliseconds(_ask(pinned.server.http, query))})
    publish(f"server_lists_{kind}", rows, capsys, *USED)


async def _fan_out(pinned: Pinned) -> dict[str, Any]:
    database = pinned.database()
    attempt = await pinned.launch(database)
    await database.close()
    loop = asyncio.get_running_loop()
    [job] = pinned.server.http.get("/v1/jobs").json()["items"]
    followers = [Follower(pinned.server.port, job["id"], "timing") for _ in range(NUM_STREAMS)]
    async with httpx.AsyncClient(base_url=pinned.server.http.base_url) as client:
        await factories.post_reports(client, attempt, factories.hello(1))
        for follower in followers:
            await follower.open()
        answered, last, cpu_s = [], [], pinned.cpu_s()
        for num in range(1, NUM_EVENTS + 1):
            began = loop.time()
            answer = await factories.post_reports(client, attempt, factories.node_timing(num + 1))
            answered.append(loop.time() - began)
            assert answer.status_code == httpx.codes.NO_CONTENT, answer.text
            last.append(max([await each.wait_for(num) for each in followers]) - began)
            await asyncio.sleep(began + EVENT_PERIOD_S - loop.time())
        cpu_s = pinned.cpu_s() - cpu_s
    assert {len(each.arrived) for each in followers} == {NUM_EVENTS}
    for follower in followers:
        follower.close()
    return {
        "streams": NUM_STREAMS,
        "events": NUM_EVENTS,
        "answer_p50_ms": milliseconds(answered)["p50_ms"],
        **{f"last_stream_{name}": value for name, value in milliseconds(last).items()},
        "cpu_ms_per_event": 1000 * cpu_s / NUM_EVENTS,
    }


def test_fan_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """From the POST of an event to its arrival at the last of many streams."""
    with pinned_server(tmp_path, kind) as pinned:
        row = asyncio.run(_fan_out(pinned))
    publish(f"server_streams_{kind}", [row], capsys, *USED)
