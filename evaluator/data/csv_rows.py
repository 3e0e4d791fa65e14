"""CSV with a header line: each row is a document. Memory holds one row.

Quoting is checked strictly: a row that was cut in the wrong place would change the figure in
silence.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from evaluator.contract.data import CsvData
from evaluator.data.document import Document, missing_field
from evaluator.data.encoding import Line, decoded_lines, existing_file
from evaluator.errors import DataInvalid

MAX_FIELD_BYTES = 2**31 - 1
"""The library's own limit is 128 KiB; this one fits into a C long everywhere."""


class _Lines:
    """Feeds the parser, and remembers what it was fed since the last row."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._first: int | None = None
        self._num_replaced = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            if self._first is None:
                self._first = line.number
            self._num_replaced += line.num_replaced
            yield line.text

    @property
    def row_begin(self) -> int:
        """Line on which the row that was read last begins; the end of the file counts as 1."""
        return self._first or 1

    def take_num_replaced(self) -> int:
        """Replaced sequences of the row that was read last; the next row begins after this."""
        count, self._num_replaced, self._first = self._num_replaced, 0, None
        return count


def read(source: CsvData) -> Iterator[Document]:
    """One document a row below the header; empty lines are no rows."""
    path = existing_file(source.path)
    csv.field_size_limit(MAX_FIELD_BYTES)
    lines = _Lines(decoded_lines(path, errors=source.errors))
    rows = csv.reader(lines, delimiter=source.delimiter, strict=True)
    header = _next_row(rows, lines, path)
    lines.take_num_replaced()
    column = _column(header or [], source.field, path)
    while (row := _next_row(rows, lines, path)) is not None:
        place = f"line {lines.row_begin} of {path}"
        num_replaced = lines.take_num_replaced()
        if row:
            _check_width(row, header or [], place)
            yield Document(row[column], place, num_replaced)


def _next_row(rows: Iterator[list[str]], lines: _Lines, path: Path) -> list[str] | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        msg = f"the row that begins on line {lines.row_begin} of {path} is no CSV: {_why(error)}"
        raise DataInvalid(msg) from error


def _why(error: csv.Error) -> str:
    """The parser's words, but for those that advise a programmer."""
    if "new-line character" in str(error):
        return (
            "it has a carriage return outside of quotes that no line feed follows; convert the "
            "line ends of the file to LF or CRLF, or quote the field"
        )
    return str(error)


def _column(header: list[str], field: str, path: Path) -> int:
    place = f"line 1 of {path}"
    if field not in header:
        raise missing_field(field, header, place)
    if header.count(field) > 1:
        msg = f"{place} names the field {field!r} {header.count(field)} times; rename the others"
        raise DataInvalid(msg)
    return header.index(field)


def _check_width(row: list[str], header: list[str], place: str) -> None:
    if len(row) != len(header):
        msg = (
            f"{place}: the row has {len(row)} fields and the header {len(header)}; "
            "quote fields that hold the delimiter, or name it in data.delimiter"
        )
        raise DataInvalid(msg)
