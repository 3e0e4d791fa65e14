"""Add the shape of the scoring groups that scored the ledger.

Revision: 0007, after 0006.

Nothing was released with 0006. Its results lack the parallelism, so they are dropped: the job
stays, without a result.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True)
_JOBS = sa.table("jobs", sa.column("result", _JSON))


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("group_shape", _JSON, nullable=True))
    _drop_results()


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("group_shape")
    _drop_results()


def _drop_results() -> None:
    """A result of another shape can't be read."""
    op.get_bind().execute(_JOBS.update().values(result=None))
