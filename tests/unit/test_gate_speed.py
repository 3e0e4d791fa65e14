"""Speed by the noise of repeated runs: worked by hand, and two thousand simulated comparisons."""

import math
import random

import pytest

from app.errors import NotComparable
from app.gates.rules import SpeedRule
from app.gates.speed import Runs, SpeedNumbers, judge_speed, slowdown
from app.gates.verdict import decide

RULE = SpeedRule(kind="tokens_per_second")
HERE = {"hosts": "node-a", "device": "cpu"}


def runs(*logarithms: float) -> Runs:
    return Runs(HERE, [100 * math.exp(each) for each in logarithms])


def numbers(before: Runs, after: Runs) -> SpeedNumbers:
    found = judge_speed(RULE, before, after).numbers
    assert found is not None
    return found


def test_two_runs_each_worked_by_hand() -> None:
    before, after = runs(0.0, 0.02), runs(-0.10, -0.08)
    # means 0.01 and -0.09; each side's squares 2 * 0.01^2; two degrees of freedom, for which the
    # table of Student's t has 2.920; over 1/2 + 1/2
    reach = 2.920 * math.sqrt(0.0004 / 2)
    shown = numbers(before, after)
    assert shown.baseline == pytest.approx(100 * math.exp(0.01))
    assert shown.change_percent == pytest.approx(100 * (math.exp(-0.1) - 1))
    assert shown.upper_percent == pytest.approx(100 * (math.exp(-0.1 + reach) - 1), abs=1e-3)
    assert shown.lower_percent == pytest.approx(100 * (math.exp(-0.1 - reach) - 1), abs=1e-3)
    found = judge_speed(RULE, before, after)
    assert found.verdict == "regression"
    assert "at best -5.7 % (95 % bound over 2 and 2 runs)" in found.sentence
    assert judge_speed(RULE, after, before).verdict == "pass"
    noisy = judge_speed(RULE, runs(0.0, 0.02), runs(-0.03, 0.0))
    # squares 0.0002 and 0.00045; (2 e / m)^2 with m = -ln(0.95)
    growth = (2 * 2.920 * math.sqrt(0.00065 / 2) / -math.log(0.95)) ** 2
    assert noisy.verdict == "inconclusive"
    assert noisy.numbers is not None
    assert noisy.numbers.num_more_runs == 2 * (math.ceil(2 * growth) - 2)


def test_one_run_each_says_nothing_and_a_repeat_of_one_side_is_enough() -> None:
    found = judge_speed(RULE, runs(0.0), runs(-1.0))
    assert (found.verdict, numbers(runs(0.0), runs(-1.0)).lower_percent) == ("inconclusive", None)
    assert "no noise is known" in found.sentence
    assert judge_speed(RULE, runs(0.0, 0.01, 0.02), runs(-1.0)).verdict == "regression"


def test_other_places_are_refused() -> None:
    there = Runs(HERE | {"hosts": "node-b"}, [1.0])
    with pytest.raises(NotComparable, match="hosts is 'node-a' for the baseline and 'node-b'"):
        judge_speed(RULE, runs(0.0), there)


def test_no_change_and_the_minimal_change_have_the_chance_that_is_stated() -> None:
    rng, margin, num = random.Random(7), 0.05, 2_000
    alarms = missed = 0
    for _ in range(num):
        before, after = ([rng.gauss(0.0, 0.03) for _ in range(size)] for size in (5, 3))
        alarms += decide(slowdown(before, after), margin, 0.05).verdict == "regression"
        slower = [each - margin for each in after]
        missed += decide(slowdown(before, slower), margin, 0.05).verdict == "pass"
    own_error = math.sqrt(0.05 * 0.95 / num)
    assert alarms / num == pytest.approx(0.05, abs=3 * own_error)
    assert missed / num == pytest.approx(0.05, abs=3 * own_error)
