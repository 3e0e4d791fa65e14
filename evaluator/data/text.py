"""A text file: the whole file is one document, line ends and all."""

from collections.abc import Iterator

from evaluator.contract.launch import TextData
from evaluator.data.document import Document
from evaluator.data.encoding import decode_utf8, existing_file, refuse_nul


def read(source: TextData) -> Iterator[Document]:
    """The one document."""
    path = existing_file(source.path)
    content = path.read_bytes()
    text = decode_utf8(content, path)
    refuse_nul(content, path)
    yield Document(text, str(path))
