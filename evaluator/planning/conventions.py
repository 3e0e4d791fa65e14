"""Named scoring conventions: each sets the parameters of the window machine and says what it does.

A new convention is one function and one line in `CONVENTIONS`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from evaluator.contract.reports import ScoringUsed
from evaluator.contract.scoring import (
    DocumentScoring,
    GptqScoring,
    HfStridedScoring,
    LlamaCppScoring,
    LmEvalScoring,
    Scoring,
)
from evaluator.errors import SpecInvalid, WindowTooLong
from evaluator.planning import windows
from evaluator.planning.windows import PrefixPlace, WindowRule
from evaluator.text.tokens import Prefix, adds_bos, choose_prefix

USUAL_WINDOW = {
    LmEvalScoring: 2048,
    HfStridedScoring: 1024,
    GptqScoring: 2048,
    LlamaCppScoring: 512,
    DocumentScoring: 2**22,
}
"""Where the request gives none and the model has at least as many positions; `document` takes what
the model has."""

Place = Literal["first", "every", "replaces"]


class Stream(NamedTuple):
    """How a convention makes one text of all documents."""

    join: str
    """Where the request gives none."""
    drops_newline: bool = False
    """One newline at the end of the stream is left out."""


class Convention(NamedTuple):
    """A convention with nothing left open."""

    used: ScoringUsed
    rule: WindowRule
    prefix: Prefix
    stream: Stream | None = None


class _Context(NamedTuple):
    """What a convention is resolved against."""

    window: int
    tokenizer: Any
    join: str | None


def choose_window(asked: int | None, usual: int, max_positions: int | None) -> int:
    """Window length for a model.

    Args:
        asked: From the request; None takes the convention's usual one.
        usual: Of the convention.
        max_positions: Of the model; None where it has no limit.

    Raises:
        WindowTooLong: The model has fewer positions than were asked.
    """
    if asked is None:
        return min(usual, max_positions or usual)
    if max_positions is not None and asked > max_positions:
        msg = (
            f"scoring.window is {asked}, but the model has {max_positions} positions; ask for "
            f"{max_positions} or fewer, or leave it out"
        )
        raise WindowTooLong(msg)
    return asked


def _choose_place(scoring: Scoring, prefix: Prefix, usual: Place = "first") -> Place | None:
    """Where the prefix stands; None where there is none."""
    if prefix.token_id is None:
        return None
    return usual if scoring.prefix_place == "auto" else scoring.prefix_place


def _of_machine(place: Place | None) -> PrefixPlace:
    if place is None:
        return PrefixPlace.NOWHERE
    return PrefixPlace.FIRST if place == "first" else PrefixPlace.EVERY


def _usual_bos(scoring: Scoring, tokenizer: Any) -> Prefix:
    """The asked prefix; `auto` is BOS where the tokenizer itself begins texts with it."""
    if scoring.prefix != "auto":
        return choose_prefix(scoring.prefix, tokenizer)
    return choose_prefix("bos" if adds_bos(tokenizer) else "none", tokenizer)


def _tail(scoring: Scoring) -> Literal["drop", "keep"] | None:
    """What becomes of a last window that is not full, in conventions that have a rule for it."""
    if isinstance(scoring, GptqScoring):
        return scoring.tail
    return "drop" if isinstance(scoring, LlamaCppScoring) else None


def _used(
    scoring: Scoring,
    context: _Context,
    prefix: Prefix,
    place: Place | None,
    *,
    stride: int,
    definition: str,
) -> ScoringUsed:
    placed = {
        None: "",
        "first": f" {prefix.kind.upper()} is fed before the first token of {{text}}.",
        "every": f" {prefix.kind.upper()} is fed at the start of every window, in its length.",
        "replaces": (
            f" {prefix.kind.upper()} is fed before the first token of {{text}}, and in place of "
            f"the first token of every later window."
        ),
    }[place]
    text = "a document" if context.join is None else "the stream"
    return ScoringUsed(
        convention=scoring.convention,
        window=context.window,
        stride=stride,
        batch_tokens=scoring.batch_tokens,
        prefix=prefix.kind,
        prefix_token_id=prefix.token_id,
        prefix_place=place or "none",
        special_tokens=scoring.special_tokens,
        join=context.join,
        tail=_tail(scoring),
        definition=definition + placed.format(text=text),
    )


def _lm_eval(scoring: LmEvalScoring, context: _Context) -> Convention:
    prefix = choose_prefix(scoring.prefix, context.tokenizer)
    place = _choose_place(scoring, prefix)
    rule = windows.lm_eval(context.window, _of_machine(place))
    first = "" if place else "but the first one, which has nothing before it, "
    definition = (
        f"Every token of a document {first}is scored once; a window feeds up to {context.window} "
        f"tokens, one of them context of the window before; the last window is filled up to the "
        f"left with context (lm-evaluation-harness loglikelihood_rolling)."
    )
    used = _used(scoring, context, prefix, place, stride=rule.step, definition=definition)
    return Convention(used, rule, prefix)


def _hf_strided(scoring: HfStridedScoring, context: _Context) -> Convention:
    window = context.window
    stride = max(1, window // 2) if scoring.stride is None else scoring.stride
    asked = "none" if scoring.prefix == "auto" else scoring.prefix
    prefix = choose_prefix(asked, context.tokenizer)
    place = _choose_place(scoring, prefix)
    room = window - (place == "every")
    if stride > room:
        msg = (
            f"scoring.stride is {stride}, above the window of {window} less the prefix in it; "
            f"tokens would be left out: ask for a stride of {room} or less"
            if room < window
            else f"scoring.stride is {stride}, above the window of {window}"
            f"{' (the usual one for this model)' if scoring.window is None else ''}; "
            f"tokens would be left out: give a larger scoring.window or a smaller stride"
        )
        raise SpecInvalid(msg)
    definition = (
        f"Windows of up to {window} tokens start every {stride} tokens of a document; each "
        f"scores the tokens after the end of the one before, given those before them in the "
        f"window; a token with nothing before it is not scored (Hugging Face sliding window)."
    )
    used = _used(scoring, context, prefix, place, stride=stride, definition=definition)
    return Convention(used, windows.hf_strided(window, stride, _of_machine(place)), prefix)


def _gptq(scoring: GptqScoring, context: _Context) -> Convention:
    stream = Stream("\n\n")
    context = context._replace(join=stream.join if context.join is None else context.join)
    prefix = _usual_bos(scoring, context.tokenizer)
    place = _choose_place(scoring, prefix)
    rule = windows.gptq(context.window, _of_machine(place), keep_tail=scoring.tail == "keep")
    tail = "kept" if scoring.tail == "keep" else "left out"
    definition = (
        f"One stream is cut into disjoint windows of {context.window} tokens; all but the first "
        f"token of each are scored, given those before them in the window; a last window that is "
        f"not full is {tail} (GPTQ)."
    )
    used = _used(scoring, context, prefix, place, stride=rule.step, definition=definition)
    return Convention(used, rule, prefix, stream)


def _llama_cpp(scoring: LlamaCppScoring, context: _Context) -> Convention:
    stream = Stream("", drops_newline=True)
    context = context._replace(join=stream.join if context.join is None else context.join)
    prefix = _usual_bos(scoring, context.tokenizer)
    place = _choose_place(scoring, prefix, "replaces")
    rule = windows.llama_cpp(context.window, _of_machine(place), replaces=place == "replaces")
    definition = (
        f"One stream, less one newline at its end, is cut into disjoint windows of "
        f"{context.window} tokens; those after the first {rule.min_context} of each are scored, "
        f"given all before them in the window; a last window that is not full is left out "
        f"(llama.cpp perplexity)."
    )
    used = _used(scoring, context, prefix, place, stride=rule.step, definition=definition)
    return Convention(used, rule, prefix, stream)


def _document(scoring: DocumentScoring, context: _Context) -> Convention:
    asked = scoring.prefix
    if asked == "auto":
        asked = "bos" if context.tokenizer.bos_token_id is not None else "none"
    prefix = choose_prefix(asked, context.tokenizer)
    place = _choose_place(scoring, prefix)
    first = "" if place else "but the first one, which has nothing before it, "
    definition = (
        f"Every token of a document {first}is scored given all before it, in one window; "
        f"documents that would feed more than {context.window} tokens are left out."
    )
    rule = windows.whole_document(context.window, _of_machine(place))
    used = _used(scoring, context, prefix, place, stride=context.window, definition=definition)
    return Convention(used, rule, prefix)


CONVENTIONS: dict[type, Callable[[Any, _Context], Convention]] = {
    LmEvalScoring: _lm_eval,
    HfStridedScoring: _hf_strided,
    GptqScoring: _gptq,
    LlamaCppScoring: _llama_cpp,
    DocumentScoring: _document,
}


def resolve_convention(
    scoring: Scoring, *, max_positions: int | None, tokenizer: Any, join: str | None = None
) -> Convention:
    """What was asked, for this model and tokenizer.

    Args:
        scoring: What was asked.
        max_positions: Of the model; None where it has no limit.
        tokenizer: Of the model.
        join: Text between documents, where the request joins them.

    Raises:
        WindowTooLong: The window does not fit the model.
        SpecInvalid: The stride does not fit the window.
        TokenizerMismatch: The asked prefix token is not there.
    """
    kind = type(scoring)
    window = choose_window(scoring.window, USUAL_WINDOW[kind], max_positions)
    return CONVENTIONS[kind](scoring, _Context(window, tokenizer, join))
