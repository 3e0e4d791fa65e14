"""A data set on the hub, read through the `datasets` library."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from evaluator.contract.data import HubData
from evaluator.contract.known import KnownSet
from evaluator.data.document import Document, missing_field, text_field
from evaluator.errors import DataNotFound


def read(source: HubData) -> Iterator[Document]:
    """One document a row."""
    # The library takes a second to import, and prefers a folder of this name to the hub.
    import datasets

    if Path(source.name).exists():
        msg = f"{source.name} is a path on this machine; give its files as text, jsonl or parquet"
        raise DataNotFound(msg)
    datasets.disable_progress_bars()
    place = f"{source.name} ({source.split}) at {source.revision}"
    files = source.files if isinstance(source, KnownSet) else None
    try:
        rows = datasets.load_dataset(
            source.name,
            # The library does not combine the two: files of the repository are a set of their own.
            None if files else source.config,
            data_files={source.split: files} if files else None,
            split=source.split,
            revision=source.revision,
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        msg = (
            f"the data set {place} can't be had: {error}; "
            "where the hub is out of reach, put Parquet files into a mirror (docs/data.md)"
        )
        if source.revision != "main" and not isinstance(source, KnownSet):
            msg += "; a mirror serves revision main only, so leave data.revision out as well"
        raise DataNotFound(msg) from error
    yield from documents(rows, source.field, place)


def documents(rows: Iterable[Mapping[str, object]], field: str, place: str) -> Iterator[Document]:
    """Documents of rows that are there already."""
    for number, row in enumerate(rows, 1):
        row_place = f"row {number} of {place}"
        if field not in row:
            raise missing_field(field, list(row), row_place)
        yield Document(text_field(row[field], field, row_place), row_place)
