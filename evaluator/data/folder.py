"""A folder of text files: each file is a document."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from evaluator.contract.data import FolderData
from evaluator.data.document import Document
from evaluator.data.encoding import reading
from evaluator.data.text import read_file
from evaluator.errors import DataInvalid, DataNotFound


def read(source: FolderData) -> Iterator[Document]:
    """One document a file, in the order of the bytes of their paths, whatever the system's is."""
    folder = Path(source.path)
    with reading(folder):
        if not folder.is_dir():
            msg = f"there is no folder {folder}"
            raise DataNotFound(msg)
        paths = sorted(_matching(folder, source.pattern), key=os.fsencode)
    if not paths:
        msg = f"no file in {folder} matches {source.pattern!r}; name others in data.pattern"
        raise DataNotFound(msg)
    for path in paths:
        yield read_file(_inside(path, folder), _shown(path), source.errors)


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    hidden_too = pattern.startswith(".")
    # Without this a folder that can't be listed would be left out in silence.
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        # Links to folders are not followed, so that no file comes twice and no walk is endless.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if fnmatchcase(name, pattern) and (hidden_too or not name.startswith(".")):
                yield Path(parent, name)


def _refuse(error: OSError) -> None:
    raise error


def _inside(path: Path, folder: Path) -> Path:
    """The file behind `path`, which may be a link.

    Raises:
        DataInvalid: It leads out of the folder, or to no file.
    """
    with reading(path):
        target = path.resolve()
        if not target.is_relative_to(folder.resolve()):
            msg = f"{_shown(path)} is a link that leads out of the folder; copy the file into it"
            raise DataInvalid(msg)
        if not target.is_file():
            msg = f"{_shown(path)} is no file, or a link to nothing; remove it"
            raise DataInvalid(msg)
    return target


def _shown(path: Path) -> str:
    """The path as text, however its name is encoded."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
