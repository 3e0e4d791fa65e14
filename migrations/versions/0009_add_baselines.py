"""Add the jobs that were promoted, so that others are compared with them.

Revision: 0009, after 0008.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "baselines",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("promoted_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_baselines_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project", "name", name="pk_baselines"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("baselines")
