"""Reads documents from wherever they are. One file per source, and one line in `READERS`."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.contract.data import (
    CsvData,
    DataSource,
    FolderData,
    HubData,
    InlineData,
    JsonlData,
    ParquetData,
    Source,
    TextData,
)
from evaluator.contract.known import KnownSet
from evaluator.data import csv_rows, folder, hub, inline, jsonl, known, parquet, text
from evaluator.data.detokenise import detokenise
from evaluator.data.document import Document, replace_half_pairs
from evaluator.data.known import MirroredData
from evaluator.data.selection import join_documents, sample_documents

READERS: dict[type, Callable[[Any], Iterator[Document]]] = {
    TextData: text.read,
    FolderData: folder.read,
    JsonlData: jsonl.read,
    CsvData: csv_rows.read,
    ParquetData: parquet.read,
    HubData: hub.read,
    KnownSet: hub.read,
    MirroredData: known.read_mirrored,
    InlineData: inline.read,
}


def read_documents(source: DataSource, *, mirror_dir: Path | None = None) -> Iterator[Document]:
    """Documents of a data set in their order, one by one.

    Args:
        source: The data set.
        mirror_dir: Folder with copies of hub data sets, which go before the hub.

    Raises:
        DataNotFound: There is no such file or data set.
        DataInvalid: A record can't be parsed.
        DataEncoding: Text is not valid UTF-8.
        FieldMissing: A record lacks the text field, or it is no text.
    """
    located = known.locate(source, mirror_dir)
    documents = _selected(READERS[type(located)](located), located)
    return documents if located.join is None else join_documents(documents, located.join)


def usual_join(source: DataSource) -> str | None:
    """Text between the documents as the request or the known set has it; None: documents apart."""
    return known.locate(source, None).join


def _selected(documents: Iterator[Document], source: Source) -> Iterator[Document]:
    if source.first is not None:
        documents = islice(documents, source.first)
    if source.sample is not None:
        documents = sample_documents(documents, source.sample)
    if source.errors == "replace":
        documents = map(replace_half_pairs, documents)
    if source.detokenise is not None:
        name = source.detokenise
        documents = (detokenise(document, name) for document in documents)
    return documents
