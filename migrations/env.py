"""Alembic's set-up: the server hands its own connection over, the command line makes one."""

import asyncio
from typing import Literal

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from app.models import Base, UtcDateTime, Word
from app.settings import Settings


def _render_item(kind: str, value: object, _context: object) -> str | Literal[False]:
    """Write our own column types as what they are in the database: migrations outlive the code."""
    if kind == "type" and isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(value, Word):
        return "sa.String(length=40)"
    return False


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        render_item=_render_item,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _run_with_own_engine() -> None:
    engine = create_async_engine(Settings().sqlalchemy_url)
    async with engine.begin() as connection:
        await connection.run_sync(_run)
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(_run_with_own_engine())
else:
    _run(given)
