"""Which documents of a source are taken, and whether they are joined."""

import hashlib
import heapq
import struct
from collections.abc import Iterable, Iterator
from operator import itemgetter

from evaluator.contract.data import Sample
from evaluator.data.document import Document


def sample_documents(documents: Iterable[Document], sample: Sample) -> Iterator[Document]:
    """Documents drawn at random, in their order; all of them where there are no more.

    Drawn are those whose index, hashed with the seed, is least: the same ones with any version of
    any library, and a larger sample of the same seed contains a smaller one. Memory holds the
    sample, not the data set.
    """
    drawn = heapq.nsmallest(
        sample.num_documents,
        ((_draw(sample.seed, index), index, one) for index, one in enumerate(documents)),
        key=itemgetter(0),
    )
    for _, _, document in sorted(drawn, key=itemgetter(1)):
        yield document


def _draw(seed: int, index: int) -> bytes:
    return hashlib.sha256(b"assay-sample-1\0" + struct.pack("<QQ", seed, index)).digest()


def join_documents(documents: Iterable[Document], separator: str) -> Iterator[Document]:
    """One document of all texts; none where there are none."""
    taken = list(documents)
    if len(taken) <= 1:
        yield from taken
        return
    original = None
    if any(document.original is not None for document in taken):
        original = separator.join(document.counted for document in taken)
    yield Document(
        text=separator.join(document.text for document in taken),
        place=f"{len(taken)} documents from {taken[0].place} on, joined",
        num_replaced=sum(document.num_replaced for document in taken),
        original=original,
    )
