"""What a rank knows of its own speed when it begins."""

import socket
from pathlib import Path

import pytest

from evaluator.contract.reports import NodeTiming, RankTiming
from tests.support.runs import make_spec, read_spool, run_here
from tests.support.tiny import words

SCORING = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}


def timing_of(run_dir: Path) -> RankTiming:
    (node,) = (report for report in read_spool(run_dir) if isinstance(report, NodeTiming))
    return node.ranks[0]


def test_a_rank_starts_with_what_is_known_of_its_node_and_model(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(
        tiny,
        [words(100, 1)],
        scoring=SCORING,
        launch={"device": "cpu", "scheduling": "predictive"},
    )
    first = run_here(spec, tmp_path / "first")
    timing = timing_of(tmp_path / "first")
    # Of the first batch it knew nothing, so the expected ones took less than all.
    assert 0 < timing.measured_s < timing.compute_s
    assert [speed.num_inputs for speed in timing.speeds] == [32]
    known = {"model_digest": first.model_digest, "speeds": timing.speeds}
    nodes = [{"host": "elsewhere"} | known, {"host": socket.gethostname()} | known]
    spec = spec.model_validate(spec.model_dump() | {"node_speeds": nodes})
    run_here(spec, tmp_path / "second")
    again = timing_of(tmp_path / "second")
    assert again.measured_s == pytest.approx(again.compute_s)
    assert again.expected_s > 0
