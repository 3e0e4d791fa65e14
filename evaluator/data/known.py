"""From a name to the place where its rows are: known names, and the mirror before the hub."""

from collections.abc import Iterator
from pathlib import Path

from evaluator.contract.data import DataSource, HubData, KnownData, Source
from evaluator.contract.known import expand, mirror_fault, mirror_files
from evaluator.data.document import Document
from evaluator.data.parquet import read_file
from evaluator.errors import DataNotFound


class MirroredData(Source):
    """A hub data set of which the mirror has a copy."""

    files: tuple[Path, ...]
    field: str


def locate(source: DataSource, mirror_dir: Path | None) -> DataSource | MirroredData:
    """The source that is read in the end: a known set's hub data set, or the mirror's copy.

    Raises:
        DataNotFound: The mirror's copy is not whole, or there are several.
    """
    found = expand(source) if isinstance(source, KnownData) else source
    if isinstance(found, HubData):
        files = mirror_files(mirror_dir, found)
        if files:
            if (fault := mirror_fault(files)) is not None:
                raise DataNotFound(fault)
            common = {name: getattr(found, name) for name in Source.model_fields}
            return MirroredData(files=tuple(files), field=found.field, **common)
    return found


def read_mirrored(source: MirroredData) -> Iterator[Document]:
    """One document a row, file after file."""
    for path in source.files:
        yield from read_file(path, source.field, source.errors)
