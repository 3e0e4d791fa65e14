"""What is stored of ranks, as reports change it: loaded and written for many at a time."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, bindparam, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.jobs.repository import in_parts
from app.models import Rank
from evaluator.contract.reports import Hello

_TABLE = cast("Table", Rank.__table__)
_CHANGING = ("last_seq", "stage", "timing", "quarantined")
_COLUMNS = [_TABLE.c[name] for name in ("attempt_id", "rank", *_CHANGING)]
_UPDATE = (
    update(_TABLE)
    .where(_TABLE.c.attempt_id == bindparam("of_attempt"), _TABLE.c.rank == bindparam("of_rank"))
    .values({name: bindparam(name) for name in (*_CHANGING, "last_seen_at")})
)


@dataclass
class RankState:
    """A row of `ranks`, but for what never changes."""

    attempt_id: str
    rank: int
    last_seq: int = 0
    stage: str | None = None
    timing: dict[str, Any] | None = None
    quarantined: bool = False
    hello: Hello | None = None
    """What it introduced itself with, where it is not stored yet."""
    seen_at: datetime | None = None
    """When it reported something new; null where nothing has changed."""


Ranks = dict[int, RankState]
"""Ranks of one attempt by their number."""


async def load_states(
    session: AsyncSession, attempt_ids: Collection[str], keys: Collection[tuple[str, int]]
) -> dict[str, Ranks]:
    """Return all ranks of these attempts, and these single ranks of others, by attempt."""
    query = select(*_COLUMNS)
    queries = [query.where(_TABLE.c.attempt_id.in_(some)) for some in in_parts(attempt_ids)]
    key = tuple_(_TABLE.c.attempt_id, _TABLE.c.rank)
    queries += [query.where(key.in_(some)) for some in in_parts(keys)]
    found: dict[str, Ranks] = {}
    for each in queries:
        for row in (await session.execute(each)).all():
            state = RankState(*row)
            found.setdefault(state.attempt_id, {})[state.rank] = state
    return found


async def save_states(session: AsyncSession, states: Iterable[RankState]) -> None:
    """Write those that have reported something new."""
    changed = [state for state in states if state.seen_at is not None]
    new = [_new(state, state.hello) for state in changed if state.hello is not None]
    known = [
        {"of_attempt": state.attempt_id, "of_rank": state.rank, **_values(state)}
        for state in changed
        if state.hello is None
    ]
    if new:
        await session.execute(insert(_TABLE), new)
    if known:
        await session.execute(_UPDATE, known)


def _values(state: RankState) -> dict[str, Any]:
    values = {name: getattr(state, name) for name in _CHANGING}
    return {**values, "last_seen_at": state.seen_at}


def _new(state: RankState, hello: Hello) -> dict[str, Any]:
    return {
        "attempt_id": state.attempt_id,
        "rank": state.rank,
        "node_rank": hello.node_rank,
        "local_rank": hello.local_rank,
        "host": hello.host,
        "device": hello.device,
        **_values(state),
    }
