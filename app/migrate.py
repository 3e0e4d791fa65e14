"""Brings the database to the newest migration, one server at a time."""

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from app.db import Database

LOCK_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.1


class MigrationError(Exception):
    """The database can't be brought to the newest migration."""


def alembic_config(connection: Connection | None = None) -> Config:
    """Return alembic's configuration; with a connection, it works on that."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    """Apply what is missing. The revision is read here, inside the lock."""
    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = _current(connection)
    if current is not None and current not in known:
        msg = f"the database is at migration {current}, which this version does not know: update"
        raise MigrationError(msg)
    command.upgrade(config, "head")


def _lock_key(connection_url: str, schema: str) -> int:
    """Return a key of 63 bits for this schema of this database, no other's."""
    digest = hashlib.sha256(f"assay:{connection_url}:{schema}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


async def _until(deadline: float, holder: str) -> None:
    """Rest before the next try for the lock.

    Raises:
        MigrationError: the time is over.
    """
    if asyncio.get_running_loop().time() > deadline:
        msg = f"another server migrates this database ({holder}): see why it does not end"
        raise MigrationError(msg)
    await asyncio.sleep(_POLL_SECONDS)


async def _lock_file(path: Path, stack: AsyncExitStack, deadline: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(path.open("w"))
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await _until(deadline, str(path))
        else:
            return


async def _lock_advisory(connection: AsyncConnection, deadline: float) -> None:
    """Take PostgreSQL's advisory lock for this schema; it ends with the transaction."""
    row = (await connection.execute(text("SELECT current_database(), current_schema()"))).one()
    key = _lock_key(row[0], row[1] or "")
    query = text("SELECT pg_try_advisory_xact_lock(:key)")
    while not await connection.scalar(query, {"key": key}):
        await _until(deadline, "advisory lock")


@asynccontextmanager
async def migration_lock(database: Database) -> AsyncIterator[AsyncConnection]:
    """Be the only one who migrates this database; gives the connection to do it with.

    Raises:
        MigrationError: another server holds the lock for too long.
    """
    deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_SECONDS
    async with AsyncExitStack() as stack:
        if database.is_sqlite:
            await _lock_file(_sqlite_path(database), stack, deadline)
        connection = await stack.enter_async_context(database.engine.begin())
        if not database.is_sqlite:
            await _lock_advisory(connection, deadline)
        yield connection


def _sqlite_path(database: Database) -> Path:
    name = database.engine.url.database
    if not name or name == ":memory:":
        msg = "a SQLite database in memory can't be shared: give it a path"
        raise MigrationError(msg)
    path = Path(name)
    return path.with_name(path.name + ".migrate-lock")


async def upgrade(database: Database) -> None:
    """Apply what is missing.

    Raises:
        MigrationError: the database is newer than this version, or the lock was not to be had.
    """
    async with migration_lock(database) as connection:
        await connection.run_sync(_upgrade)


async def is_current(database: Database) -> bool:
    """Tell whether no migration is missing."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    async with database.engine.connect() as connection:
        return await connection.run_sync(_current) == head
