"""What is tried over HTTP until it is done or given up: the columns, and how a try is counted.

A try begins with a commit that counts it and moves `due_at` behind the longest time that it may
take. So no other server does the same meanwhile, and one whose server was killed is due again by
itself.
"""

from datetime import datetime, timedelta

from sqlalchemy import Double
from sqlalchemy.orm import Mapped, mapped_column

from app.notify.messages import DeliveryState
from app.notify.sender import Outcome


class Tried:
    """A row that is due at times, and what came of its last try."""

    state: Mapped[DeliveryState]
    due_at: Mapped[datetime | None]
    """Of the next try; while one is under way, when it counts as broken off. Null at the end."""
    num_tries: Mapped[int]
    """Tries begun, ever: the fencing token of the one under way."""
    tries_left: Mapped[int]
    last_try_at: Mapped[datetime | None]
    status_code: Mapped[int | None]
    latency_seconds: Mapped[float | None] = mapped_column(Double)
    response: Mapped[str | None]
    """The beginning of the answer's body."""
    error: Mapped[str | None]
    """Why the last try does not count."""

    def begin_try(self, now: datetime, lease: timedelta) -> int:
        """Count a try of this locked row; return its number."""
        self.num_tries += 1
        self.tries_left -= 1
        self.last_try_at, self.due_at = now, now + lease
        return self.num_tries

    def note_answer(self, outcome: Outcome) -> None:
        """Keep what the receiver said."""
        self.status_code, self.latency_seconds = outcome.status_code, outcome.latency_s
        self.response, self.error = outcome.response, outcome.error

    def end(self, state: DeliveryState, error: str | None = None) -> None:
        """Try nothing any more."""
        self.state, self.due_at, self.error = state, None, error
