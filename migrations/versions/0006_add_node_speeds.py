"""Keep how fast nodes were with a model, as the start of the next job's schedule.

Revision: 0006, after 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "node_speeds",
        sa.Column("model_digest", sa.String(80), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("device", sa.String(8), nullable=False),
        sa.Column("dtype", sa.String(20), nullable=False),
        sa.Column("threads_per_rank", sa.BigInteger(), nullable=False),
        sa.Column("speeds", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            *("model_digest", "host", "device", "dtype", "threads_per_rank"),
            name="pk_node_speeds",
        ),
    )
    op.create_index("ix_node_speeds_updated_at", "node_speeds", ["updated_at"])


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_node_speeds_updated_at", table_name="node_speeds")
    op.drop_table("node_speeds")
