"""One kind of thing that is sent: which rows are due, what goes out, what comes of it."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from app.notify.sender import Outcome

MAX_AT_ONCE = 32
MAX_AT_ONCE_PER_LANE = 4
"""So that a receiver which hangs does not hold up the others."""


@dataclass(frozen=True, kw_only=True)
class Try:
    """A row whose next try this server has begun."""

    id: str
    number: int
    """The fencing token."""
    lane: str
    """Whom it goes to."""
    url: str
    headers: Mapping[str, str] = field(repr=False)
    """They hold secrets."""
    body: bytes


class Room:
    """How many tries there is still room for, in all and to each receiver."""

    def __init__(self, lanes: Counter[str]) -> None:
        """Take how many tries are under way to each."""
        self._lanes = Counter(lanes)

    @property
    def left(self) -> int:
        """In all."""
        return MAX_AT_ONCE - self._lanes.total()

    @property
    def full(self) -> list[str]:
        """The receivers that are sent no more at present."""
        return [lane for lane, count in self._lanes.items() if count >= MAX_AT_ONCE_PER_LANE]

    def take(self, lane: str) -> bool:
        """Take a place, if there is one."""
        if self._lanes[lane] >= MAX_AT_ONCE_PER_LANE:
            return False
        self._lanes[lane] += 1
        return True


T = TypeVar("T", bound=Try)


class Channel(ABC, Generic[T]):
    """Everything runs in the caller's session; nothing is sent from here."""

    @abstractmethod
    def due(self, now: datetime, room: Room) -> Select[*tuple[Any, ...]]:
        """Return the statement that finds the rows to try next, most urgent first, without lock."""

    @abstractmethod
    async def begin(
        self, session: AsyncSession, now: datetime, lease: timedelta, room: Room
    ) -> list[T]:
        """Begin tries of what is due and has room; rows that another server has are passed by."""

    @abstractmethod
    async def note(self, session: AsyncSession, begun: T, outcome: Outcome, now: datetime) -> bool:
        """Write what came of a try; return false where the row has been taken over since."""

    @abstractmethod
    async def sweep(self, session: AsyncSession, before: datetime) -> None:
        """Drop what ended long ago."""
