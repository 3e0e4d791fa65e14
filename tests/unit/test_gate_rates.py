"""Two thousand simulated comparisons: the error rates and the power that docs/gates.md states."""

import math
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from app.gates.judge import Jobs, judge
from app.gates.rules import ChangeRule
from app.gates.verdict import Verdict
from app.jobs.comparison import Side
from app.jobs.windows import Window, WindowTable
from tests.unit.test_comparison import result

Values = npt.NDArray[np.float64]

NUM_COMPARISONS, NUM_DOCUMENTS, WINDOWS_EACH = 2_000, 40, 3
RULE = ChangeRule(kind="perplexity", max_regression_percent=0.5, level=0.05)
MARGIN_NATS = math.log(1.005)


@dataclass(frozen=True)
class World:
    """Documents of very different length, whose windows move together."""

    sizes: npt.NDArray[np.int64]
    """Scored tokens, a row a document, a column a window."""
    baseline_nats: Values
    noise_nats: Values
    """Of the difference; one such table for each comparison. The truth is added to it."""


def make_world(error: float, seed: int, num_documents: int) -> World:
    """Differences whose mean has this standard error, half of it from the document as a whole."""
    rng = np.random.default_rng(seed)
    shape = num_documents, WINDOWS_EACH
    sizes = rng.integers(20, 200, shape) * rng.integers(1, 5, (num_documents, 1))
    baseline = sizes * rng.gamma(9.0, 1 / 3, shape)
    whole = rng.normal(size=(NUM_COMPARISONS, num_documents, 1)) * sizes
    alone = rng.normal(size=(NUM_COMPARISONS, *shape)) * sizes
    # Variances of the two sums by the weights; the same share of each.
    parts = np.sqrt((sizes.sum(axis=1) ** 2).sum()), np.sqrt((sizes**2).sum())
    scale = error * sizes.sum() / math.sqrt(2)
    return World(sizes, baseline, scale * (whole / parts[0] + alone / parts[1]))


def table(sizes: npt.NDArray[np.int64], nats: Values) -> WindowTable:
    places = product(range(len(sizes)), range(WINDOWS_EACH))
    rows = zip(places, sizes.ravel().tolist(), nats.ravel().tolist(), strict=True)
    return WindowTable(Window(*place, size, nat, size) for place, size, nat in rows)


def shares(
    error: float, truth_nats: float, seed: int, num_documents: int = NUM_DOCUMENTS
) -> dict[Verdict, float]:
    """How often each verdict is given where the perplexity changes by exp(truth)."""
    world, scored = make_world(error, seed, num_documents), result()
    baseline = Side(scored, table(world.sizes, world.baseline_nats))
    counts: dict[Verdict, float] = {"pass": 0, "regression": 0, "inconclusive": 0}
    for noise in world.noise_nats:
        nats = world.baseline_nats + truth_nats * world.sizes + noise
        found = judge([RULE], Jobs(Side(scored, table(world.sizes, nats)), baseline, ""))
        counts[found.verdict] += 1 / NUM_COMPARISONS
    return counts


def chance(expected: float) -> object:
    """A share of the comparisons, within three of its own standard errors."""
    own_error = math.sqrt(expected * (1 - expected) / NUM_COMPARISONS)
    return pytest.approx(expected, abs=3 * own_error)


def test_no_change_fails_as_often_as_the_level_says() -> None:
    found = shares(MARGIN_NATS / 2.5, 0.0, seed=1)
    assert found["regression"] == chance(RULE.level)
    assert found["pass"] == chance(stated_power(2.5))


def test_the_minimal_relevant_change_is_found_as_often_as_stated() -> None:
    found = shares(MARGIN_NATS / 2.5, MARGIN_NATS, seed=2)
    assert found["regression"] == chance(stated_power(2.5))
    assert found["pass"] == chance(RULE.level)


@pytest.mark.parametrize("num_documents", [3, 5, 10, 20])
def test_few_documents_of_different_length_make_no_more_false_alarms(num_documents: int) -> None:
    found = shares(MARGIN_NATS, 0.0, seed=3, num_documents=num_documents)
    own_error = math.sqrt(RULE.level * (1 - RULE.level) / NUM_COMPARISONS)
    assert found["regression"] <= RULE.level + 3 * own_error


def stated_power(ratio: float) -> float:
    """The row of the manual's table of power; it is checked against the normal distribution."""
    page = (Path(__file__).parents[2] / "docs" / "gates.md").read_text()
    (percent,) = re.findall(rf"^\| {ratio} \| (\d+) % \|", page, re.MULTILINE)
    assert int(percent) == round(100 * NormalDist().cdf(ratio - NormalDist().inv_cdf(0.95)))
    return int(percent) / 100


@pytest.mark.parametrize("ratio", [1.6, 2.0, 3.0, 3.3])
def test_every_row_of_the_table_of_power(ratio: float) -> None:
    assert stated_power(ratio) > 0
