"""Brings the database to the newest migration, one server at a time."""

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    """Apply what is missing. The revision is read here, inside the lock."""
    config = _config(connection)
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


@asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    msg = f"another server holds {path} since {LOCK_TIMEOUT_SECONDS:.0f} s"
                    raise MigrationError(msg) from None
                await asyncio.sleep(_POLL_SECONDS)
        yield


@asynccontextmanager
async def _advisory_lock(connection: AsyncConnection) -> AsyncIterator[None]:
    """Hold PostgreSQL's advisory lock of this transaction; it ends with the transaction."""
    row = (await connection.execute(text("SELECT current_database(), current_schema()"))).one()
    key = _lock_key(row[0], row[1] or "")
    deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_SECONDS
    query = text("SELECT pg_try_advisory_xact_lock(:key)")
    while not await connection.scalar(query, {"key": key}):
        if asyncio.get_running_loop().time() > deadline:
            msg = f"another server migrates this database since {LOCK_TIMEOUT_SECONDS:.0f} s"
            raise MigrationError(msg)
        await asyncio.sleep(_POLL_SECONDS)
    yield


async def upgrade(database: Database) -> None:
    """Apply what is missing.

    Raises:
        MigrationError: the database is newer than this version, or the lock was not to be had.
    """
    if not database.is_sqlite:
        async with database.engine.begin() as connection, _advisory_lock(connection):
            await connection.run_sync(_upgrade)
        return
    name = database.engine.url.database
    if name is None:
        msg = "a SQLite database in memory can't be shared: give it a path"
        raise MigrationError(msg)
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _file_lock(path.with_name(path.name + ".migrate-lock"))
    async with lock, database.engine.begin() as connection:
        await connection.run_sync(_upgrade)


async def is_current(database: Database) -> bool:
    """Tell whether no migration is missing."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    async with database.engine.connect() as connection:
        return await connection.run_sync(_current) == head
