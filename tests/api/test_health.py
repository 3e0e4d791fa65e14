"""Liveness and readiness."""

import asyncio
import errno
import logging
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool

from app.api.deps import Parts
from app.db import Database
from app.disk import disk_error
from app.jobs.service import JobService
from app.main import create_app
from app.settings import Settings
from tests.api.conftest import make_client
from tests.api.factories import job_request

DEADLINE_S = 20.0


async def test_a_server_in_order_is_alive_and_ready(client: httpx.AsyncClient) -> None:
    answer = await client.get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer.headers["cache-control"] == "no-store"
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "status": "ready",
        "checks": [
            {"name": "database", "ok": True, "detail": None},
            {"name": "migrations", "ok": True, "detail": None},
            {"name": "disk", "ok": True, "detail": None},
        ],
    }


async def test_a_missing_migration_is_told(client: httpx.AsyncClient, parts: Parts) -> None:
    async with parts.database.write() as session:
        known = (await session.execute(text("SELECT version_num FROM alembic_version"))).scalar()
        await session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    try:
        answer = await client.get("/readyz")
    finally:
        async with parts.database.write() as session:
            await session.execute(
                text("UPDATE alembic_version SET version_num = :known"), {"known": known}
            )
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "not_ready")
    assert answer.headers["cache-control"] == "no-store"
    assert [check["name"] for check in problem["checks"] if not check["ok"]] == ["migrations"]
    assert "migrations" in problem["detail"]


@pytest.mark.usefixtures("empty_database")
async def test_a_loop_that_hangs_is_named_and_liveness_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings.model_copy(update={"worker": True, "cpu_slots": 0}))
    async with app.router.lifespan_context(app), make_client(app) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 200
        loops = {check["name"] for check in answer.json()["checks"]}
        assert {"worker:dispatch", "worker:reconcile"} <= loops
        # A limit that each loop has passed already, in place of one that hangs for half a minute.
        monkeypatch.setattr("app.api.health.HEARTBEAT_MAX_SECONDS", -1.0)
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        bad = {check["name"] for check in answer.json()["checks"] if not check["ok"]}
        assert {"worker:dispatch", "worker:reconcile"} <= bad
        assert (await client.get("/livez")).status_code == 200


async def test_health_answers_while_all_threads_are_busy(client: httpx.AsyncClient) -> None:
    release = threading.Event()
    num_threads = int(current_default_thread_limiter().total_tokens)
    busy = [
        asyncio.create_task(run_in_threadpool(release.wait, DEADLINE_S)) for _ in range(num_threads)
    ]
    try:
        async with asyncio.timeout(DEADLINE_S):
            while current_default_thread_limiter().available_tokens:
                await asyncio.sleep(0.01)
            for path in ("/livez", "/readyz"):
                assert (await client.get(path)).status_code == 200
    finally:
        release.set()
        assert all(await asyncio.gather(*busy))


async def test_a_database_that_is_gone_is_told(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts, tmp_path: Path
) -> None:
    gone = Database(f"sqlite+aiosqlite:///{tmp_path / 'no-such-folder' / 'assay.db'}")
    service = JobService(gone, parts.settings, parts.hub, lambda: None)
    app.state.parts = replace(parts, database=gone, jobs=service)
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert {check["name"] for check in answer.json()["checks"] if not check["ok"]} == {
        "database",
        "migrations",
    }
    for answer in (
        await client.get("/v1/jobs"),
        await client.post("/v1/jobs", json=job_request()),
        await client.get("/v1/jobs/job_00000000000000000000000000"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        assert int(answer.headers["retry-after"]) > 0
    assert (await client.get("/livez")).status_code == 200
    await gone.close()


async def test_a_full_database_file_is_told_and_logged(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # SQLite gives the same error where its own limit is reached as where the disk is full.
    app = create_app(settings.model_copy(update={"database_url": None}))
    async with app.router.lifespan_context(app), make_client(app) as client:
        database: Database = app.state.parts.database
        await database.engine.dispose()

        @event.listens_for(database.engine.sync_engine, "connect")
        def limit(connection: Any, _entry: object) -> None:
            connection.cursor().execute("PRAGMA max_page_count = 1")

        documents = ["long " * 10_000]
        request = job_request(data={"kind": "inline", "documents": documents})
        with caplog.at_level(logging.ERROR, logger="app.error_handlers"):
            for _ in range(4):
                answer = await client.post("/v1/jobs", json=request)
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        said = f"the disk of the state directory {tmp_path / 'state'} is full: make room"
        assert answer.json()["detail"] == said
        assert int(answer.headers["retry-after"]) > 0
        assert said in {vars(record).get("detail") for record in caplog.records}
        assert (await client.get("/v1/jobs")).status_code == 200


async def test_too_little_free_space_is_told(
    settings: Settings, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A need that no disk can meet, in place of a disk with too little.
    free_bytes = shutil.disk_usage(settings.state_dir).free
    monkeypatch.setattr("app.disk.FREE_MIN_BYTES", free_bytes * 1000)
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    (bad,) = [check for check in answer.json()["checks"] if not check["ok"]]
    assert bad["name"] == "disk"
    assert f"MB are free under the state directory {settings.state_dir}" in bad["detail"]


async def test_a_state_directory_that_is_gone_is_told(
    settings: Settings, client: httpx.AsyncClient
) -> None:
    shutil.rmtree(settings.state_dir)
    answer = await client.get("/readyz")
    (bad,) = [check for check in answer.json()["checks"] if not check["ok"]]
    assert bad["name"] == "disk"
    assert f"the state directory {settings.state_dir} can't be written to (No such" in bad["detail"]


async def test_a_disk_that_hangs_takes_one_thread(
    settings: Settings, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Opening a pipe for writing hangs until somebody opens it for reading.
    pipe = settings.state_dir / f".probe-{os.getpid()}"
    os.mkfifo(pipe)
    monkeypatch.setattr("app.api.health.CHECK_TIMEOUT_SECONDS", 0.5)
    num_threads = []
    for _ in range(3):
        answer = await client.get("/readyz")
        bad = {c["name"]: c["detail"] for c in answer.json()["checks"] if not c["ok"]}
        assert bad == {"disk": "no answer within 0.5 s"}
        num_threads.append(threading.active_count())
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    assert num_threads == [num_threads[0]] * 3
    monkeypatch.undo()
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.01)


class _DriverError(Exception):
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the state directory /s is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the state directory /s is full"),
        (OSError(errno.EFBIG, "File too large"), "the state directory /s can't be written to"),
        (_DriverError("53100"), "the database server is full"),
        (OSError(errno.EACCES, "Permission denied"), None),
        (_DriverError("57P01"), None),
    ],
)
def test_errors_of_a_full_disk_are_known_from_others(error: Exception, said: str | None) -> None:
    for shown in (error, OperationalError("INSERT", {}, error)):
        told = disk_error(Path("/s"), shown)
        assert (told is None) if said is None else (told is not None and said in told)
