"""Who scored what: windows and tokens by attempt and node, and batches that did not agree."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import Attempt, Event, LedgerRow, Rank

MAX_FINDINGS = 100
"""Most findings that are listed; all are counted."""


@dataclass(frozen=True)
class Share:
    """What one node scored in one attempt."""

    attempt: int
    node_rank: int
    host: str
    num_batches: int
    num_windows: int
    num_scored_tokens: int


@dataclass(frozen=True)
class Accounts:
    """How a figure came about."""

    shares: list[Share]
    num_findings: int
    findings: list[dict[str, Any]]
    """Data of `audit` events, oldest first."""


async def load_accounts(session: AsyncSession, job_id: str) -> Accounts:
    """Return who scored the ledger of a job, and what of it was scored twice and differed."""
    of_job = and_(Event.job_id == job_id, Event.type == "audit")
    num_findings = await session.scalar(select(func.count()).select_from(Event).where(of_job))
    findings = select(Event.data).where(of_job).order_by(Event.number).limit(MAX_FINDINGS)
    return Accounts(
        shares=await _load_shares(session, job_id),
        num_findings=num_findings or 0,
        findings=list((await session.scalars(findings)).all()) if num_findings else [],
    )


async def _load_shares(session: AsyncSession, job_id: str) -> list[Share]:
    # Summed by rank before nodes are looked up, so that few rows are joined.
    by_rank = (
        select(
            LedgerRow.attempt,
            LedgerRow.rank,
            func.count().label("num_batches"),
            func.sum(LedgerRow.num_windows).label("num_windows"),
            func.sum(LedgerRow.num_scored_tokens).label("num_scored_tokens"),
        )
        .where(LedgerRow.job_id == job_id)
        .group_by(LedgerRow.attempt, LedgerRow.rank)
        .subquery()
    )
    who = (by_rank.c.attempt, Rank.node_rank, Rank.host)
    query = (
        select(
            *who,
            func.sum(by_rank.c.num_batches),
            func.sum(by_rank.c.num_windows),
            func.sum(by_rank.c.num_scored_tokens),
        )
        .join(Attempt, and_(Attempt.job_id == job_id, Attempt.number == by_rank.c.attempt))
        .join(Rank, and_(Rank.attempt_id == Attempt.id, Rank.rank == by_rank.c.rank))
        .group_by(*who)
        .order_by(*who)
    )
    rows = (await session.execute(query)).all()
    # PostgreSQL sums bigints to numerics.
    return [Share(*row[:3], *map(int, row[3:])) for row in rows]
