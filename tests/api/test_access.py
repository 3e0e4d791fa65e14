"""Tokens and projects, on every route that /openapi.json names."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from app.api.deps import Parts
from app.api.openapi import make_openapi
from app.auth import access
from app.auth.tokens import (
    FIRST_TOKEN_FILE,
    Scope,
    TokenRequest,
    TokensExist,
    create_first_token,
    create_token,
    list_tokens,
    revoke_token,
)
from app.jobs.repository import utcnow
from app.main import create_app
from app.settings import Settings
from app.start import StartError
from tests.api.conftest import make_client
from tests.api.factories import Json, job_request, make_job, submit

DOCUMENT = make_openapi(create_app(Settings()))
OPEN = {"/livez", "/readyz", "/v1/attempts/{attempt_id}/reports"}
NO_JOB = "job_00000000000000000000000000"
NO_HOOK = "wh_00000000000000000000000000"
NO_DELIVERY = "msg_00000000000000000000000000"


@dataclass(frozen=True)
class Route:
    """An operation of the document."""

    method: str
    path: str
    scope: str | None
    """Null: it asks for no token of `assay token`."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names_a_job(self) -> bool:
        """Whether path or query say which job it is about."""
        return "{job_id}" in self.path or NO_JOB in str((self.query(NO_JOB), self.body(NO_JOB)))

    def query(self, job: str) -> dict[str, str] | None:
        """A good query about `job`, where the route needs one."""
        return {"baseline": job, "candidate": job} if self.path == "/v1/comparisons" else None

    def body(self, job: str) -> Json | None:
        """A good body about `job`, where the route needs one."""
        limit = {"kind": "limit", "figure": "token_perplexity", "at_most": 20}
        bodies: dict[str, Json] = {
            "POST /v1/jobs": job_request(),
            "POST /v1/gates/evaluations": {"candidate": job, "rules": [limit]},
            "PUT /v1/baselines/{name}": {"job": job},
            "POST /v1/webhooks": {"url": "https://ci.example.com/"},
            "PATCH /v1/webhooks/{webhook_id}": {"enabled": True},
        }
        return bodies.get(str(self))

    async def ask(self, client: httpx.AsyncClient, job: str, token: str | None) -> httpx.Response:
        """Send a good request about `job`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await client.request(
            self.method,
            self.path.format(job_id=job, name="main", webhook_id=NO_HOOK, delivery_id=NO_DELIVERY),
            params=self.query(job),
            json=self.body(job),
            headers=headers,
        )


def _routes() -> Iterator[Route]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            scopes = [
                each["apiToken"] for each in operation.get("security", ()) if "apiToken" in each
            ]
            yield Route(method.upper(), path, scopes[0][0] if scopes else None)


CLOSED = [route for route in _routes() if route.path not in OPEN]
OF_JOBS = [route for route in CLOSED if route.names_a_job]


async def make_token(
    parts: Parts, *scopes: Scope, project: str | None = "red", age: timedelta | None = None
) -> str:
    """The secret of a token; `age` is for how long it has been too old."""
    project = None if Scope.ADMIN in scopes else project
    expires_at = None if age is None else utcnow() - age
    request = TokenRequest(
        name="test", scopes=frozenset(scopes), project=project, expires_at=expires_at
    )
    return (await create_token(parts.database, request))[1]


@pytest.fixture
async def red(app: FastAPI, parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    """A client that may read and write jobs of the project red."""
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE)
    async with make_client(app) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        yield client


def outcome(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code, and what is asked for."""
    return answer.status_code, answer.json()["code"], answer.headers["WWW-Authenticate"]


def test_the_document_names_the_scope_of_each_route() -> None:
    assert len(CLOSED) >= 11
    assert {route.path for route in _routes() if route.scope is None} == OPEN
    for route in CLOSED:
        reads = route.method == "GET" or str(route) == "POST /v1/gates/evaluations"
        scope = "jobs:read" if reads else "jobs:write"
        assert route.scope == ("hooks:write" if "webhook" in route.path else scope), route


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


@pytest.mark.parametrize("route", OF_JOBS, ids=str)
async def test_jobs_of_another_project_are_not_there(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient, route: Route
) -> None:
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE, project="blue")
    async with make_client(app) as blue:
        blue.headers["Authorization"] = f"Bearer {secret}"
        state = "queued" if route.path.endswith("/cancel") else "succeeded"
        hidden = await make_job(blue, parts, "failed" if route.path.endswith("/retry") else state)
        own = await route.ask(blue, hidden, secret)
        # Its owner gets what there is; only /tokens was not asked for.
        assert own.status_code < 300 or own.json()["code"] == "tokens_not_kept", own.text
        before = (await blue.get(f"/v1/jobs/{hidden}")).json()
        answer = await route.ask(red, hidden, red.headers["Authorization"].split()[1])
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
        unknown = await route.ask(red, NO_JOB, red.headers["Authorization"].split()[1])
        assert _but_ids(answer, hidden) == _but_ids(unknown, NO_JOB)
        assert (await blue.get(f"/v1/jobs/{hidden}")).json() == before


def _but_ids(answer: httpx.Response, job: str) -> Json:
    body: Json = answer.json()
    return {
        name: str(value).replace(job, "JOB") for name, value in body.items() if name != "request_id"
    }


async def test_a_list_has_the_callers_jobs_and_an_admin_sees_all(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    mine = await submit(red, labels={"k": "v"})
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    other = await submit(client, labels={"k": "v"})
    assert (mine["project"], other["project"]) == ("red", "default")
    for query in (
        {},
        {"label": "k:v"},
        {"state": "queued", "created_after": "2020-01-01T00:00:00Z"},
    ):
        listed = (await red.get("/v1/jobs", params=query)).json()["items"]
        assert [job["id"] for job in listed] == [mine["id"]]
        listed = (await client.get("/v1/jobs", params=query)).json()["items"]
        assert {job["id"] for job in listed} == {mine["id"], other["id"]}
    assert (await client.get(f"/v1/jobs/{mine['id']}")).status_code == 200


async def test_a_cursor_of_another_project_shows_nothing_of_it(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    oldest = await submit(red)
    for _ in range(3):
        await submit(client)
    page = (await client.get("/v1/jobs", params={"limit": 1})).json()
    listed = (await red.get("/v1/jobs", params={"cursor": page["next_cursor"]})).json()["items"]
    assert [job["id"] for job in listed] == [oldest["id"]]


async def test_a_comparison_needs_both_jobs(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    mine, other = (
        await make_job(red, parts, "succeeded"),
        await make_job(client, parts, "succeeded"),
    )
    for pair in ((mine, other), (other, mine)):
        query = dict(zip(("baseline", "candidate"), pair, strict=True))
        assert (await red.get("/v1/comparisons", params=query)).status_code == 404
        assert (await client.get("/v1/comparisons", params=query)).status_code == 200


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


async def test_a_baseline_is_of_the_project_of_its_job(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient
) -> None:
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE, project="blue")
    async with make_client(app) as blue:
        blue.headers["Authorization"] = f"Bearer {secret}"
        theirs = await make_job(blue, parts, "succeeded")
        assert (await blue.put("/v1/baselines/main", json={"job": theirs})).status_code == 201
        assert (await red.get("/v1/baselines/main")).status_code == 404
        mine = await make_job(red, parts, "succeeded")
        assert (await red.put("/v1/baselines/main", json={"job": mine})).status_code == 201
        assert (await blue.get("/v1/baselines/main")).json()["job"] == theirs
        assert (await red.get("/v1/baselines/main")).json()["job"] == mine


async def test_a_webhook_is_told_of_its_project_alone(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient
) -> None:
    secrets = [
        await make_token(parts, Scope.HOOKS_WRITE, Scope.JOBS_WRITE, project=project)
        for project in ("red", "blue")
    ]
    hooks = []
    for secret in secrets:
        async with make_client(app) as client:
            client.headers["Authorization"] = f"Bearer {secret}"
            added = await client.post("/v1/webhooks", json={"url": "https://ci.example.com/"})
            hooks.append(added.json())
            job = await submit(client)
            await client.post(job["links"]["cancel"])
    assert [hook["project"] for hook in hooks] == ["red", "blue"]
    async with make_client(app) as client:
        client.headers["Authorization"] = f"Bearer {secrets[0]}"
        listed = (await client.get("/v1/webhooks")).json()["items"]
        assert [hook["id"] for hook in listed] == [hooks[0]["id"]]
        sent = (await client.get(hooks[0]["links"]["deliveries"])).json()["items"]
        assert len(sent) == 1
        for path in hooks[1]["links"].values():
            answer = await client.get(path)
            assert answer.status_code in (404, 405), path
        assert (await client.delete(hooks[1]["links"]["self"])).status_code == 404
        assert (await client.post(hooks[1]["links"]["test"])).status_code == 404
        assert (await client.post(hooks[1]["links"]["rotate"])).status_code == 404
