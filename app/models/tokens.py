"""Who may do what."""

from datetime import datetime

from sqlalchemy import (
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base


class Token(Base):
    """A bearer token; the secret itself is not kept. Rows stay after the token is revoked."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[str] = mapped_column(String(200))
    """Words of `app.auth.tokens.Scope`, with spaces between them."""
    project: Mapped[str | None] = mapped_column(String(64))
    """Null: all of them."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Written at most once a minute."""
