"""What a gate decides: worked by hand, and the rules around it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from app.errors import NotComparable
from app.gates.judge import (
    ChangeOutcome,
    Jobs,
    Judgement,
    LimitOutcome,
    Numbers,
    degrees_of_freedom,
    judge,
)
from app.gates.rules import ChangeRule, LimitRule
from app.gates.verdict import Estimate, decide
from app.jobs.comparison import Side
from app.jobs.windows import WindowTable
from evaluator.contract.student_t import student_t
from tests.support.records import record
from tests.unit.test_comparison import B, result

PERPLEXITY = ChangeRule(kind="perplexity")
BITS = ChangeRule(kind="bits_per_byte")
PAGE = (Path(__file__).parents[2] / "docs" / "gates.md").read_text()
MISSING = "no job was promoted as 'default'"


def documents(*nats: float, **changes: Any) -> Side:
    """Documents of 100 tokens and 400 bytes, with 300 nats and these more."""
    rows = [record(n, 0, 100, 300.0 + more, 400) for n, more in enumerate(nats)]
    return Side(result(**changes), WindowTable(rows))


SAME = documents(0.0, 0.0, 0.0)


def change(found: Judgement) -> ChangeOutcome:
    (outcome,) = found.outcomes
    assert isinstance(outcome, ChangeOutcome)
    return outcome


def numbers(found: Judgement) -> Numbers:
    shown = change(found).numbers
    assert shown is not None
    return shown


def test_the_example_of_the_manual_worked_by_hand() -> None:
    found = judge([PERPLEXITY], Jobs(documents(0.0, 0.3, 0.6), SAME, MISSING))
    shown = numbers(found)
    # sums 0, 0.3, 0.6 have the standard deviation 0.3; over sqrt(3) and 100 tokens; the printed
    # table of Student's t has 2.920 for two degrees of freedom
    reach = 2.920 * 0.3 / math.sqrt(3) / 100
    assert found.verdict == "inconclusive"
    assert shown.change_percent == pytest.approx(100 * (math.exp(0.003) - 1))
    assert shown.lower_percent == pytest.approx(100 * (math.exp(0.003 - reach) - 1), abs=1e-4)
    assert shown.upper_percent == pytest.approx(100 * (math.exp(0.003 + reach) - 1), abs=1e-4)
    assert (shown.num_clusters, shown.clusters, shown.num_tokens) == (3, "documents", 300)
    growth = (2 * reach / math.log(1.005)) ** 2
    assert shown.num_more_tokens == pytest.approx(300 * (growth - 1), rel=1e-3)
    for figure in (
        f"= {reach:.6f}, 2.920",
        f"({shown.lower_percent:.3f} %), upper",
        f"({shown.upper_percent:+.3f} %)",
        f"= {math.log(1.005):.6f}\n",
        f"= {growth:.2f}, so about",
        f"= {shown.num_more_tokens} more tokens",
    ):
        assert figure in PAGE, figure
    worse = judge([PERPLEXITY], Jobs(documents(0.2, 0.4, 0.6), SAME, MISSING))
    assert worse.verdict == "regression"
    assert f"lower would be {numbers(worse).lower_percent:.2f} %" in PAGE


def test_bits_per_byte_change_by_their_share() -> None:
    found = judge([BITS], Jobs(documents(0.0, 0.3, 0.6), SAME, MISSING))
    shown = numbers(found)
    # 0.9 of 900 nats are 0.1 %; residuals -0.3, 0, 0.3
    reach = 100 * 2.920 * math.sqrt(3 / 2 * 0.18) / 900
    assert shown.change_percent == pytest.approx(0.1)
    assert shown.upper_percent == pytest.approx(0.1 + reach, abs=1e-4)
    assert shown.baseline == pytest.approx(900 / math.log(2) / 1200)
    assert found.verdict == "pass"


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    # the table has 1.684 for 40 degrees of freedom; the margin is 1
    [
        (0.0, 0.59, "pass"),
        (0.0, 0.60, "inconclusive"),
        (0.5, 0.29, "pass"),  # surely worse, by surely less than matters
        (1.1, 0.60, "regression"),
        (1.0, 0.60, "inconclusive"),
        (1.0, 0.59, "regression"),
        (0.9, 0.10, "regression"),
        (-3.0, 1.0, "pass"),
        (0.0, 0.0, "pass"),
    ],
)
def test_where_the_verdicts_meet(value: float, error: float, verdict: str) -> None:
    assert decide(Estimate(value, error, 40), margin=1.0, level=0.05).verdict == verdict


def test_so_many_more_tokens_settle_it_whatever_the_change() -> None:
    error = 0.9
    growth = decide(Estimate(0.5, error, 40), 1.0, 0.05).growth
    assert growth is not None
    later = error / math.sqrt(growth)
    for tenth in range(-20, 31):
        verdict = decide(Estimate(tenth / 10, later, 40), 1.0 + 1e-9, 0.05).verdict
        assert verdict in {"pass", "regression"}, tenth


def test_one_cluster_says_nothing_not_even_of_the_same_numbers() -> None:
    found = judge([PERPLEXITY], Jobs(documents(0.0), documents(0.0), MISSING))
    shown = numbers(found)
    assert (found.verdict, shown.lower_percent, shown.num_more_tokens) == (
        ("inconclusive", None, None)
    )
    assert "from 1 block no error can be given" in found.sentence


@pytest.mark.parametrize(
    ("sizes", "degrees"),
    # (sum w^2)^2 / sum w^4 - 1 by hand: 9 / 3 - 1; 18^2 / 258 - 1 = 0.26; (4 * 4 + 5)^2 / 69 - 1
    [((7, 7, 7), 2), ((1, 1, 4), 1), ((2, 2, 2, 2, 1, 1, 1, 1, 1), 5), ((0.1,) * 7, 6)],
)
def test_a_few_large_clusters_count_as_few(sizes: tuple[float, ...], degrees: int) -> None:
    assert degrees_of_freedom([(0.0, size) for size in sizes]) == degrees


def test_the_same_numbers_pass() -> None:
    found = judge([PERPLEXITY, BITS], Jobs(SAME, SAME, MISSING))
    assert [each.verdict for each in found.outcomes] == ["pass", "pass"]


def test_other_tokenizers_need_bits_per_byte() -> None:
    other = documents(0.0, 0.3, 0.6, tokenizer_digest=B)
    assert judge([BITS], Jobs(other, SAME, MISSING)).verdict == "pass"
    with pytest.raises(NotComparable, match="take a rule of kind bits_per_byte"):
        judge([PERPLEXITY], Jobs(other, SAME, MISSING))


def test_a_baseline_of_no_bits_has_no_share() -> None:
    certain = Side(result(), WindowTable([record(n, 0, 100, 0.0, 400) for n in range(3)]))
    with pytest.raises(NotComparable, match="0 bits per byte"):
        judge([BITS], Jobs(SAME, certain, MISSING))


def test_a_change_beyond_float64_is_no_figure() -> None:
    found = judge([PERPLEXITY], Jobs(documents(*(1e6, 1e6 + 1, 1e6 + 2)), SAME, MISSING))
    shown = numbers(found)
    assert found.verdict == "regression"
    assert (shown.candidate, shown.change_percent, shown.lower_percent) == (None, None, None)


def test_a_limit_needs_no_baseline() -> None:
    within = LimitRule(kind="limit", figure="token_perplexity", at_most=1.02)
    above = LimitRule(kind="limit", figure="bits_per_byte", at_most=0.0999)
    found = judge([within, above], Jobs(SAME, None, MISSING))
    assert [each.verdict for each in found.outcomes] == ["pass", "regression"]
    assert found.verdict == "regression"
    assert found.sentence == "The candidate's bits per byte of 0.1 exceeds the limit of 0.0999."


def test_a_text_without_words_has_no_figure_to_limit() -> None:
    rule = LimitRule(kind="limit", figure="word_perplexity", at_most=100.0)
    (found,) = judge([rule], Jobs(SAME, None, MISSING)).outcomes
    assert isinstance(found, LimitOutcome)
    assert (found.verdict, found.value) == ("inconclusive", None)


def test_without_a_baseline_it_is_said_and_the_worst_counts() -> None:
    found = judge([PERPLEXITY], Jobs(SAME, None, MISSING))
    assert (found.verdict, change(found).numbers, found.sentence) == (
        ("missing_baseline", None, MISSING)
    )
    limit = LimitRule(kind="limit", figure="token_perplexity", at_most=1.0)
    assert judge([PERPLEXITY, limit], Jobs(SAME, None, MISSING)).verdict == "regression"


def test_sentences_have_the_numbers() -> None:
    found = judge([PERPLEXITY], Jobs(documents(0.2, 0.4, 0.6), SAME, MISSING))
    assert re.fullmatch(
        r"The candidate's perplexity changes by \+0\.401 %, at least \+0\.0628 % \(95 % bound over "
        r"3 documents\): it is worse, and 0\.5 % or more can't be excluded\.",
        found.sentence,
    ), found.sentence


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),  # printed tables of Student's t
    [
        (0.95, 1, 6.314),
        (0.95, 2, 2.920),
        (0.95, 10, 1.812),
        (0.99, 5, 3.365),
        (0.999, 1, 318.309),
        (0.8, 4, 0.941),
        (0.95, 10**6, 1.645),
    ],
)
def test_other_quantiles_equal_the_tables(
    probability: float, degrees: int, quantile: float
) -> None:
    assert round(student_t(probability, degrees), 3) == quantile
