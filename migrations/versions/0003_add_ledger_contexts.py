"""Add to the ledger the nll by context.

Revision: 0003, after 0002.

Nothing was released with 0002. Batches of that time are scored again by a later attempt, and its
results, which lack the curve, are dropped: the job stays, without a result.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_JOBS = sa.table("jobs", sa.column("result", sa.JSON(none_as_null=True)))


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        batch_op.add_column(sa.Column("nll_by_context", sa.LargeBinary(), nullable=True))
    _drop_results()


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        batch_op.drop_column("nll_by_context")
    _drop_results()


def _drop_results() -> None:
    """A result of another shape can't be read."""
    op.get_bind().execute(_JOBS.update().values(result=None))
