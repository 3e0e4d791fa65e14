"""The database: engine, SQLite pragmas, sessions for reading and writing.

Writing: one transaction, committed at the end of the block. On SQLite a single writer at a time in
this process, and BEGIN IMMEDIATE, because a transaction that reads and then writes can't wait for
a lock; on PostgreSQL the rows of a job are serialised by locking its row (`lock_job`).
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from sqlalchemy import event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.auth.projects import PROJECT, ProjectSession
from app.models import DEFAULT_PROJECT

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=30000",
    "PRAGMA foreign_keys=ON",
)


def _configure_sqlite(engine: AsyncEngine) -> None:
    """Set the pragmas on each connection, and leave BEGIN to SQLAlchemy."""

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver must not begin by itself
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        writes = connection.get_execution_options().get("assay_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


BeforeCommit = Callable[[AsyncSession], Awaitable[None]]


class Database:
    """Hands out sessions.

    Each of `before_commit` is called with each writing session at its end, and adds what is to be
    committed with it; `on_change` is called after a commit with the ids of changed jobs.
    """

    def __init__(
        self,
        url: str,
        on_change: Callable[[str], None] = lambda _job_id: None,
        before_commit: Sequence[BeforeCommit] = (),
        after_commit: Callable[[AsyncSession], None] = lambda _session: None,
    ) -> None:
        """Make the engine; no connection is opened yet."""
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.engine = create_async_engine(url, pool_pre_ping=not self.is_sqlite)
        if self.is_sqlite:
            _configure_sqlite(self.engine)
        self._on_change = on_change
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._writer = asyncio.Lock()
        self._writing_engine = self.engine.execution_options(assay_writes=True)
        self.project: str | None = None
        """The one whose belongings are there; null: all."""

    def within(self, project: str | None) -> Self:
        """Return the same database, with what is one project's alone (null: of all)."""
        confined = copy.copy(self)
        confined.project = project
        return confined

    @property
    def home(self) -> str:
        """The project that owns what is made by way of this database."""
        return self.project or DEFAULT_PROJECT

    def _session(self, engine: AsyncEngine) -> AsyncSession:
        if self.project is None:
            return AsyncSession(engine, expire_on_commit=False, sync_session_class=Session)
        info = {PROJECT: self.project}
        return AsyncSession(
            engine, expire_on_commit=False, sync_session_class=ProjectSession, info=info
        )

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Give a session that only reads."""
        async with self._session(self.engine) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Give a session whose work is committed at the end, or not at all."""
        async with AsyncExitStack() as stack:
            if self.is_sqlite:
                await stack.enter_async_context(self._writer)
            session = await stack.enter_async_context(self._session(self._writing_engine))
            changed: set[str] = session.info.setdefault("changed_jobs", set())
            async with session.begin():
                yield session
                for add in self._before_commit:
                    await add(session)
        self._after_commit(session)
        for job_id in changed:
            self._on_change(job_id)

    async def ping(self) -> None:
        """Raise if the database does not answer."""
        async with self.read() as session:
            await session.execute(text("SELECT 1"))

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()


def mark_changed(session: AsyncSession, job_id: str) -> None:
    """Note that waiters of this job are to be woken once the session has committed."""
    session.info.setdefault("changed_jobs", set()).add(job_id)
