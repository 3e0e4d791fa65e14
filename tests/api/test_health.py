"""Liveness and readiness."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from app.api.deps import Parts
from app.db import Database
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
