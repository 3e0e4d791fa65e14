"""Add the audit's round to the ledger, and whether a rank was found to be wrong.

Revision: 0004, after 0003.

Nothing was released with 0003. Its results lack the audit, so they are dropped: the job stays,
without a result.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_JOBS = sa.table("jobs", sa.column("result", sa.JSON(none_as_null=True)))


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        batch_op.add_column(sa.Column("round", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("quarantined", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    _drop_results()


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.drop_column("quarantined")
    with op.batch_alter_table("ledger", schema=None) as batch_op:
        batch_op.drop_column("round")
    _drop_results()


def _drop_results() -> None:
    """A result of another shape can't be read."""
    op.get_bind().execute(_JOBS.update().values(result=None))
