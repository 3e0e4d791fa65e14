"""Documents that stand in the spec itself."""

from collections.abc import Iterator

from evaluator.contract.data import InlineData
from evaluator.data.document import Document


def read(source: InlineData) -> Iterator[Document]:
    """The documents in their order."""
    for index, text in enumerate(source.documents):
        yield Document(text, f"data.documents[{index}]")
