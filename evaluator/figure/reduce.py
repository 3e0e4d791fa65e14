"""From all ranks' ledger entries to one ledger, and what is odd about the figure; for rank 0."""

from collections.abc import Sequence

import torch

from evaluator.contract.reports import LedgerEntry, Perplexity, RankTiming
from evaluator.errors import ResultInvalid
from evaluator.figure.perplexity import ScoredWindow
from evaluator.planning.plan import Plan
from evaluator.scoring.ledger import Ledger


def join_ledgers(
    plan: Plan, resumed: Sequence[LedgerEntry], added: Sequence[Sequence[LedgerEntry]]
) -> Ledger:
    """One ledger of what earlier attempts and all ranks have done.

    Args:
        plan: What was to be done.
        resumed: Entries of earlier attempts.
        added: New entries by rank.

    Raises:
        ResultInvalid: A batch is missing, or two ranks have scored it.
    """
    ledger = Ledger(plan)
    ledger.take_over(resumed)
    num_before = len(ledger.entries)
    for entries in added:
        ledger.take_over(entries)
    ledger.check_complete()
    num_new = sum(len(entries) for entries in added)
    if num_before + num_new != len(plan.batches):
        msg = (
            f"{num_before} batches were finished and {num_new} were scored, but the plan has "
            f"{len(plan.batches)}: some were scored by two ranks"
        )
        raise ResultInvalid(msg)
    return ledger


def relative_error(value: float, exact: float) -> float:
    """Relative to the exact value; of an exact 0 the value itself."""
    return abs(value - exact) / (abs(exact) or 1.0)


def scored_windows(ledger: Ledger, plan: Plan) -> list[ScoredWindow]:
    """What each window of a complete ledger contributes."""
    return [
        ScoredWindow(window.document, window.score_begin, nll_nats, nll_squares, num_scored)
        for batch, entry in zip(plan.batches, ledger.entries, strict=True)
        for window, nll_nats, nll_squares, num_scored in zip(
            batch.windows, entry.nll_nats, entry.nll_squares, entry.num_scored, strict=True
        )
    ]


UNSCORED_SHARE = 0.01
"""Of all tokens, above which a figure per byte misleads."""


def value_warnings(value: Perplexity, vocabulary_size: int) -> tuple[str, ...]:
    """What is odd about a figure."""
    warnings = []
    num_unscored = value.num_tokens - value.num_scored_tokens
    if num_unscored > UNSCORED_SHARE * value.num_tokens:
        warnings.append(
            f"{num_unscored} of {value.num_tokens} tokens were not scored: figures per byte and "
            f"per word are too low by that share"
        )
    if value.token_perplexity is None:
        warnings.append("the token perplexity exceeds float64 and is null; the mean nll is kept")
    elif value.token_perplexity > vocabulary_size:
        warnings.append(
            f"the token perplexity is above the vocabulary size of {vocabulary_size}: the model "
            f"does worse than guessing; check weights, tokenizer and prefix token"
        )
    if value.word_perplexity is None:
        warnings.append("the word perplexity exceeds float64 and is null; the nll is kept")
    return tuple(warnings)


def memory_warnings(
    timings: Sequence[RankTiming], device: torch.device, num_before: int = 0
) -> tuple[str, ...]:
    """What it did to the figure that forwards did not fit.

    Args:
        timings: Of all ranks.
        device: Of this one.
        num_before: Forwards of earlier attempts because of which all ranks took smaller parts.
    """
    num_split = num_before + sum(timing.num_out_of_memory for timing in timings)
    if num_split == 0 or device.type == "cpu":
        return ()
    return (
        f"{num_split} forwards ran out of memory and were scored in smaller parts: on a "
        f"{device.type} device that may change the last bits; a smaller scoring.batch_tokens "
        f"leaves every batch whole",
    )
