"""Which tokens are fed together, and which of them count. Pure arithmetic on ints.

There is one window machine. A convention is a `WindowRule`: parameters of that machine and nothing
else, so that a new convention needs no new loop.
"""

from collections.abc import Iterator, Sequence
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
    DROP_ALL = "drop_all"
    """A document has one window; one that does not fit into it has none."""


class PrefixPlace(Enum):
    """Where the prefix token stands. It takes a place in the span of its window."""

    NOWHERE = "nowhere"
    FIRST = "first"
    """Before the first token of the document, so only in the first window."""
    EVERY = "every"
    """At the start of each window. Where windows do not overlap by a place for it, it stands there
    instead of a token: `step` decides which."""


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """A convention as parameters of the window machine."""

    span: int
    """Tokens a full window covers, its last target and a prefix counted; at least 2."""
    step: int
    """Tokens between two window starts; 1 to `span`."""
    min_context: int = 1
    """Tokens of its window that a target must have before it, the prefix counted; 1 to
    `span` - 1."""
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


def lm_eval(window: int, place: PrefixPlace) -> WindowRule:
    """Disjoint targets, each window one token of context; every window feeds up to `window` tokens.

    Without a prefix the document's first token takes its place: it is fed and not scored. With a
    prefix in every window the token of context is still there, so a window has one target less.
    Source: EleutherAI/lm-evaluation-harness 0.4.13, `loglikelihood_rolling` with its helpers
    `get_rolling_token_windows` and `make_disjoint_window`.
    """
    return WindowRule(
        span=window + 1,
        step=max(1, _room(window, place)),
        tail=Tail.FILL_LEFT,
        prefix=place,
    )


def hf_strided(window: int, stride: int, place: PrefixPlace = PrefixPlace.NOWHERE) -> WindowRule:
    """Windows that cover `window` tokens, start every `stride`, and score what is new in them.

    A window counts its last target, as its origin does, although that token need not be fed.
    Source: the guide "Perplexity of fixed-length models" of Hugging Face transformers.
    """
    return WindowRule(span=window, step=stride, prefix=place)


def gptq(window: int, place: PrefixPlace, *, keep_tail: bool) -> WindowRule:
    """Disjoint windows that cover `window` tokens; the first of each is not scored.

    Source: IST-DASLab/gptq, `llama_eval`.
    """
    return WindowRule(
        span=window,
        step=_room(window, place),
        tail=Tail.SHORT if keep_tail else Tail.DROP,
        prefix=place,
    )


def llama_cpp(window: int, place: PrefixPlace, *, replaces: bool) -> WindowRule:
    """Disjoint windows of `window` tokens; the second half of each is scored, less its first token.

    Source: ggml-org/llama.cpp, tools/perplexity, `perplexity`.
    """
    return WindowRule(
        span=window,
        step=window if replaces else _room(window, place),
        min_context=window // 2 + 1,
        tail=Tail.DROP,
        prefix=place,
    )


def whole_document(window: int, place: PrefixPlace) -> WindowRule:
    """Each document in one window that feeds up to `window` tokens."""
    return WindowRule(span=window + 1, step=window + 1, tail=Tail.DROP_ALL, prefix=place)


def _room(window: int, place: PrefixPlace) -> int:
    """Tokens of text in a window."""
    return window - (place is PrefixPlace.EVERY)


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
    start = 0 if rule.prefix is PrefixPlace.NOWHERE else -1
    if rule.tail is Tail.DROP_ALL and num_tokens - start > rule.span:
        return
    begin, scored_end = start, start
    while scored_end < num_tokens:
        end = min(begin + rule.span, num_tokens)
        if end - begin < rule.span and rule.tail is Tail.DROP:
            return
        score_begin = max(scored_end, begin + rule.min_context)
        if rule.tail is Tail.FILL_LEFT:
            begin = max(start, end - rule.span)
        if score_begin < end:
            prefixed = begin < 0 or rule.prefix is PrefixPlace.EVERY
            yield Window(document, begin + prefixed, end, score_begin, prefixed)
        scored_end = end
        begin += rule.step


def unscored_tokens(num_tokens: int, windows: Sequence[Window], rule: WindowRule) -> dict[str, int]:
    """Tokens of a document that has windows which none of them scores, by reason.

    Args:
        num_tokens: Of the document.
        windows: All of the document, at least one.
        rule: That they were made by.

    Returns:
        `tail`: after the last full window; `first_half` and `first_token`: too little context.
    """
    tail = num_tokens - windows[-1].end if rule.tail is Tail.DROP else 0
    early = num_tokens - tail - sum(window.num_scored for window in windows)
    reasons = {"first_token" if rule.min_context == 1 else "first_half": early, "tail": tail}
    return {reason: count for reason, count in reasons.items() if count}


def why_without_windows(num_tokens: int, rule: WindowRule) -> str:
    """The reason why a document with tokens has no window."""
    start = 0 if rule.prefix is PrefixPlace.NOWHERE else -1
    too_long = rule.tail is Tail.DROP_ALL and num_tokens - start > rule.span
    return "too_long" if too_long else "too_short"
