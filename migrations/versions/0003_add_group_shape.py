"""Add the shape of scoring groups that scored the ledger.

Revision: 0003, after 0002.

Until now every rank was a group of its own; stored results are made to say so.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True)
_JOBS = sa.table("jobs", sa.column("id", sa.String), sa.column("result", _JSON))


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("group_shape", _JSON, nullable=True))
    for job_id, result in _results():
        ways = {"dp_replicate": result["world_size"], "dp_shard": 1, "tp": 1, "cp": 1}
        _store(job_id, {**result, "parallelism": {**ways, "reason": ""}})


def downgrade() -> None:
    """Undo."""
    for job_id, result in _results():
        _store(job_id, {name: value for name, value in result.items() if name != "parallelism"})
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("group_shape")


def _results() -> list[tuple[str, dict[str, Any]]]:
    query = sa.select(_JOBS.c.id, _JOBS.c.result).where(_JOBS.c.result.is_not(None))
    return [(job_id, result) for job_id, result in op.get_bind().execute(query).all()]


def _store(job_id: str, result: dict[str, Any]) -> None:
    update = sa.update(_JOBS).where(_JOBS.c.id == job_id).values(result=result)
    op.get_bind().execute(update)
