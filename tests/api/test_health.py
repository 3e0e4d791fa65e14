"""Liveness and readiness."""

import asyncio
import time

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from app.api.deps import Parts
from app.main import create_app
from app.settings import Settings
from tests.api.conftest import make_client


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


async def test_liveness_answers_while_all_threads_are_busy(
    app: FastAPI, client: httpx.AsyncClient
) -> None:
    busy = [asyncio.create_task(run_in_threadpool(time.sleep, 0.5)) for _ in range(60)]
    await asyncio.sleep(0.05)
    started_at = time.monotonic()
    answer = await client.get("/livez")
    assert answer.status_code == 200
    assert time.monotonic() - started_at < 0.4
    await asyncio.gather(*busy)
