"""Who is told, and what they were told."""

from datetime import datetime

from sqlalchemy import (
    ForeignKey,
    Index,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, OfProject
from app.models.tries import Tried


class WebhookEndpoint(OfProject, Base):
    """An address that is told what happens to the jobs of a project."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str]
    description: Mapped[str | None]
    events: Mapped[list[str]]
    """Members of `EventType`."""
    disabled_reason: Mapped[str | None]
    """Null while it is enabled."""
    secret: Mapped[str]
    """In clear, because each message is signed with it."""
    previous_secret: Mapped[str | None]
    previous_expires_at: Mapped[datetime | None]
    """Until when messages are signed with the previous secret too."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class WebhookDelivery(Tried, Base):
    """A message to one endpoint, and what came of its last try."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_state_due_at", "state", "due_at"),
        Index("ix_webhook_deliveries_endpoint_id_id", "endpoint_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sent as `webhook-id`, the same at every try."""
    endpoint_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("webhook_endpoints.id", ondelete="CASCADE")
    )
    event: Mapped[str] = mapped_column(String(40))
    job_id: Mapped[str | None] = mapped_column(String(40))
    """No foreign key: what was sent outlives the job."""
    body: Mapped[str]
    """Exactly what is sent."""
    created_at: Mapped[datetime]
