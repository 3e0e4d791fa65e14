import math
import re
from pathlib import Path

import pytest

from app.jobs.outcome import RETRYABLE
from app.settings import Settings
from evaluator.contract.reports import Perplexity
from evaluator.contract.states import FailureReason, JobState

DOCS = Path(__file__).parents[2] / "docs"


def first_cells(page: str) -> dict[str, str]:
    """Table rows of a page by the code word in their first cell."""
    rows = re.findall(r"^\| (`[^|]+`) \|(.*)$", (DOCS / page).read_text(), re.MULTILINE)
    return {word: rest for cell, rest in rows for word in re.findall(r"`([\w.]+)`", cell)}


@pytest.mark.parametrize("word", sorted({*JobState, *FailureReason}))
def test_every_state_and_reason_is_explained(word: str) -> None:
    assert word in first_cells("failures.md")


def test_the_page_says_which_reasons_are_tried_again() -> None:
    rows = first_cells("failures.md")
    again = {reason for reason in FailureReason if rows[reason].startswith(" again |")}
    assert again == RETRYABLE


def test_every_setting_is_listed_and_no_other() -> None:
    assert set(first_cells("settings.md")) == {
        f"ASSAY_{name.upper()}" for name in Settings.model_fields
    }


def test_every_figure_of_a_result_is_defined() -> None:
    defined = set(first_cells("metrics.md"))
    not_figures = {"standard_error_clusters", "num_clusters", "windows_per_block"}
    assert set(Perplexity.model_fields) - not_figures <= defined


def test_the_worked_examples_are_right() -> None:
    text = (DOCS / "metrics.md").read_text()
    ln2 = math.log(2)
    error = 2 * ln2 / 3
    for figure in (
        f"{6 * ln2:.6f}",
        f"{2 * ln2:.6f}",
        f"{error:.6f}",
        f"4 +- {4 * error:.2f}",
        f"{4 * math.exp(-12.7062 * error):.4f} to {4 * math.exp(12.7062 * error):.0f}",
    ):
        assert figure in text, figure


def test_every_test_that_stands_for_a_reported_fault_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (DOCS / "reported-faults.md").read_text())
    tests = DOCS.parent / "tests"
    gone = {
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in (tests / file).read_text()
    }
    assert named
    assert gone == set()


def test_links_between_pages_lead_somewhere() -> None:
    root = DOCS.parent
    pages = [*root.glob("*.md"), *DOCS.glob("*.md"), *root.glob("migrations/*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
