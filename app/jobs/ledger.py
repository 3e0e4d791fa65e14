"""The ledger in the database: packing, comparing and summing finished batches."""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from sqlalchemy import Table, and_, delete, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.jobs.repository import in_parts
from app.models import Attempt, LedgerRow, Rank
from evaluator.contract.audit import Author
from evaluator.contract.reports import LedgerEntry


def pack_floats(values: Iterable[float]) -> bytes:
    """Pack as little-endian float64."""
    items = tuple(values)
    return struct.pack(f"<{len(items)}d", *items)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Undo `pack_floats`."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def pack_counts(values: Iterable[int]) -> bytes:
    """Pack as little-endian int64."""
    items = tuple(values)
    return struct.pack(f"<{len(items)}q", *items)


def unpack_counts(data: bytes) -> tuple[int, ...]:
    """Undo `pack_counts`."""
    return struct.unpack(f"<{len(data) // 8}q", data)


class Batch(NamedTuple):
    """A row of the ledger. Plain, because a job may have a hundred thousand of them."""

    job_id: str
    batch: int
    attempt: int
    rank: int
    nll_nats: bytes
    nll_squares: bytes | None
    num_scored: bytes
    nll_by_context: bytes | None
    round: int
    num_windows: int
    num_scored_tokens: int


_TABLE = cast("Table", LedgerRow.__table__)
_COLUMNS = [_TABLE.c[name] for name in Batch._fields]


def to_row(entry: LedgerEntry, *, job_id: str, attempt: int, rank: int) -> Batch:
    """Make the row of a finished batch."""
    return Batch(
        job_id=job_id,
        batch=entry.batch,
        attempt=attempt,
        rank=rank,
        nll_nats=pack_floats(entry.nll_nats),
        nll_squares=pack_floats(entry.nll_squares),
        num_scored=pack_counts(entry.num_scored),
        nll_by_context=pack_floats(entry.nll_by_context),
        round=entry.round,
        num_windows=len(entry.num_scored),
        num_scored_tokens=sum(entry.num_scored),
    )


def to_entry(row: Batch) -> LedgerEntry:
    """Read a finished batch back, bit for bit.

    Raises:
        ValueError: the row is not complete, see `is_complete`.
    """
    if row.nll_squares is None or row.nll_by_context is None:
        msg = f"batch {row.batch} of job {row.job_id} was stored by an older server"
        raise ValueError(msg)
    return LedgerEntry(
        batch=row.batch,
        nll_nats=unpack_floats(row.nll_nats),
        nll_squares=unpack_floats(row.nll_squares),
        num_scored=unpack_counts(row.num_scored),
        nll_by_context=unpack_floats(row.nll_by_context),
    )


def is_complete(row: Batch) -> bool:
    """Tell whether a later attempt can take the batch over; older servers stored less."""
    return row.nll_squares is not None and row.nll_by_context is not None


def agree(first: Batch, second: Batch) -> bool:
    """Tell whether two scorings of a batch gave the same bytes.

    What an older server did not store is no difference.
    """
    pairs = (
        (first.nll_nats, second.nll_nats),
        (first.num_scored, second.num_scored),
        (first.nll_squares, second.nll_squares),
        (first.nll_by_context, second.nll_by_context),
    )
    return all(one == other or None in (one, other) for one, other in pairs)


async def load_rows(session: AsyncSession, job_id: str) -> list[Batch]:
    """Return all finished batches of a job, in the order of the plan."""
    query = select(*_COLUMNS).where(_TABLE.c.job_id == job_id).order_by(_TABLE.c.batch)
    return [Batch._make(row) for row in (await session.execute(query)).all()]


async def load_known(
    session: AsyncSession, keys: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], Batch]:
    """Return those of these batches that are finished, by job and number."""
    known: dict[tuple[str, int], Batch] = {}
    for some in in_parts(keys):
        query = select(*_COLUMNS).where(tuple_(_TABLE.c.job_id, _TABLE.c.batch).in_(some))
        rows = map(Batch._make, (await session.execute(query)).all())
        known |= {(row.job_id, row.batch): row for row in rows}
    return known


async def add_rows(session: AsyncSession, rows: Sequence[Batch]) -> None:
    """Insert rows that are not there yet."""
    if rows:
        await session.execute(insert(_TABLE), [row._asdict() for row in rows])


async def replace_row(session: AsyncSession, row: Batch) -> None:
    """Put a row in the place of the one that is there."""
    where = _TABLE.c.job_id == row.job_id, _TABLE.c.batch == row.batch
    await session.execute(update(_TABLE).where(*where).values(row._asdict()))


class Dropped(NamedTuple):
    """What was taken out of the ledger."""

    num_batches: int
    num_scored_tokens: int


async def drop_rows(session: AsyncSession, job_id: str, author: Author) -> Dropped:
    """Take out what a rank of an attempt has scored."""
    where = and_(
        _TABLE.c.job_id == job_id,
        _TABLE.c.attempt == author.attempt,
        _TABLE.c.rank == author.rank,
    )
    counts = select(func.count(), func.sum(_TABLE.c.num_scored_tokens)).where(where)
    num_batches, num_scored_tokens = (await session.execute(counts)).one()
    await session.execute(delete(_TABLE).where(where))
    # PostgreSQL sums bigints to numerics; the sum of nothing is null.
    return Dropped(num_batches, int(num_scored_tokens or 0))


async def load_authors(session: AsyncSession, job_id: str) -> dict[tuple[int, int], Author]:
    """Return all ranks of all attempts of a job, by the numbers of attempt and rank."""
    query = (
        select(Attempt.number, Rank.rank, Rank.node_rank, Rank.host)
        .join(Rank, Rank.attempt_id == Attempt.id)
        .where(Attempt.job_id == job_id)
    )
    rows = (await session.execute(query)).all()
    return {
        (attempt, rank): Author(attempt=attempt, rank=rank, node_rank=node_rank, host=host)
        for attempt, rank, node_rank, host in rows
    }


def total(rows: Iterable[Batch]) -> tuple[float, int]:
    """Return the exactly rounded sum of all nll (nats) and the number of scored tokens."""
    items = list(rows)
    nll = math.fsum(value for row in items for value in unpack_floats(row.nll_nats))
    return nll, sum(count for row in items for count in unpack_counts(row.num_scored))
