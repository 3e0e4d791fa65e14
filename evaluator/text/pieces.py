"""Long texts to token ids, piece by piece, with the ids that the whole text has.

A tokenizer needs some hundred bytes a token while it works, so a long text is cut. Not every cut
is harmless: a merge, a normaliser or an added token may reach over it. A cut is made only in front
of a single space (or line end) between two words, where the tokenizer's own pre-tokenizer has a
boundary, and where the text around it has the same ids with the cut as without. Texts in which no
such place is found (no spaces, or a tokenizer without pre-tokenizer) are tokenised whole.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SpecialTokens = Literal["text", "parse"]
Ids = NDArray[np.int32]

PIECE_CHARS = 1 << 15
"""A piece is as long as this, and a little more until the next place for a cut."""
PIECES_AT_ONCE = 8
"""As much text is handed to the tokenizer in one call; it works on the pieces in parallel."""
CONTEXT_CHARS = 512
"""Text on each side of a cut that is looked at."""
PLACES_TRIED = 16
"""Before more text is taken in."""

# A single space between two characters, or a line end between two letters. Not in a run of white
# space, where a boundary depends on what is far before, nor in a word.
_PLACE = re.compile(r"\S(?= \S)|[^\W\d_](?=\n[^\W\d_])")


class Encoder:
    """A tokenizer that adds nothing."""

    def __init__(self, tokenizer: Any, special_tokens: SpecialTokens = "text") -> None:
        self._tokenizer = tokenizer
        self._split_special_tokens = special_tokens == "text"

    def __call__(self, texts: list[str]) -> Any:
        """Encode in parallel."""
        return self._tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=self._split_special_tokens,
            return_attention_mask=False,
            verbose=False,
        )

    def ids(self, texts: list[str]) -> Iterator[Ids]:
        """Ids of texts."""
        for row in self(texts)["input_ids"]:
            yield np.asarray(row, dtype=np.int32)

    def is_harmless(self, before: str, after: str) -> bool:
        """True where two texts alone have the ids that they have together."""
        encoded = self([before + after, before, after])
        if not encoded.is_fast:
            return False
        both, left, right = encoded["input_ids"]
        if both != left + right or not left or not right:
            return False
        words = encoded.word_ids(0)
        return bool(words[len(left) - 1] != words[len(left)])


def encode_long(blocks: Iterable[str], encoder: Encoder) -> Iterator[Ids]:
    """Ids of one text that comes in blocks; their concatenation is what the whole text has."""
    group: list[str] = []
    for piece in cut_text(blocks, encoder):
        group.append(piece)
        if sum(map(len, group)) >= PIECES_AT_ONCE * PIECE_CHARS:
            yield from encoder.ids(group)
            group = []
    if group:
        yield from encoder.ids(group)


def cut_text(blocks: Iterable[str], encoder: Encoder) -> Iterator[str]:
    """Cut a text into pieces that may be tokenised alone.

    Args:
        blocks: The text in parts of any length.
        encoder: Decides where a cut is harmless.
    """
    held: list[str] = []
    num_held = 0
    enough = least = PIECE_CHARS + CONTEXT_CHARS
    for block in blocks:
        held.append(block)
        num_held += len(block)
        if num_held < enough:
            continue
        text, begin = "".join(held), 0
        while len(text) - begin >= least:
            end = _place(text, begin, encoder)
            if end is None:
                break
            yield text[begin:end]
            begin = end
        held = [text[begin:]]
        num_held = len(held[0])
        # Where no place was found, looking again after each block would take quadratic time.
        enough = least if num_held < least else 2 * num_held
    if num_held:
        yield "".join(held)


def _place(text: str, begin: int, encoder: Encoder) -> int | None:
    """Where the piece that begins at `begin` may end; None where no such place was found."""
    last = len(text) - CONTEXT_CHARS + 1
    places = _PLACE.finditer(text, begin + PIECE_CHARS - 1, last)
    for place in islice(places, PLACES_TRIED):
        end = place.end()
        before, after = text[max(begin, end - CONTEXT_CHARS) : end], text[end : end + CONTEXT_CHARS]
        if encoder.is_harmless(before, after):
            return end
    return None
