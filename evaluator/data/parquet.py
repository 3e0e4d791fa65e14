"""Parquet: each row is a document. Read by row groups, so that memory holds one of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from evaluator.contract.launch import ParquetData
from evaluator.data.document import Document, missing_field, text_field
from evaluator.data.encoding import existing_file
from evaluator.errors import DataEncoding, DataInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from pyarrow.parquet import ParquetFile

ROWS_AT_ONCE = 1024
"""Rows turned into Python strings at a time."""


def read(source: ParquetData) -> Iterator[Document]:
    """One document a row."""
    # Only runs that read Parquet pay for its import.
    import pyarrow
    from pyarrow import parquet

    path = existing_file(source.path)
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if source.field not in names:
                raise missing_field(source.field, names, str(path))
            yield from _rows(file, source.field, path)
    except (pyarrow.ArrowException, OSError) as error:
        msg = f"{path} is no readable Parquet file: {error}"
        raise DataInvalid(msg) from error


def _rows(file: "ParquetFile", field: str, path: "Path") -> Iterator[Document]:
    row = 0
    for rows in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field]):
        for value in rows.column(0):
            place = f"row {row} of {path}"
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                msg = f"{place}: byte {error.start} of field {field!r} is no UTF-8"
                raise DataEncoding(msg) from error
            yield Document(text_field(text, field, place), place)
            row += 1
