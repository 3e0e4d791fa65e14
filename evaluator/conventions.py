"""Named scoring conventions: each sets the parameters of the window machine and says what it does.

A new convention is one function and one line in `CONVENTIONS`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from evaluator.contract.launch import RollingScoring, Scoring, StridedScoring
from evaluator.contract.reports import ScoringUsed
from evaluator.errors import WindowTooLong
from evaluator.tokens import Prefix, choose_prefix
from evaluator.windows import WindowRule, rolling, strided

DEFAULT_WINDOW = 2048
"""Where the request gives none and the model has at least as many positions."""


class Convention(NamedTuple):
    """A convention with nothing left open."""

    used: ScoringUsed
    rule: WindowRule
    prefix: Prefix


def choose_window(asked: int | None, max_positions: int | None) -> int:
    """Window length for a model.

    Args:
        asked: From the request; None takes the default.
        max_positions: Of the model; None where it has no limit.

    Raises:
        WindowTooLong: The model has fewer positions than were asked.
    """
    if asked is None:
        return min(DEFAULT_WINDOW, max_positions or DEFAULT_WINDOW)
    if max_positions is not None and asked > max_positions:
        msg = f"scoring.window is {asked}, but the model has {max_positions} positions"
        raise WindowTooLong(msg)
    return asked


def _rolling(scoring: RollingScoring, window: int, tokenizer: Any) -> Convention:
    prefix = choose_prefix(scoring.prefix, tokenizer)
    first = (
        f"the first one given the {prefix.kind.upper()} token"
        if prefix.token_id is not None
        else "but the first one, which has nothing before it"
    )
    used = ScoringUsed(
        convention="rolling",
        window=window,
        stride=window,
        batch_tokens=scoring.batch_tokens,
        prefix=prefix.kind,
        prefix_token_id=prefix.token_id,
        definition=(
            f"Every token of a document is scored once, {first}; a window feeds up to {window} "
            f"tokens and scores as many, with one token of context carried over; the last window "
            f"is filled up to the left with context (lm-evaluation-harness loglikelihood_rolling)."
        ),
    )
    return Convention(used, rolling(window, prefixed=prefix.token_id is not None), prefix)


def _strided(scoring: StridedScoring, window: int, _tokenizer: Any) -> Convention:
    stride = max(1, window // 2) if scoring.stride is None else scoring.stride
    if stride > window:
        msg = f"scoring.stride is {stride}, above the window of {window}; tokens would be left out"
        raise WindowTooLong(msg)
    used = ScoringUsed(
        convention="strided",
        window=window,
        stride=stride,
        batch_tokens=scoring.batch_tokens,
        prefix="none",
        prefix_token_id=None,
        definition=(
            f"Windows of up to {window} tokens start every {stride} tokens of a document; each "
            f"scores the tokens after the end of the one before, given those before them in the "
            f"window; a token with nothing before it is not scored (Hugging Face sliding window)."
        ),
    )
    return Convention(used, strided(window, stride), Prefix("none", None))


CONVENTIONS: dict[type, Callable[[Any, int, Any], Convention]] = {
    RollingScoring: _rolling,
    StridedScoring: _strided,
}


def resolve_convention(
    scoring: Scoring, *, max_positions: int | None, tokenizer: Any
) -> Convention:
    """What was asked, for this model and tokenizer.

    Raises:
        WindowTooLong: The window does not fit the model, or the stride not the window.
        TokenizerMismatch: The asked prefix token is not there.
    """
    window = choose_window(scoring.window, max_positions)
    return CONVENTIONS[type(scoring)](scoring, window, tokenizer)
