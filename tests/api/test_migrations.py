"""Migrations on both databases: up, complete, down, many servers at once."""

import asyncio
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from pydantic import SecretStr
from sqlalchemy import Connection, MetaData, Table, inspect, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from app import migrate
from app.db import Database
from app.ids import new_id
from app.migrate import MigrationError, is_current, upgrade
from app.models import Base, Job
from app.settings import Settings

NUM_SERVERS = 4


@pytest.fixture
async def empty_url(database_url: SecretStr, tmp_path: Path) -> AsyncIterator[str]:
    """URL of a database without tables."""
    if database_url.get_secret_value().startswith("sqlite"):
        yield Settings(database_url=SecretStr(f"sqlite:///{tmp_path / 'a.db'}")).sqlalchemy_url
        return
    home = make_url(Settings(database_url=database_url).sqlalchemy_url)
    name = new_id("db")
    engine = create_async_engine(home, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
        yield home.set(database=name).render_as_string(hide_password=False)
        await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    await engine.dispose()


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    """The same, opened."""
    database = Database(empty_url)
    yield database
    await database.close()


def differences(connection: Connection) -> list[object]:
    """What a new migration would have to do."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, Base.metadata))


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


def downgrade(connection: Connection) -> None:
    command.downgrade(migrate.alembic_config(connection), "base")


async def test_up_is_complete_and_down_leaves_nothing(database: Database) -> None:
    assert not await is_current(database)
    await upgrade(database)
    assert await is_current(database)
    async with database.engine.begin() as connection:
        assert await connection.run_sync(differences) == []
        assert await connection.run_sync(tables) == set(Base.metadata.tables)
        await connection.run_sync(downgrade)
        assert await connection.run_sync(tables) == set()


async def test_again_is_no_harm(database: Database) -> None:
    await upgrade(database)
    await upgrade(database)
    assert await is_current(database)


async def test_servers_that_start_together_migrate_once(empty_url: str) -> None:
    servers = [Database(empty_url) for _ in range(NUM_SERVERS)]
    await asyncio.gather(*(upgrade(server) for server in servers))
    assert all([await is_current(server) for server in servers])
    for server in servers:
        await server.close()


async def test_a_newer_database_is_refused(database: Database) -> None:
    await upgrade(database)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(MigrationError, match="9999, which this version does not know"):
        await upgrade(database)


async def test_a_lock_that_is_never_freed_is_an_error(
    database: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_SECONDS", 0.3)
    other = Database(empty_url)
    async with migrate.migration_lock(other), asyncio.timeout(10):
        with pytest.raises(MigrationError, match="another server"):
            await upgrade(database)
    await other.close()
    await upgrade(database)


async def test_0002_counts_the_ledger_and_renames_the_conventions(database: Database) -> None:
    await _upgrade_to(database, "0001")
    async with database.engine.begin() as connection:
        await connection.run_sync(_fill)
    await upgrade(database)
    async with database.engine.begin() as connection:
        ledger = await connection.execute(
            text("SELECT num_windows, num_scored_tokens, nll_squares FROM ledger ORDER BY batch")
        )
        assert ledger.all() == [(2, 12, None), (0, 0, None)]
        jobs = await connection.execute(select(Job.request, Job.result).order_by(Job.id))
        (first, first_result), (second, second_result) = jobs.all()
        assert first["scoring"] == {"convention": "lm-eval", "window": 8}
        assert second["scoring"]["convention"] == "hf-strided"
        assert (first_result, second_result) == (None, None)
        assert await connection.run_sync(differences) == []
        await connection.run_sync(
            lambda sync: command.downgrade(migrate.alembic_config(sync), "0001")
        )
        names = await connection.scalars(text("SELECT request FROM jobs ORDER BY id"))
        assert [("rolling" in str(name), "strided" in str(name)) for name in names] == [
            (True, False),
            (False, True),
        ]


async def _upgrade_to(database: Database, revision: str) -> None:
    async with database.engine.begin() as connection:
        await connection.run_sync(
            lambda sync: command.upgrade(migrate.alembic_config(sync), revision)
        )


def _fill(connection: Connection) -> None:
    """Two jobs and two batches, as the release before 0002 wrote them."""
    jobs, ledger = (
        Table(name, MetaData(), autoload_with=connection) for name in ("jobs", "ledger")
    )
    filler: dict[str, object] = {
        column.name: {"String": "x", "JSON": "{}"}.get(type(column.type).__name__, 0)
        for column in jobs.columns
        if not column.nullable
    }
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number, convention in enumerate(("rolling", "strided")):
        scoring = {"convention": convention, "window": 8}
        values = filler | {"id": f"job_{number}", "state": "succeeded", "device": "cpu"}
        values |= {"created_at": now, "updated_at": now}
        values |= {"request": {"scoring": scoring}, "result": {"old": True}}
        connection.execute(jobs.insert().values(values))
    for batch, counts in enumerate(((5, 7), ())):
        connection.execute(
            ledger.insert().values(
                job_id="job_0", batch=batch, attempt=1, rank=0, nll_nats=b"",
                num_scored=struct.pack(f"<{len(counts)}q", *counts),
            )
        )  # fmt: skip
