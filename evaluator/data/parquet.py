"""Parquet: each row is a document. Read by row groups, so that memory holds one of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.contract.data import ParquetData
from evaluator.data.document import Document, missing_field, text_field
from evaluator.data.encoding import Errors, existing_file, replace_invalid
from evaluator.errors import DataEncoding, DataInvalid

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ROWS_AT_ONCE = 1024
"""Rows turned into Python strings at a time."""


def read(source: ParquetData) -> Iterator[Document]:
    """One document a row."""
    return read_file(existing_file(source.path), source.field, source.errors)


def read_file(path: Path, field: str, errors: Errors) -> Iterator[Document]:
    """Rows of one file.

    Raises:
        DataInvalid: It is no Parquet file.
        DataEncoding: A row is no UTF-8.
        FieldMissing: There is no such column, or a row of it is no text.
    """
    # Only runs that read Parquet pay for its import.
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise missing_field(field, names, str(path))
            yield from _rows(file, field, path, errors)
    except (pyarrow.ArrowException, OSError) as error:
        msg = f"{path} is no readable Parquet file: {error}"
        raise DataInvalid(msg) from error


def _rows(file: "ParquetFile", field: str, path: Path, errors: Errors) -> Iterator[Document]:
    row = 1
    for rows in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field]):
        for value in rows.column(0):
            place = f"row {row} of {path}"
            try:
                text, num_replaced = value.as_py(), 0
            except UnicodeDecodeError as error:
                if errors == "strict":
                    msg = (
                        f"{place}: byte {error.start} of field {field!r} is no UTF-8; "
                        "mend the row, or ask for data.errors: replace"
                    )
                    raise DataEncoding(msg) from error
                text, num_replaced = replace_invalid(_bytes_of(value))
            yield Document(text_field(text, field, place), place, num_replaced)
            row += 1


def _bytes_of(value: Any) -> bytes:
    # A value of a dictionary column wraps the string.
    content: bytes = getattr(value, "value", value).as_buffer().to_pybytes()
    return content
