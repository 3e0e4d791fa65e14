"""Documents to token ids.

The tokenizer adds no special tokens, and text that looks like one stays text unless the request
says otherwise: what a document says must not steer the model. The prefix token is added by the
windows, not here.
"""

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.data.document import Document, utf8_of
from evaluator.digests import IDS_START, TEXTS_START
from evaluator.errors import TokenizerMismatch

Ids = NDArray[np.int32]

WHITE_SPACE = re.compile(r"\s+")

DOCUMENTS_AT_ONCE = 64
"""Handed to the tokenizer in one call; it works on them in parallel."""


class Prefix(NamedTuple):
    """The token that conditions the first one of a document."""

    kind: Literal["bos", "eos", "none"]
    token_id: int | None


@dataclass(frozen=True, kw_only=True)
class TokenDocument:
    """A document with at least one token."""

    index: int
    """Position in the data set, excluded documents counted."""
    place: str
    ids: Ids
    num_bytes: int
    """UTF-8 bytes of the text as it was published."""
    num_words: int
    """Of the text as it was published."""
    num_replaced: int
    """Invalid sequences that became U+FFFD."""
    highest_id: int
    """Of `ids`, which may be a large file."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The whole data set as tokens."""

    documents: tuple[TokenDocument, ...]
    num_empty: int
    """Documents without a token."""
    data_digest: str
    """Of the texts in their order; the format they were stored in does not matter."""
    ids_digest: str
    """Of all ids; it tells apart what tokenizer digests can't, such as library versions."""


def choose_prefix(asked: Literal["auto", "bos", "eos", "none"], tokenizer: Any) -> Prefix:
    """Resolve `auto` to BOS, else EOS, else none.

    Raises:
        TokenizerMismatch: The asked token is not there.
    """
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    if asked in ("auto", "bos") and ids["bos"] is not None:
        return Prefix("bos", int(ids["bos"]))
    if asked in ("auto", "eos") and ids["eos"] is not None:
        return Prefix("eos", int(ids["eos"]))
    if asked in ("bos", "eos"):
        msg = f"scoring.prefix is {asked}, but the tokenizer has no such token; take auto or none"
        raise TokenizerMismatch(msg)
    return Prefix("none", None)


def adds_bos(tokenizer: Any) -> bool:
    """True where the tokenizer itself begins a text with BOS."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]


def digest_tokenizer(tokenizer: Any) -> str:
    """Digest of everything that decides which ids a text gets."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        facts = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
        return _sha256(json.dumps(facts, sort_keys=True))
    # Left by the last call, no part of the tokenizer; each call sets them anew.
    backend.no_truncation()
    backend.no_padding()
    # From its state in memory, always in one order, so equal tokenizers give equal words.
    return _sha256(backend.to_str())


def _sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def count_words(text: str) -> int:
    """Pieces of a text between runs of white space; `perplexity.WORD_RULE` in words."""
    return 1 + sum(1 for _ in WHITE_SPACE.finditer(text))


def tokenise(
    documents: Iterable[Document],
    tokenizer: Any,
    special_tokens: Literal["text", "parse"] = "text",
) -> Corpus:
    """Tokenise a data set in its order.

    Args:
        documents: The data set.
        tokenizer: Of the model.
        special_tokens: Whether text such as `<s>` is text, or the token it looks like.

    Raises:
        DataEncoding: A text holds half a surrogate pair, which no UTF-8 can carry.
    """
    data_digest = hashlib.sha256(TEXTS_START)
    ids_digest = hashlib.sha256(IDS_START)
    kept: list[TokenDocument] = []
    counts: Counter[str] = Counter()
    remaining = iter(documents)
    while group := list(islice(remaining, DOCUMENTS_AT_ONCE)):
        for document, encoded, ids in _encode(group, tokenizer, special_tokens):
            data_digest.update(struct.pack("<Q", len(encoded)) + encoded)
            ids_digest.update(struct.pack("<Q", len(ids)) + ids.astype("<i4").tobytes())
            if len(ids):
                kept.append(
                    TokenDocument(
                        index=counts["documents"],
                        place=document.place,
                        ids=ids,
                        num_bytes=_num_bytes(document, encoded),
                        num_words=count_words(document.counted),
                        num_replaced=document.num_replaced,
                        highest_id=int(ids.max()),
                    )
                )
            counts["documents"] += 1
    return Corpus(
        documents=tuple(kept),
        num_empty=counts["documents"] - len(kept),
        data_digest=f"sha256:{data_digest.hexdigest()}",
        ids_digest=f"sha256:{ids_digest.hexdigest()}",
    )


def _encode(
    group: list[Document], tokenizer: Any, special_tokens: Literal["text", "parse"]
) -> Iterator[tuple[Document, bytes, Ids]]:
    encoded = [utf8_of(document) for document in group]
    ids = tokenizer(
        [document.text for document in group],
        add_special_tokens=False,
        split_special_tokens=special_tokens == "text",
        return_attention_mask=False,
        verbose=False,
    )["input_ids"]
    for document, content, row in zip(group, encoded, ids, strict=True):
        yield document, content, np.asarray(row, dtype=np.int32)


def _num_bytes(document: Document, encoded: bytes) -> int:
    return len(encoded) if document.original is None else len(document.original.encode())


def check_ids(corpus: Corpus, prefix: Prefix, num_rows: int) -> None:
    """Raise where an id has no row in the embedding.

    Raises:
        TokenizerMismatch: It names id, rows and document.
    """
    if prefix.token_id is not None and prefix.token_id >= num_rows:
        msg = f"the prefix token has id {prefix.token_id}, but the embedding has {num_rows} rows"
        raise TokenizerMismatch(msg)
    for document in corpus.documents:
        if document.highest_id >= num_rows:
            msg = (
                f"{document.place}: the tokenizer gives id {document.highest_id}, but the "
                f"embedding has {num_rows} rows; the tokenizer belongs to another model"
            )
            raise TokenizerMismatch(msg)
