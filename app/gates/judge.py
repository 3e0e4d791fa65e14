"""Applies the rules of a gate to two finished jobs. Pure; formulas: docs/gates.md."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.errors import NotComparable
from app.gates.rules import ChangeRule, LimitRule, Rule, SpeedRule
from app.gates.speed import Runs, SpeedOutcome, judge_speed
from app.gates.verdict import Decision, Estimate, Verdict, decide
from app.jobs.comparison import (
    Cluster,
    Difference,
    Pairing,
    Side,
    clustered_standard_error,
    clusters_of,
    differences,
    exp_or_none,
    pair,
)

_WORST_FIRST: tuple[Verdict, ...] = ("regression", "missing_baseline", "inconclusive", "pass")
_LN2 = math.log(2)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a rule about a change was decided from; meanings: `app.api.gate_schemas`."""

    baseline: float | None
    candidate: float | None
    change_percent: float | None
    lower_percent: float | None
    upper_percent: float | None
    clusters: Literal["documents", "blocks"]
    num_clusters: int
    num_tokens: int
    num_more_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class ChangeOutcome:
    """What a rule about a change came to."""

    rule: ChangeRule
    verdict: Verdict
    numbers: Numbers | None
    """Null without a baseline."""
    sentence: str


@dataclass(frozen=True, kw_only=True)
class LimitOutcome:
    """What a limit came to."""

    rule: LimitRule
    verdict: Verdict
    value: float | None
    sentence: str


Outcome = ChangeOutcome | LimitOutcome | SpeedOutcome


@dataclass(frozen=True)
class Judgement:
    """What all rules came to."""

    verdict: Verdict
    outcomes: list[Outcome]
    num_unpaired_documents: int
    differs: list[Difference]

    @property
    def sentence(self) -> str:
        """Say why it is this verdict, by the first rule that has it."""
        return next(each.sentence for each in self.outcomes if each.verdict == self.verdict)


@dataclass(frozen=True)
class _Evidence:
    """Two jobs side by side."""

    pairing: Pairing
    unit: Literal["documents", "blocks"]
    clusters: list[Cluster]
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True)
class Jobs:
    """What is judged."""

    candidate: Side
    baseline: Side | None
    """Null where there is none, or no rule needs one."""
    missing: str
    """One sentence on why there is none."""
    runs: tuple[Runs, Runs] | None = None
    """Of baseline and candidate, where a rule asks for speed."""


def judge(rules: Sequence[Rule], jobs: Jobs) -> Judgement:
    """Apply the rules, at least one; the worst verdict is that of the whole.

    Raises:
        NotComparable: the jobs scored other texts, or a rule needs the same tokenizer or place.
    """
    evidence = None
    if jobs.baseline is not None and any(isinstance(rule, ChangeRule) for rule in rules):
        evidence = _lay_side_by_side(jobs.baseline, jobs.candidate)
    outcomes = [_apply(rule, jobs, evidence) for rule in rules]
    found = {each.verdict for each in outcomes}
    return Judgement(
        next(verdict for verdict in _WORST_FIRST if verdict in found),
        outcomes,
        0 if evidence is None else evidence.pairing.num_unpaired_documents,
        [] if jobs.baseline is None else differences(jobs.baseline.result, jobs.candidate.result),
    )


def _apply(rule: Rule, jobs: Jobs, evidence: _Evidence | None) -> Outcome:
    if isinstance(rule, LimitRule):
        return _check_limit(rule, jobs.candidate)
    none: Verdict = "missing_baseline"
    if isinstance(rule, SpeedRule):
        if jobs.runs is None:
            return SpeedOutcome(rule=rule, verdict=none, numbers=None, sentence=jobs.missing)
        return judge_speed(rule, *jobs.runs)
    if evidence is None:
        return ChangeOutcome(rule=rule, verdict=none, numbers=None, sentence=jobs.missing)
    return _judge_change(rule, evidence)


def _lay_side_by_side(baseline: Side, candidate: Side) -> _Evidence:
    pairing = pair(baseline, candidate)
    shared = set(pairing.document)
    windows = [window for window in candidate.windows if window.document in shared]
    num_tokens = sum(window.num_scored for window in windows)
    num_bytes = sum(window.num_bytes for window in windows)
    return _Evidence(pairing, *clusters_of(pairing), num_tokens, num_bytes)


def _check_limit(rule: LimitRule, candidate: Side) -> LimitOutcome:
    """Compare a figure with its limit: both are of this text, so no chance is involved."""
    value: float | None = getattr(candidate.result.perplexity, rule.figure)
    name = rule.figure.replace("_", " ")
    if value is None:
        # Both are null where they exceed float64; words may also be missing.
        is_known = rule.figure != "word_perplexity" or candidate.result.perplexity.num_words > 0
        verdict: Verdict = "regression" if is_known else "inconclusive"
        why = "exceeds every limit" if is_known else "is not known: the text has no word"
        return LimitOutcome(
            rule=rule, verdict=verdict, value=None, sentence=f"The candidate's {name} {why}."
        )
    is_within = value <= rule.at_most
    word = "is within" if is_within else "exceeds"
    return LimitOutcome(
        rule=rule,
        verdict="pass" if is_within else "regression",
        value=value,
        sentence=f"The candidate's {name} of {value:.6g} {word} the limit of {rule.at_most:g}.",
    )


def _judge_change(rule: ChangeRule, evidence: _Evidence) -> ChangeOutcome:
    by_tokens = rule.kind == "perplexity"
    if by_tokens and evidence.pairing.measure != "nats_per_token":
        msg = (
            "the tokenizers differ, so perplexities of tokens can't be compared: take a rule of "
            "kind bits_per_byte"
        )
        raise NotComparable(msg)
    margin = rule.max_regression_percent / 100
    margin = math.log1p(margin) if by_tokens else margin
    estimate = _log_ratio(evidence.clusters) if by_tokens else _relative_change(evidence.clusters)
    decision = decide(estimate, margin, rule.level)
    numbers = _numbers(evidence, estimate, decision, by_tokens=by_tokens)
    return ChangeOutcome(
        rule=rule,
        verdict=decision.verdict,
        numbers=numbers,
        sentence=_sentence(rule, decision.verdict, numbers),
    )


def _log_ratio(clusters: Sequence[Cluster]) -> Estimate:
    """Return the logarithm of the ratio of the perplexities: nats per token."""
    return _ratio([(each.difference_nats, each.size) for each in clusters])


def _relative_change(clusters: Sequence[Cluster]) -> Estimate:
    """Return the change of bits per byte as a share of the baseline's; the bytes cancel.

    Raises:
        NotComparable: the baseline's are 0.
    """
    parts = [(each.difference_nats, each.baseline_nats) for each in clusters]
    if not math.fsum(nats for _, nats in parts) > 0:
        msg = "the baseline has 0 bits per byte, of which no change is a share"
        raise NotComparable(msg)
    return _ratio(parts)


def _ratio(parts: Sequence[tuple[float, float]]) -> Estimate:
    value = math.fsum(part for part, _ in parts) / math.fsum(whole for _, whole in parts)
    error = clustered_standard_error(parts)
    return Estimate(value, error, 0 if error is None else degrees_of_freedom(parts))


def degrees_of_freedom(parts: Sequence[tuple[float, float]]) -> int:
    """Return those of the error of a ratio of sums, at least 1 and below the number of clusters.

    A variance that is a sum of squares whose expectations are as w^2 has (sum w^2)^2 / sum w^4
    degrees, and 1 less for the mean; w is the size of a cluster. With equal sizes that is the
    number of clusters less 1; a few large ones among many small ones count as few.

    Source: F. E. Satterthwaite, An approximate distribution of estimates of variance components,
    Biometrics Bulletin 2 (1946) 110-114.
    """
    largest = max(whole for _, whole in parts)
    squares = [(whole / largest) ** 2 for _, whole in parts]
    effective = math.fsum(squares) ** 2 / math.fsum(square**2 for square in squares)
    return max(1, math.floor(effective - 1 + 1e-9))


def _numbers(
    evidence: _Evidence, estimate: Estimate, decision: Decision, *, by_tokens: bool
) -> Numbers:
    more = None
    if decision.growth is not None:
        more = max(1, math.ceil((decision.growth - 1) * evidence.num_tokens))
    low, high = decision.bounds or (None, None)
    return Numbers(
        baseline=_figure(evidence, evidence.pairing.baseline_nats, by_tokens=by_tokens),
        candidate=_figure(evidence, evidence.pairing.candidate_nats, by_tokens=by_tokens),
        change_percent=_percent(estimate.value, by_tokens=by_tokens),
        lower_percent=_percent(low, by_tokens=by_tokens),
        upper_percent=_percent(high, by_tokens=by_tokens),
        clusters=evidence.unit,
        num_clusters=len(evidence.clusters),
        num_tokens=evidence.num_tokens,
        num_more_tokens=more,
    )


def _figure(evidence: _Evidence, nats: Iterable[float], *, by_tokens: bool) -> float | None:
    """Return the token perplexity, or the bits per byte, of the text that both have scored."""
    total = math.fsum(nats)
    if by_tokens:
        return exp_or_none(total / evidence.num_tokens)
    return total / _LN2 / evidence.num_bytes if evidence.num_bytes else None


def _percent(change: float | None, *, by_tokens: bool) -> float | None:
    """Return a change in percent; null where there is none, or it exceeds float64."""
    if change is None:
        return None
    try:
        percent = 100 * (math.expm1(change) if by_tokens else change)
    except OverflowError:
        return None
    return percent if math.isfinite(percent) else None


def _sentence(rule: ChangeRule, verdict: Verdict, numbers: Numbers) -> str:
    name = "perplexity" if rule.kind == "perplexity" else "bits per byte"
    head = f"The candidate's {name} changes by {_signed(numbers.change_percent)}"
    units = numbers.clusters.removesuffix("s") if numbers.num_clusters == 1 else numbers.clusters
    of = f"{numbers.num_clusters} {units}"
    limit = f"{rule.max_regression_percent:g} %"
    if numbers.lower_percent is None and numbers.upper_percent is None:
        return f"{head}; from {of} no error can be given, so nothing follows: score more documents."
    sure = f"{100 * (1 - rule.level):g} % bound over {of}"
    if verdict == "pass":
        return f"{head}, at most {_signed(numbers.upper_percent)} ({sure}): less than {limit}."
    if verdict == "regression":
        return (
            f"{head}, at least {_signed(numbers.lower_percent)} ({sure}): it is worse, and "
            f"{limit} or more can't be excluded."
        )
    return (
        f"{head}, {_signed(numbers.lower_percent)} to {_signed(numbers.upper_percent)} ({sure} on "
        f"each side): neither no change nor {limit} can be excluded; about "
        f"{numbers.num_more_tokens:,} more tokens of the kind would settle it."
    )


def _signed(percent: float | None) -> str:
    return "more than can be said" if percent is None else f"{percent:+.3g} %"
