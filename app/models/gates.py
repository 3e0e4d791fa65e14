"""What candidates are compared with."""

from datetime import datetime

from sqlalchemy import (
    ForeignKey,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, OfProject


class Baseline(OfProject, Base):
    """A job that others of its project are compared with, under a name."""

    __tablename__ = "baselines"

    project: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"))
    promoted_at: Mapped[datetime]
