"""From texts to a corpus: small data sets in memory, others through the token cache.

A data set is read once to know its digest, and a second time where nobody has tokenised it yet;
memory holds facts of each document, never all texts.
"""

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.contract.launch import CACHE_LIMIT_BYTES
from evaluator.data.document import Document, utf8_of
from evaluator.data.long_text import LongDocument
from evaluator.digests import IDS_START, TEXTS_START
from evaluator.errors import DataInvalid
from evaluator.text.pieces import PIECE_CHARS, Encoder, Ids, SpecialTokens, encode_long
from evaluator.text.token_cache import Entry, TokenisedText, cached_entry, entry_key
from evaluator.text.tokens import Corpus, TokenDocument, count_words, tokenise

logger = logging.getLogger(__name__)

AnyDocument = Document | LongDocument

CACHED_BYTES = 1 << 20
"""Data sets below this are tokenised in less time than a cache would take."""
GROUP_CHARS = 1 << 18
"""Documents that go to the tokenizer together have no more."""
GROUP_DOCUMENTS = 1024


def load_corpus(
    open_documents: Callable[[], Iterable[AnyDocument]],
    tokenizer: Any,
    special_tokens: SpecialTokens,
    *,
    tokenizer_digest: str,
    cache_dir: Path,
    cache_limit_bytes: int = CACHE_LIMIT_BYTES,
    tick: Callable[[], None] = lambda: None,
) -> Corpus:
    """Tokenise a data set in its order, or take over what was tokenised before.

    Args:
        open_documents: Begins to read the data set.
        tokenizer: Of the model.
        special_tokens: Whether text such as `<s>` is text, or the token it looks like.
        tokenizer_digest: Digest of the tokenizer.
        cache_dir: Holds the cache.
        cache_limit_bytes: Of the cache.
        tick: Called often, so that others see that this goes on.

    Raises:
        DataEncoding: A text holds half a surrogate pair, which no UTF-8 can carry.
        DataInvalid: The data set changed while it was read.
    """
    survey = _Survey()
    for document in open_documents():
        tick()
        survey.add(document)
    if survey.held is not None:
        return tokenise(survey.held, tokenizer, special_tokens)
    encoder = Encoder(tokenizer, special_tokens)

    def make() -> Iterator[TokenisedText]:
        with _all_cores():
            yield from _tokenised(_checked(open_documents(), survey), encoder)

    key = entry_key(*survey.digests, tokenizer_digest, special_tokens)
    try:
        entry = cached_entry(
            cache_dir / "tokens", key, make, max_bytes=cache_limit_bytes, tick=tick
        )
    except OSError as error:
        logger.warning("the token cache can't be used, so every rank tokenises: %s", error)
        entry = _in_memory(make())
    return survey.corpus(entry)


@dataclass
class _Survey:
    """What one reading tells of a data set, and its documents while they are few."""

    held: list[Document] | None = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    num_replaced: list[int] = field(default_factory=list)
    _total_bytes: int = 0

    def __post_init__(self) -> None:
        self._data_digest = hashlib.sha256(TEXTS_START)
        self._original_digest = hashlib.sha256()

    @property
    def digests(self) -> tuple[str, str]:
        """Of what is tokenised, and of the texts whose words are counted instead."""
        return f"sha256:{self._data_digest.hexdigest()}", self._original_digest.hexdigest()

    def add(self, document: AnyDocument) -> None:
        """Take note of the next document."""
        self.places.append(document.place)
        if isinstance(document, LongDocument):
            self.held = None
            self._add_long(document)
        else:
            self._add_short(document)

    def _add_short(self, document: Document) -> None:
        encoded = utf8_of(document)
        self._data_digest.update(struct.pack("<Q", len(encoded)) + encoded)
        self.text_bytes.append(len(encoded))
        if document.original is None:
            self.num_bytes.append(len(encoded))
        else:
            original = document.original.encode()
            self._original_digest.update(struct.pack("<QQ", len(self.places), len(original)))
            self._original_digest.update(original)
            self.num_bytes.append(len(original))
        self.num_replaced.append(document.num_replaced)
        self._total_bytes += len(encoded)
        if self.held is not None:
            self.held.append(document)
            if self._total_bytes > CACHED_BYTES:
                self.held = None

    def _add_long(self, document: LongDocument) -> None:
        # Twice, since the digest begins with the length, which replaced bytes change.
        num_bytes = num_replaced = 0
        for text, replaced in document.blocks():
            num_bytes += len(text.encode())
            num_replaced += replaced
        self._data_digest.update(struct.pack("<Q", num_bytes))
        for text, _ in document.blocks():
            self._data_digest.update(text.encode())
        self.text_bytes.append(num_bytes)
        self.num_bytes.append(num_bytes)
        self.num_replaced.append(num_replaced)

    def corpus(self, entry: Entry) -> Corpus:
        """The corpus whose ids are those of `entry`."""
        words, highest = entry.num_words.tolist(), entry.highest.tolist()
        kept = tuple(
            TokenDocument(
                index=index,
                place=self.places[index],
                ids=ids,
                num_bytes=self.num_bytes[index],
                num_words=words[index],
                num_replaced=self.num_replaced[index],
                highest_id=highest[index],
            )
            for index, ids in enumerate(entry.documents())
            if len(ids)
        )
        return Corpus(
            documents=kept,
            num_empty=len(self.places) - len(kept),
            data_digest=self.digests[0],
            ids_digest=entry.ids_digest,
        )


def _checked(documents: Iterable[AnyDocument], survey: _Survey) -> Iterator[AnyDocument]:
    """The documents, read again.

    Raises:
        DataInvalid: They are not those of the first reading.
    """
    digest = hashlib.sha256(TEXTS_START)
    for num_bytes, document in zip(survey.text_bytes, documents, strict=False):
        digest.update(struct.pack("<Q", num_bytes))
        if isinstance(document, LongDocument):
            yield document
            for text, _ in document.blocks():
                digest.update(text.encode())
        else:
            digest.update(utf8_of(document))
            yield document
    if f"sha256:{digest.hexdigest()}" != survey.digests[0]:
        msg = "the data set changed while it was read; run again once it is complete"
        raise DataInvalid(msg)


def _tokenised(documents: Iterable[AnyDocument], encoder: Encoder) -> Iterator[TokenisedText]:
    """Ids of each document; many short ones, or pieces of one long one, go in one call."""
    group: list[Document] = []
    num_chars = 0
    for document in documents:
        if isinstance(document, LongDocument) or len(document.text) > 2 * PIECE_CHARS:
            yield from _group(group, encoder)
            group, num_chars = [], 0
            yield _long(document, encoder)
            continue
        group.append(document)
        num_chars += len(document.text)
        if num_chars > GROUP_CHARS or len(group) == GROUP_DOCUMENTS:
            yield from _group(group, encoder)
            group, num_chars = [], 0
    yield from _group(group, encoder)


def _group(group: list[Document], encoder: Encoder) -> Iterator[TokenisedText]:
    if group:
        rows = encoder.ids([document.text for document in group])
        for document, ids in zip(group, rows, strict=True):
            yield TokenisedText((ids,), partial(count_words, document.counted))


def _long(document: AnyDocument, encoder: Encoder) -> TokenisedText:
    if isinstance(document, LongDocument):
        texts = (text for text, _ in document.blocks())
        return TokenisedText(encode_long(texts, encoder), partial(_count_words_of, document))
    return TokenisedText(
        encode_long([document.text], encoder), partial(count_words, document.counted)
    )


def _count_words_of(document: LongDocument) -> int:
    """As `count_words`, though a run of white space may lie in two blocks."""
    num_words, in_white_space = 1, False
    for text, _ in document.blocks():
        if text:
            num_words += count_words(text) - 1 - (in_white_space and text[0].isspace())
            in_white_space = text[-1].isspace()
    return num_words


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let the tokenizer use all cores: the other ranks of the node wait for this one."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _in_memory(texts: Iterable[TokenisedText]) -> Entry:
    ids: list[Ids] = []
    lengths: list[int] = []
    num_words: list[int] = []
    highest: list[int] = []
    digest = hashlib.sha256(IDS_START)
    for text in texts:
        row = np.concatenate([np.empty(0, dtype=np.int32), *text.ids])
        digest.update(struct.pack("<Q", len(row)) + row.astype("<i4").tobytes())
        ids.append(row)
        lengths.append(len(row))
        num_words.append(text.count_words())
        highest.append(int(row.max(initial=0)))
    return Entry(
        ids=np.concatenate([np.empty(0, dtype=np.int32), *ids]),
        lengths=np.asarray(lengths, dtype=np.int64),
        num_words=np.asarray(num_words, dtype=np.int64),
        highest=np.asarray(highest, dtype=np.int64),
        ids_digest=f"sha256:{digest.hexdigest()}",
    )
