"""Applies a rule about speed to repeated runs of two jobs. Pure; formulas: docs/gates.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from app.errors import NotComparable
from app.gates.rules import SpeedRule
from app.gates.verdict import Estimate, Verdict, decide


@dataclass(frozen=True)
class Runs:
    """A job and its repeats: the same request, labels included, in the same place."""

    place: dict[str, str]
    """Hosts, device, text, windows, and what else a speed depends on beside the model."""
    tokens_per_second: list[float]
    """One each."""


@dataclass(frozen=True, kw_only=True)
class SpeedNumbers:
    """What a rule about speed was decided from; meanings: `app.api.gate_schemas`."""

    baseline: float
    candidate: float
    change_percent: float
    lower_percent: float | None
    upper_percent: float | None
    num_baseline_runs: int
    num_candidate_runs: int
    num_more_runs: int | None


@dataclass(frozen=True, kw_only=True)
class SpeedOutcome:
    """What a rule about speed came to."""

    rule: SpeedRule
    verdict: Verdict
    numbers: SpeedNumbers | None
    """Null without a baseline."""
    sentence: str


def judge_speed(rule: SpeedRule, baseline: Runs, candidate: Runs) -> SpeedOutcome:
    """Apply the rule; a run is what is independent of the others.

    Raises:
        NotComparable: the jobs ran in different places.
    """
    for name, value in baseline.place.items():
        if candidate.place[name] != value:
            msg = (
                f"speeds of different places can't be compared: {name} is {value!r} for the "
                f"baseline and {candidate.place[name]!r} for the candidate"
            )
            raise NotComparable(msg)
    before, after = ([math.log(each) for each in side.tokens_per_second] for side in
                     (baseline, candidate))  # fmt: skip
    estimate = slowdown(before, after)
    decision = decide(estimate, -math.log1p(-rule.max_regression_percent / 100), rule.level)
    low, high = decision.bounds or (None, None)
    more = None
    if decision.growth is not None:
        more = sum(math.ceil(decision.growth * len(side)) - len(side) for side in (before, after))
    numbers = SpeedNumbers(
        baseline=math.exp(fmean(before)),
        candidate=math.exp(fmean(after)),
        change_percent=100 * math.expm1(-estimate.value),
        lower_percent=None if high is None else 100 * math.expm1(-high),
        upper_percent=None if low is None else 100 * math.expm1(-low),
        num_baseline_runs=len(before),
        num_candidate_runs=len(after),
        num_more_runs=more,
    )
    return SpeedOutcome(
        rule=rule,
        verdict=decision.verdict,
        numbers=numbers,
        sentence=_sentence(rule, decision.verdict, numbers),
    )


def slowdown(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return by how much the mean of logarithms fell, with the error of two samples of one spread.

    Source: Student, The probable error of a mean, Biometrika 6 (1908) 1-25; for two samples G. W.
    Snedecor and W. G. Cochran, Statistical Methods, 8th ed. 1989, section 6.9.
    """
    means = fmean(before), fmean(after)
    degrees = len(before) + len(after) - 2
    value = means[0] - means[1]
    if degrees < 1:
        return Estimate(value, None, 0)
    squares = math.fsum(
        (each - mean) ** 2
        for side, mean in zip((before, after), means, strict=True)
        for each in side
    )
    error = math.sqrt(squares / degrees * (1 / len(before) + 1 / len(after)))
    return Estimate(value, error, degrees)


def _sentence(rule: SpeedRule, verdict: Verdict, numbers: SpeedNumbers) -> str:
    head = f"The candidate's speed changes by {numbers.change_percent:+.3g} %"
    runs = f"{numbers.num_baseline_runs} and {numbers.num_candidate_runs} runs"
    if numbers.lower_percent is None or numbers.upper_percent is None:
        return f"{head}; from one run each no noise is known: repeat the jobs, with their labels."
    sure = f"{100 * (1 - rule.level):g} % bound over {runs}"
    limit = f"a loss of {rule.max_regression_percent:g} %"
    if verdict == "pass":
        return f"{head}, at worst {numbers.lower_percent:+.3g} % ({sure}): {limit} is excluded."
    if verdict == "regression":
        return (
            f"{head}, at best {numbers.upper_percent:+.3g} % ({sure}): it is slower, and {limit} "
            "or more can't be excluded."
        )
    return (
        f"{head}, {numbers.lower_percent:+.3g} % to {numbers.upper_percent:+.3g} % ({sure} on each "
        f"side): neither no change nor {limit} can be excluded; about {numbers.num_more_runs} more "
        "runs would settle it."
    )
