"""Scheduling of whole runs: who scores changes, no number does."""

from pathlib import Path

import pytest

from evaluator.contract.reports import NodeTiming
from tests.support.runs import launched, make_spec, run_here
from tests.support.tiny import words

SCORING = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}


@pytest.mark.parametrize("scheduling", ["static", "predictive"])
def test_scheduling_changes_no_bit(tiny: Path, tmp_path: Path, scheduling: str) -> None:
    documents = [words(300, 1), words(40, 2), "a"]
    usual = run_here(make_spec(tiny, documents, scoring=SCORING), tmp_path / "usual")
    spec = make_spec(
        tiny, documents, scoring=SCORING, launch={"device": "cpu", "scheduling": scheduling}
    )
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() == 0, run.output
    assert run.result().perplexity == usual.perplexity
    assert run.result().windows_digest == usual.windows_digest
    (node,) = (report for report in run.reports() if isinstance(report, NodeTiming))
    if scheduling == "static":
        # Cut by cost, whoever is faster.
        assert [timing.num_leases for timing in node.ranks] == [1, 1]
        tokens = [timing.num_input_tokens for timing in node.ranks]
        assert abs(tokens[0] - tokens[1]) <= 2 * 64
