"""Who scored what: windows and tokens by attempt and node, and batches that did not agree."""

from dataclasses import dataclass, replace
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
    num_computed: int
    """Batches that it computed, as it last reported: more than `num_batches` where others had
    finished them before or what it scored was dropped, less where it died before it told."""

    def __add__(self, other: "Share") -> "Share":
        """Of two ranks of a node."""
        return replace(
            self,
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in ("num_batches", "num_windows", "num_scored_tokens", "num_computed")
            },
        )


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
    shares: dict[tuple[int, int, str], Share] = {}
    sums = await _load_sums(session, job_id)
    ranks = (
        select(Attempt.number, Rank.node_rank, Rank.host, Rank.rank, Rank.timing)
        .join(Attempt, Rank.attempt_id == Attempt.id)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.number, Rank.node_rank, Rank.host)
    )
    for attempt, node_rank, host, rank, timing in await session.execute(ranks):
        who = attempt, node_rank, host
        num_computed = timing["num_batches"] if timing else 0
        mine = Share(*who, *sums.get((attempt, rank), (0, 0, 0)), num_computed)
        shares[who] = shares[who] + mine if who in shares else mine
    return [share for share in shares.values() if share.num_batches or share.num_computed]


async def _load_sums(
    session: AsyncSession, job_id: str
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return batches, windows and scored tokens of the ledger, by attempt and rank."""
    who = (LedgerRow.attempt, LedgerRow.rank)
    query = (
        select(
            *who,
            func.count(),
            func.sum(LedgerRow.num_windows),
            func.sum(LedgerRow.num_scored_tokens),
        )
        .where(LedgerRow.job_id == job_id)
        .group_by(*who)
    )
    # PostgreSQL sums bigints to numerics.
    return {
        (attempt, rank): (num, int(num_windows), int(num_tokens))
        for attempt, rank, num, num_windows, num_tokens in await session.execute(query)
    }
