"""The ledger in the database: packing, comparing and summing finished batches."""

import math
import struct
from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import LedgerRow
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


def to_row(entry: LedgerEntry, *, job_id: str, attempt: int, rank: int) -> LedgerRow:
    """Make the row of a finished batch."""
    return LedgerRow(
        job_id=job_id,
        batch=entry.batch,
        attempt=attempt,
        rank=rank,
        nll_nats=pack_floats(entry.nll_nats),
        nll_squares=pack_floats(entry.nll_squares),
        num_scored=pack_counts(entry.num_scored),
        nll_by_context=pack_floats(entry.nll_by_context),
        num_windows=len(entry.num_scored),
        num_scored_tokens=sum(entry.num_scored),
    )


def to_entry(row: LedgerRow) -> LedgerEntry:
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


def is_complete(row: LedgerRow) -> bool:
    """Tell whether a later attempt can take the batch over; older servers stored less."""
    return row.nll_squares is not None and row.nll_by_context is not None


def agree(first: LedgerRow, second: LedgerRow) -> bool:
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


async def load_rows(session: AsyncSession, job_id: str) -> list[LedgerRow]:
    """Return all finished batches of a job, in the order of the plan."""
    query = select(LedgerRow).where(LedgerRow.job_id == job_id).order_by(LedgerRow.batch)
    return list((await session.scalars(query)).all())


def total(rows: Iterable[LedgerRow]) -> tuple[float, int]:
    """Return the exactly rounded sum of all nll (nats) and the number of scored tokens."""
    items = list(rows)
    nll = math.fsum(value for row in items for value in unpack_floats(row.nll_nats))
    return nll, sum(count for row in items for count in unpack_counts(row.num_scored))
