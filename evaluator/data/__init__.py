"""Reads documents from wherever they are. One file per source, and one line in `READERS`."""

from collections.abc import Callable, Iterator
from typing import Any

from evaluator.contract.launch import (
    DataSource,
    HubData,
    InlineData,
    JsonlData,
    ParquetData,
    TextData,
)
from evaluator.data import hub, inline, jsonl, parquet, text
from evaluator.data.document import Document

READERS: dict[type, Callable[[Any], Iterator[Document]]] = {
    TextData: text.read,
    JsonlData: jsonl.read,
    ParquetData: parquet.read,
    HubData: hub.read,
    InlineData: inline.read,
}


def read_documents(source: DataSource) -> Iterator[Document]:
    """Documents of a data set in their order, one by one.

    Raises:
        DataNotFound: There is no such file or data set.
        DataInvalid: A record can't be parsed.
        DataEncoding: Text is not valid UTF-8.
        FieldMissing: A record lacks the text field, or it is no text.
    """
    return READERS[type(source)](source)
