"""Index jobs by state and age, and by state and deadline: for lists and for what is overdue.

Revision: 0005, after 0004.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_jobs_state_created_at_id", "jobs", ["state", "created_at", "id"])
    op.create_index("ix_jobs_state_deadline_at", "jobs", ["state", "deadline_at"])


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_jobs_state_deadline_at", table_name="jobs")
    op.drop_index("ix_jobs_state_created_at_id", table_name="jobs")
