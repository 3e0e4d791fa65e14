"""How fast nodes were with a model: kept when a job succeeds, given to the next that asks."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from app.jobs.repository import utcnow
from app.jobs.request import JobRequest
from app.models import Attempt, Job, NodeSpeedRow, Rank
from evaluator.contract.parallelism import GroupShape
from evaluator.contract.reports import RankTiming
from evaluator.contract.speeds import LengthSpeed, NodeSpeed

MAX_NODES = 1024
"""Most rows that a launch is given, the newest ones."""


async def keep_speeds(session: AsyncSession, job: Job, attempt: Attempt) -> None:
    """Store what the ranks of an attempt measured; a node's newest figure is the one that counts.

    A node's figure is the mean of its ranks, who share its memory and its heat. What scoring groups
    of several ranks measured is of no use to others, and is not kept.
    """
    if job.model_digest is None or job.group_shape != GroupShape().model_dump():
        return
    ranks = (await session.scalars(select(Rank).where(Rank.attempt_id == attempt.id))).all()
    layout = JobRequest.model_validate(job.request).launch
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    # In the order of hosts, so that two servers lock rows in the same order.
    for host, speeds in sorted(_by_host(ranks).items()):
        values = {
            "model_digest": job.model_digest,
            "host": host,
            "device": job.device,
            "dtype": layout.dtype,
            "threads_per_rank": layout.threads_per_rank,
            "speeds": {str(length): mean for length, mean in speeds.items()},
            "updated_at": utcnow(),
        }
        statement = insert(NodeSpeedRow).values(values)
        await session.execute(
            statement.on_conflict_do_update(
                index_elements=[column.name for column in inspect(NodeSpeedRow).primary_key],
                set_={name: values[name] for name in ("speeds", "updated_at")},
            )
        )


def _by_host(ranks: Iterable[Rank]) -> dict[str, dict[int, float]]:
    """Mean seconds per token of each host, by length."""
    found: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        if rank.timing is not None:
            for speed in RankTiming.model_validate(rank.timing).speeds:
                found[rank.host][speed.num_inputs].append(speed.seconds_per_token)
    return {
        host: {length: sum(values) / len(values) for length, values in lengths.items()}
        for host, lengths in found.items()
    }


async def load_speeds(session: AsyncSession, job: Job) -> tuple[NodeSpeed, ...]:
    """Return what is known of any node and model, where the job's scheduling asks for it.

    A rank picks its own: which model it is, by digest, only the ranks will know.
    """
    layout = JobRequest.model_validate(job.request).launch
    if layout.scheduling != "predictive":
        return ()
    query = (
        select(NodeSpeedRow)
        .where(
            NodeSpeedRow.device == job.device,
            NodeSpeedRow.dtype == layout.dtype,
            NodeSpeedRow.threads_per_rank == layout.threads_per_rank,
        )
        .order_by(NodeSpeedRow.updated_at.desc())
        .limit(MAX_NODES)
    )
    return tuple(_to_contract(row) for row in (await session.scalars(query)).all())


def _to_contract(row: NodeSpeedRow) -> NodeSpeed:
    speeds: dict[str, Any] = row.speeds
    return NodeSpeed(
        host=row.host,
        model_digest=row.model_digest,
        speeds=tuple(
            LengthSpeed(num_inputs=int(length), seconds_per_token=mean)
            for length, mean in sorted(speeds.items(), key=lambda item: int(item[0]))
        ),
    )
