"""Per-window records in columns: 40 bytes a window, so that two large jobs fit beside a server."""

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol


class Row(Protocol):
    """What a record of a window has; the contract's `WindowRecord` is one."""

    @property
    def document(self) -> int:
        """Index in the data set."""

    @property
    def begin(self) -> int:
        """First scored token."""

    @property
    def num_scored(self) -> int:
        """Scored tokens."""

    @property
    def nll_nats(self) -> float:
        """Their nll."""

    @property
    def num_bytes(self) -> int:
        """Of the document, on its first record."""


class Window(NamedTuple):
    """A row of a table."""

    document: int
    begin: int
    num_scored: int
    nll_nats: float
    num_bytes: int


class WindowTable:
    """The records of a job, in text order."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Take the rows.

        Raises:
            ValueError: They are not in text order.
        """
        self.document = array("q")
        self.begin = array("q")
        self.num_scored = array("q")
        self.nll_nats = array("d")
        self.num_bytes = array("q")
        before = (-1, -1)
        for row in rows:
            place = row.document, row.begin
            if place <= before:
                msg = f"window {place} comes after {before}"
                raise ValueError(msg)
            before = place
            self.document.append(row.document)
            self.begin.append(row.begin)
            self.num_scored.append(row.num_scored)
            self.nll_nats.append(row.nll_nats)
            self.num_bytes.append(row.num_bytes)

    def __len__(self) -> int:
        return len(self.document)

    def __iter__(self) -> Iterator[Window]:
        columns = (self.document, self.begin, self.num_scored, self.nll_nats, self.num_bytes)
        return map(Window._make, zip(*columns, strict=True))

    def by_document(self) -> Iterator[tuple[int, list[Window]]]:
        """Yield each document with its windows."""
        for document, rows in groupby(self, key=attrgetter("document")):
            yield document, list(rows)

    def same_windows(self, other: "WindowTable") -> bool:
        """Tell whether both have scored the same tokens in the same windows."""
        mine = (self.document, self.begin, self.num_scored)
        return mine == (other.document, other.begin, other.num_scored)
