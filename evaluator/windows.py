"""Which tokens are fed together, and which of them count. Pure arithmetic on ints.

There is one window machine. A convention is a `WindowRule`: parameters of that machine and nothing
else, so that a new convention needs no new loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Window(NamedTuple):
    """Positions count the document's own tokens from 0."""

    document: int
    """Index of the document in the data set."""
    begin: int
    """First token that is fed."""
    end: int
    """One past the last target. The last token is a target only; it is never fed."""
    score_begin: int
    """First target that counts."""
    prefixed: bool
    """True where the prefix token is fed before `begin`."""

    @property
    def num_inputs(self) -> int:
        """Tokens fed to the model, the prefix counted."""
        return self.end - 1 - self.begin + self.prefixed

    @property
    def num_scored(self) -> int:
        """Targets that count."""
        return self.end - self.score_begin

    @property
    def first_scored_input(self) -> int:
        """Index among the inputs of the one that predicts `score_begin`."""
        return self.score_begin - 1 - self.begin + self.prefixed


class Tail(Enum):
    """What becomes of a last window that the document can't fill."""

    SHORT = "short"
    """It stays short."""
    FILL_LEFT = "fill_left"
    """It is filled up to the left with tokens that are scored already."""
    DROP = "drop"
    """It is left out, and its tokens with it."""


class PrefixPlace(Enum):
    """Where the prefix token stands."""

    NOWHERE = "nowhere"
    FIRST = "first"
    """Before the first token of the document, so only in the first window."""
    REPLACES = "replaces"
    """In each window, in place of the window's first token."""


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """A convention as parameters of the window machine."""

    span: int
    """Tokens a full window covers, its last target and a prefix counted; at least 2."""
    step: int
    """Tokens between two window starts; 1 to `span`."""
    min_context: int = 1
    """Tokens of its window that a target must have before it; 1 to `span` - 1."""
    tail: Tail = Tail.SHORT
    prefix: PrefixPlace = PrefixPlace.NOWHERE

    def __post_init__(self) -> None:
        if self.span < 2:
            msg = f"span is {self.span}, it must be at least 2"
            raise ValueError(msg)
        if not 1 <= self.step <= self.span:
            msg = f"step is {self.step}, it must lie in 1..span ({self.span})"
            raise ValueError(msg)
        if not 1 <= self.min_context < self.span:
            msg = f"min_context is {self.min_context}, it must lie in 1..span-1 ({self.span - 1})"
            raise ValueError(msg)


def rolling(window: int, *, prefixed: bool) -> WindowRule:
    """Disjoint targets, each window one token of context; every window feeds up to `window` tokens.

    Without a prefix the document's first token takes its place: it is fed and not scored.
    Source: EleutherAI/lm-evaluation-harness 0.4.13, `loglikelihood_rolling` with its helpers
    `get_rolling_token_windows` and `make_disjoint_window`.
    """
    return WindowRule(
        span=window + 1,
        step=window,
        tail=Tail.FILL_LEFT,
        prefix=PrefixPlace.FIRST if prefixed else PrefixPlace.NOWHERE,
    )


def strided(window: int, stride: int) -> WindowRule:
    """Windows that cover `window` tokens, start every `stride`, and score what is new in them.

    A window counts its last target, as its origin does, although that token need not be fed.
    Source: the guide "Perplexity of fixed-length models" of Hugging Face transformers.
    """
    return WindowRule(span=window, step=stride)


def document_windows(document: int, num_tokens: int, rule: WindowRule) -> Iterator[Window]:
    """Windows of one document, in text order.

    Args:
        document: Index of the document, copied into each window.
        num_tokens: Tokens of the document, without a prefix.
        rule: The convention.

    Yields:
        Windows with at least one scored token; no token is scored twice.
    """
    # With a prefix before the text the positions start at -1, where the prefix stands.
    start = -1 if rule.prefix is PrefixPlace.FIRST else 0
    begin, scored_end = start, start
    while scored_end < num_tokens:
        end = min(begin + rule.span, num_tokens)
        if end - begin < rule.span and rule.tail is Tail.DROP:
            return
        score_begin = max(scored_end, begin + rule.min_context)
        if rule.tail is Tail.FILL_LEFT:
            begin = max(start, end - rule.span)
        if score_begin < end:
            yield _window(document, begin, end, score_begin, rule.prefix)
        scored_end = end
        begin += rule.step


def _window(document: int, begin: int, end: int, score_begin: int, place: PrefixPlace) -> Window:
    prefixed = begin < 0 or place is PrefixPlace.REPLACES
    return Window(document, begin + prefixed, end, score_begin, prefixed)
