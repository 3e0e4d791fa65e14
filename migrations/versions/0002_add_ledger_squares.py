"""Add what the ledger knows of squares and sizes; name conventions as their origins do.

Revision: 0002, after 0001.

Nothing was released with 0001. A result of that time lacks figures that can't be computed from it,
so it is dropped: the job stays, without a result.
"""

import struct
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NAMES = {"rolling": "lm-eval", "strided": "hf-strided"}
_JOBS = sa.table(
    "jobs",
    sa.column("id", sa.String),
    sa.column("request", sa.JSON(none_as_null=True)),
    sa.column("result", sa.JSON(none_as_null=True)),
)
_LEDGER = sa.table(
    "ledger",
    sa.column("job_id", sa.String),
    sa.column("batch", sa.BigInteger),
    sa.column("num_scored", sa.LargeBinary),
    sa.column("num_windows", sa.BigInteger),
    sa.column("num_scored_tokens", sa.BigInteger),
)


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        batch_op.add_column(sa.Column("nll_squares", sa.LargeBinary(), nullable=True))
        for name in ("num_windows", "num_scored_tokens"):
            batch_op.add_column(
                sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
            )
    connection = op.get_bind()
    _count(connection)
    _rename(connection, _NAMES)


def downgrade() -> None:
    """Undo."""
    _rename(op.get_bind(), {new: old for old, new in _NAMES.items()})
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        for name in ("num_scored_tokens", "num_windows", "nll_squares"):
            batch_op.drop_column(name)


def _count(connection: sa.Connection) -> None:
    """Fill the new counts from the packed ones."""
    query = sa.select(_LEDGER.c.job_id, _LEDGER.c.batch, _LEDGER.c.num_scored)
    for job_id, batch, packed in connection.execute(query).all():
        counts = struct.unpack(f"<{len(packed) // 8}q", packed)
        connection.execute(
            sa.update(_LEDGER)
            .where(_LEDGER.c.job_id == job_id, _LEDGER.c.batch == batch)
            .values(num_windows=len(counts), num_scored_tokens=sum(counts))
        )


def _rename(connection: sa.Connection, names: dict[str, str]) -> None:
    """Rename the conventions of requests, and drop results of the other shape."""
    for job_id, request in connection.execute(sa.select(_JOBS.c.id, _JOBS.c.request)).all():
        changed: dict[str, Any] = {**request, "scoring": {**request.get("scoring", {})}}
        old = changed["scoring"].get("convention")
        if old in names:
            changed["scoring"]["convention"] = names[old]
        connection.execute(
            sa.update(_JOBS).where(_JOBS.c.id == job_id).values(request=changed, result=sa.null())
        )
