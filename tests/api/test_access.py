"""Tokens and projects, on every route that /openapi.json names."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from app.api.deps import Parts
from app.auth import access
from app.auth.tokens import (
    FIRST_TOKEN_FILE,
    Scope,
    TokensExist,
    create_first_token,
    list_tokens,
    revoke_token,
)
from app.jobs.repository import utcnow
from app.main import create_app
from app.settings import Settings
from app.start import StartError
from tests.api.conftest import make_client
from tests.api.factories import submit
from tests.api.routes import (
    CLOSED,
    NO_JOB,
    OPEN,
    ROUTES,
    Route,
    make_token,
)


def outcome(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code, and what is asked for."""
    return answer.status_code, answer.json()["code"], answer.headers["WWW-Authenticate"]


def test_the_document_names_the_scope_of_each_route() -> None:
    assert len(CLOSED) >= 11
    assert {route.path for route in ROUTES if route.scope is None} == OPEN
    for route in CLOSED:
        reads = route.method == "GET" or str(route) == "POST /v1/gates/evaluations"
        scope = "jobs:read" if reads else "jobs:write"
        exceptions = {"webhooks": "hooks:write", "metrics": "metrics:read"}
        folder = next(each for each in route.path.split("/")[1:] if each != "v1")
        assert route.scope == exceptions.get(folder, scope), route


async def test_without_any_token_everything_is_open(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    assert job["project"] == "default"
    client.headers["Authorization"] = "Basic Zm9yOnRoZSBwcm94eQ=="
    assert (await client.get(f"/v1/jobs/{job['id']}")).status_code == 200


@pytest.mark.parametrize("route", CLOSED, ids=str)
async def test_a_token_is_needed_once_there_is_one(
    client: httpx.AsyncClient, parts: Parts, route: Route
) -> None:
    other = next(scope for scope in Scope if scope not in (route.scope, Scope.ADMIN))
    wrong = await make_token(parts, other)
    answer = await route.ask(client, NO_JOB, None)
    assert outcome(answer) == (401, "token_missing", 'Bearer realm="assay"')
    answer = await route.ask(client, NO_JOB, "assay_" + "x" * 43)
    invalid = 'Bearer realm="assay", error="invalid_token"'
    assert outcome(answer) == (401, "token_invalid", invalid)
    answer = await route.ask(client, NO_JOB, wrong)
    named = f'Bearer realm="assay", error="insufficient_scope", scope="{route.scope}"'
    assert outcome(answer) == (403, "insufficient_scope", named)
    assert str(route.scope) in answer.json()["detail"]


async def test_what_tells_of_no_job_stays_open(client: httpx.AsyncClient, parts: Parts) -> None:
    await make_token(parts, Scope.ADMIN)
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/nothing")).status_code == 401


@pytest.mark.parametrize(
    "written",
    [
        "Bearer",
        "Bearer ",
        "Basic {}",
        "{}",
        "Bearer {}x",
        "Bearer {} {}",
        "Bearer assay_\u00e9",
        "Token {}",
    ],
)
async def test_what_is_no_token_is_refused(
    client: httpx.AsyncClient, parts: Parts, written: str
) -> None:
    secret = await make_token(parts, Scope.ADMIN)
    header = written.format(secret, secret).encode()
    answer = await client.get("/v1/jobs", headers=[(b"Authorization", header)])
    assert (answer.status_code, answer.json()["code"]) == (401, "token_invalid")
    assert secret not in answer.text
    twice = [(b"Authorization", f"Bearer {secret}".encode())] * 2
    assert (await client.get("/v1/jobs", headers=twice)).status_code == 401
    good = await client.get("/v1/jobs", headers={"Authorization": f"bearer  {secret}"})
    assert good.status_code == 200


async def test_a_token_that_was_revoked_or_is_too_old_opens_nothing(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    old = await make_token(parts, Scope.ADMIN, age=timedelta(seconds=1))
    young = await make_token(parts, Scope.ADMIN, age=-timedelta(hours=1))
    answer = await client.get("/v1/jobs", headers={"Authorization": f"Bearer {old}"})
    assert answer.status_code == 401
    assert "has expired" in answer.json()["detail"]
    headers = {"Authorization": f"Bearer {young}"}
    assert (await client.get("/v1/jobs", headers=headers)).status_code == 200
    for token in await list_tokens(parts.database):
        first = (await revoke_token(parts.database, token.id)).revoked_at
        assert (await revoke_token(parts.database, token.id)).revoked_at == first
    answer = await client.get("/v1/jobs", headers=headers)
    assert answer.status_code == 401
    assert "was revoked" in answer.json()["detail"]
    # Without a valid token left the server is closed, not open.
    assert (await client.get("/v1/jobs")).status_code == 401


async def test_use_is_noted_once_a_minute(
    parts: Parts, red: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def noted() -> Any:
        (token,) = await list_tokens(parts.database)
        return token.last_used_at

    assert await noted() is None
    await red.get("/v1/jobs")
    first = await noted()
    assert abs(utcnow() - first) < timedelta(minutes=1)
    await red.get("/v1/jobs")
    assert await noted() == first
    monkeypatch.setattr(access, "NOTE_USE_EVERY_S", 0.0)
    await red.get("/v1/jobs")
    assert await noted() > first
    monkeypatch.setattr(parts.database, "write", _refuse)
    assert (await red.get("/v1/jobs")).status_code == 200


def _refuse() -> Any:
    raise OperationalError("UPDATE", {}, RuntimeError("disk full"))


async def test_a_body_is_not_read_for_whoever_has_no_token(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    await make_token(parts, Scope.ADMIN)
    num_parts = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_parts
        for _ in range(3):
            num_parts += 1
            yield b"x"

    answer = await client.post("/v1/jobs", content=body())
    assert (answer.status_code, num_parts) == (401, 0)


async def test_the_first_token_goes_into_a_file_of_its_owner(
    client: httpx.AsyncClient, parts: Parts, tmp_path: Path
) -> None:
    path = await create_first_token(parts.database, tmp_path)
    assert path == tmp_path / FIRST_TOKEN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    headers = {"Authorization": f"Bearer {path.read_text().strip()}"}
    assert (await client.get("/v1/jobs", headers=headers)).status_code == 200
    with pytest.raises(TokensExist):
        await create_first_token(parts.database, tmp_path / "elsewhere")


async def test_a_file_in_the_way_is_kept_and_there_is_no_token(
    client: httpx.AsyncClient, parts: Parts, tmp_path: Path
) -> None:
    (tmp_path / FIRST_TOKEN_FILE).write_text("mine")
    with pytest.raises(FileExistsError):
        await create_first_token(parts.database, tmp_path)
    assert (tmp_path / FIRST_TOKEN_FILE).read_text() == "mine"
    assert (await client.get("/v1/jobs")).status_code == 200


async def test_only_a_hash_is_stored(parts: Parts) -> None:
    secret = await make_token(parts, Scope.ADMIN)
    (token,) = await list_tokens(parts.database)
    stored = " ".join(str(getattr(token, column.key)) for column in token.__table__.columns)
    assert secret.removeprefix("assay_") not in stored
    assert len(token.token_hash) == 64


async def test_other_machines_are_not_let_in_without_a_token(
    settings: Settings, empty_database: None
) -> None:
    outside = settings.model_copy(update={"host": "0.0.0.0"})
    app = create_app(outside)
    with pytest.raises(StartError, match=r"ASSAY_HOST=0\.0\.0\.0 .*assay token create --first"):
        async with app.router.lifespan_context(app):
            pass
    told = create_app(outside.model_copy(update={"allow_unauthenticated": True}))
    async with told.router.lifespan_context(told):
        await make_token(told.state.parts, Scope.ADMIN)
    async with asyncio.timeout(30), app.router.lifespan_context(app), make_client(app) as client:
        assert (await client.get("/v1/jobs")).status_code == 401
