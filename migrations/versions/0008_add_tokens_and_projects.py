"""Add bearer tokens, and the project that a job belongs to.

Revision: 0008, after 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_INDEX = "ix_jobs_project_created_at_id"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(200), nullable=False),
        sa.Column("project", sa.String(64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_tokens_token_hash"),
    )
    op.add_column(
        "jobs", sa.Column("project", sa.String(64), nullable=False, server_default="default")
    )
    op.create_index(_INDEX, "jobs", ["project", "created_at", "id"])


def downgrade() -> None:
    """Undo."""
    op.drop_index(_INDEX, table_name="jobs")
    op.drop_column("jobs", "project")
    op.drop_table("tokens")
