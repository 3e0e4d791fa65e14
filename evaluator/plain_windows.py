"""Windows cut by plain loops, one for each convention; a second opinion on `planning.windows`.

Must not import the scoring code: `evaluator.verify` compares with it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from evaluator.contract.reports import ScoringUsed


class Piece(NamedTuple):
    """A window, cut the plain way."""

    begin: int
    """First scored token of the document."""
    inputs: list[int]
    targets: list[int]
    """The last one follows the last input."""


def cut(ids: list[int], used: ScoringUsed) -> Iterator[Piece]:
    """All windows of a document, in text order.

    Raises:
        ValueError: There is no plain loop for the convention.
    """
    prefix = [] if used.prefix_token_id is None else [used.prefix_token_id]
    match used.convention:
        case "lm-eval":
            yield from _cut_lm_eval(ids, used.window, prefix, every=used.prefix_place == "every")
        case "hf-strided":
            yield from _cut_strided(ids, used, prefix)
        case "gptq" | "llama.cpp":
            yield from _cut_disjoint(ids, used, prefix)
        case "document":
            tokens = prefix + ids
            yield Piece(1 - len(prefix), tokens[:-1], tokens[1:])
        case other:
            msg = f"there is no plain reference for the convention {other!r}"
            raise ValueError(msg)


def _cut_lm_eval(ids: list[int], length: int, prefix: list[int], *, every: bool) -> Iterator[Piece]:
    """Each token once; the last window reaches back for more context."""
    tokens, place = prefix + ids, len(prefix)
    position = 1
    while position < len(tokens):
        room = max(1, length - 1) if every and position > 1 else length
        stop = min(position + room, len(tokens))
        start = max(0, stop - 1 - length)
        inputs = tokens[start : stop - 1]
        if every:
            inputs[0] = prefix[0]
        yield Piece(position - place, inputs, tokens[position:stop])
        position = stop


def _cut_strided(ids: list[int], used: ScoringUsed, prefix: list[int]) -> Iterator[Piece]:
    """The loop of the Hugging Face guide; a window's first token has nothing before it."""
    tokens, done = prefix + ids, 0
    for begin in range(0, len(tokens), used.stride):
        end = min(begin + used.window, len(tokens))
        first = max(done, begin + 1)
        if first < end:
            inputs = tokens[begin : end - 1]
            if used.prefix_place == "every":
                inputs[0] = prefix[0]
            yield Piece(first - len(prefix), inputs, tokens[first:end])
        done = end
        if end == len(tokens):
            return


def _cut_disjoint(ids: list[int], used: ScoringUsed, prefix: list[int]) -> Iterator[Piece]:
    """Chunks of `window` tokens; after the first token, or after the first half, each counts."""
    num_skipped = used.window // 2 + 1 if used.convention == "llama.cpp" else 1
    own = prefix if used.prefix_place == "every" else []
    tokens = ids if own else prefix + ids
    shift = 0 if own else len(prefix)
    step = used.window - len(own)
    for begin in range(0, len(tokens), step):
        chunk = own + tokens[begin : begin + step]
        if len(chunk) < used.window and used.tail == "drop":
            return
        if used.prefix_place == "replaces":
            chunk[0] = prefix[0]
        if num_skipped < len(chunk):
            first = begin + num_skipped - len(own) - shift
            yield Piece(first, chunk[:-1], chunk[num_skipped:])
