"""Keep commits that are told of jobs, and what each was told last.

Revision: 0014, after 0010.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "commit_statuses",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("forge", sa.String(40), nullable=False),
        sa.Column("repository", sa.Text(), nullable=False),
        sa.Column("sha", sa.String(64), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("wanted", sa.String(40), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("sent", sa.String(40), nullable=True),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_dropped", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_tries", sa.BigInteger(), nullable=False),
        sa.Column("tries_left", sa.BigInteger(), nullable=False),
        sa.Column("last_try_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status_code", sa.BigInteger(), nullable=True),
        sa.Column("latency_seconds", sa.Double(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_commit_statuses"),
        sa.UniqueConstraint("key", name="uq_commit_statuses_key"),
    )
    op.create_index("ix_commit_statuses_state_due_at", "commit_statuses", ["state", "due_at"])
    op.create_table(
        "job_commits",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("status_id", sa.String(40), nullable=False),
        sa.Column("awaits_verdict", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_commits_job_id_jobs", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["status_id"],
            ["commit_statuses.id"],
            name="fk_job_commits_status_id_commit_statuses",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_commits"),
    )
    op.create_index("ix_job_commits_status_id", "job_commits", ["status_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("job_commits")
    op.drop_table("commit_statuses")
