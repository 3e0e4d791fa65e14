"""A text file: the whole file is one document, line ends and all."""

from collections.abc import Iterator
from pathlib import Path

from evaluator.contract.data import TextData
from evaluator.data.document import Document
from evaluator.data.encoding import Errors, decode_utf8, existing_file, reading, refuse_nul


def read(source: TextData) -> Iterator[Document]:
    """The one document."""
    yield read_file(existing_file(source.path), source.path, source.errors)


def read_file(path: Path, place: str, errors: Errors) -> Document:
    """A text file as a document.

    Raises:
        DataEncoding: It is no UTF-8 text.
        DataNotFound: It can't be read.
    """
    with reading(path):
        content = path.read_bytes()
    text, num_replaced = decode_utf8(content, place, errors=errors)
    refuse_nul(content, place)
    return Document(text, place, num_replaced)
