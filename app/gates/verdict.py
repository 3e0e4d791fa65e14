"""Whether a change is a regression, is none, or can't be told yet. Pure.

Decided from the paired difference and its error, never from two bare figures. What the error rates
are of: docs/gates.md.
"""

from typing import Literal, NamedTuple

from evaluator.contract.student_t import student_t

Verdict = Literal["pass", "regression", "inconclusive", "missing_baseline"]


class Estimate(NamedTuple):
    """A change and how sure it is; above 0 the candidate is worse."""

    value: float
    error: float | None
    """Standard error; null with fewer than two clusters."""
    degrees: int
    """Of freedom of the error; 0 where there is none."""


class Decision(NamedTuple):
    """What an estimate comes to."""

    verdict: Verdict
    bounds: tuple[float, float] | None
    """Each one-sided, at the level of the rule."""
    growth: float | None
    """Of the text, as a factor, after which the rule is sure to be settled; null where it is
    settled, or where nothing can be said."""


def decide(estimate: Estimate, margin: float, level: float) -> Decision:
    """Decide whether a change is a regression.

    Pass: the upper bound lies below `margin`. Regression: it does not, and the lower bound lies
    above 0. With e the half-width, 2e <= margin settles every case, and e falls with the root of
    the number of tokens, so (2e / margin)^2 times the text is enough.

    Args:
        estimate: of the change.
        margin: the minimal relevant change in the same unit, above 0.
        level: chance of each error, below 0.5.

    Source: S.-C. Chow, J. Shao, H. Wang, Sample Size Calculations in Clinical Research, 2nd ed.
    2008, section 3.1: the test for non-inferiority and its sample size, with equal error rates.
    """
    if estimate.error is None:
        return Decision("inconclusive", None, None)
    reach = student_t(1 - level, estimate.degrees) * estimate.error
    bounds = estimate.value - reach, estimate.value + reach
    if bounds[1] < margin:
        return Decision("pass", bounds, None)
    if bounds[0] > 0:
        return Decision("regression", bounds, None)
    return Decision("inconclusive", bounds, (2 * reach / margin) ** 2)
