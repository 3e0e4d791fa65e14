"""The server as an ASGI application, on SQLite and on a real PostgreSQL.

The schema is made once per session by the migrations; each test starts with empty tables.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from app.api.deps import Parts
from app.auth.tokens import Scope
from app.db import Database
from app.main import create_app
from app.migrate import upgrade
from app.models import Base
from app.settings import Settings
from tests.api.routes import make_token
from tests.support.postgres import postgres_server

ANSWER_S = 60.0
"""A request without an answer for so long has none."""


def _migrate(url: SecretStr) -> None:
    async def run() -> None:
        database = Database(Settings(database_url=url).sqlalchemy_url)
        await upgrade(database)
        await database.close()

    asyncio.run(run())


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[SecretStr]:
    """URL of a migrated PostgreSQL database."""
    with postgres_server() as url:
        secret = SecretStr(url)
        _migrate(secret)
        yield secret


@pytest.fixture(scope="session")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> SecretStr:
    """URL of a migrated SQLite database."""
    secret = SecretStr(f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'assay.db'}")
    _migrate(secret)
    return secret


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> SecretStr:
    """URL of each kind of database in turn."""
    url: SecretStr = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def settings(database_url: SecretStr, tmp_path: Path) -> Settings:
    """Settings of a server with a model folder, a GGUF file and a text; nothing is launched."""
    models, data = tmp_path / "models", tmp_path / "data"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "config.json").write_text("{}")
    (models / "tiny" / "model.safetensors").write_bytes(b"")
    (models / "tiny.gguf").write_bytes(b"GGUF")
    data.mkdir()
    (data / "text.txt").write_text("one two three")
    return Settings(
        state_dir=tmp_path / "state",
        database_url=database_url,
        model_roots=(models,),
        data_roots=(data,),
        worker=False,
        cpu_slots=4,
        body_max_bytes=200_000,
        inline_max_bytes=100_000,
        heartbeat_seconds=0.2,
        max_streams=3,
        github_token=SecretStr("github-secret"),
        public_badges=("default",),
    )


@pytest.fixture
async def empty_database(settings: Settings) -> None:
    """Clear the tables."""
    database = Database(settings.sqlalchemy_url)
    async with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            await session.execute(table.delete())
    await database.close()


@pytest.fixture
async def app(settings: Settings, empty_database: None) -> AsyncIterator[FastAPI]:
    """The running server."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
def parts(app: FastAPI) -> Parts:
    """What the server is made of."""
    found: Parts = app.state.parts
    return found


class Transport(httpx.ASGITransport):
    """Gives up on a request that gets no answer; an error nobody caught is an answer."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app, raise_app_exceptions=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(ANSWER_S):
            return await super().handle_async_request(request)


def make_client(app: FastAPI) -> httpx.AsyncClient:
    """A client of a server that runs."""
    return httpx.AsyncClient(transport=Transport(app), base_url="http://assay.test")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server."""
    async with make_client(app) as client:
        yield client


@pytest.fixture
async def red(app: FastAPI, parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    """A client that may read and write jobs of the project red."""
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE)
    async with make_client(app) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        yield client
