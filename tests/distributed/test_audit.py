"""Ranks that compute wrongly are found and named, and the figure is that of a clean run."""

from pathlib import Path

import pytest

from evaluator.contract.env import TOKENS_FILE
from evaluator.contract.reports import Progress, Quarantine
from evaluator.contract.states import FailureReason
from evaluator.scoring.faults import VARIABLE
from tests.support.runs import launched, make_spec, read_spool, run_here, write_finished
from tests.support.tiny import words

DOCUMENTS = [words(40 + 30 * (seed % 4), seed=seed) for seed in range(24)]
SCORING = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}
STATIC = {"device": "cpu", "scheduling": "static"}
"""So that the wrong rank scores its part however busy the machine is."""


@pytest.mark.parametrize(
    ("rank", "kind", "reason"),
    [
        (1, "flip", "weights_changed"),
        (1, "overflow", "weights_changed"),
        (0, "scale", "outvoted"),
        (2, "stale", "outvoted"),
    ],
)
def test_a_wrong_rank_is_named_and_its_work_done_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, kind: str, reason: str
) -> None:
    # A small sample may miss stale numbers: they are wrong only after a window of equal shape.
    audit = {"share": 1.0} if kind == "stale" else {}
    outputs = {"token_nll": "float16"}
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING, outputs=outputs, audit=audit, launch=STATIC)
    clean = run_here(spec, tmp_path / "clean")
    monkeypatch.setenv(VARIABLE, f"{rank}:{kind}")
    with launched(spec, tmp_path, num_ranks=3) as run:
        assert run.wait() == 0, run.output
    result = run.result()
    (suspect,) = result.audit.quarantined
    assert (suspect.author.rank, suspect.author.node_rank) == (rank, 0)
    assert suspect.reason == reason
    assert (suspect.window is None) == (reason == "weights_changed")
    assert [r.suspect for r in run.reports() if isinstance(r, Quarantine)] == [suspect]
    assert result.perplexity == clean.perplexity
    assert result.nll_by_context == clean.nll_by_context
    assert result.windows_digest == clean.windows_digest
    assert (result.audit.largest_difference, result.audit.num_unchecked_batches) == (0.0, 0)
    tokens = [folder / TOKENS_FILE for folder in (tmp_path / "clean", run.run_dir)]
    assert tokens[0].read_bytes() == tokens[1].read_bytes()
    num_reported = len(run.entries())
    assert num_reported == result.plan.num_batches + suspect.num_batches
    assert sum(e.round for e in run.entries()) >= suspect.num_batches


def test_a_clean_run_says_how_much_was_checked(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING)
    alone = run_here(spec, tmp_path / "alone")
    assert alone.audit.num_windows == 0
    assert alone.audit.why_none == "there is one rank: nobody else could score a window again"
    assert alone.sync_error == 0.0
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() == 0, run.output
    audit = run.result().audit
    assert (audit.num_windows, audit.largest_difference, audit.quarantined) == (4, 0.0, ())
    assert run.result().sync_error == 0.0


def test_two_ranks_decide_only_after_a_fresh_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING)
    clean = run_here(spec, tmp_path / "clean")
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "1:scale")
        with launched(spec, tmp_path / "first", num_ranks=2) as run:
            assert run.wait() != 0
    failures = [f for f in run.failures() if f.reason is FailureReason.AUDIT_UNDECIDED]
    assert "rank 0 of attempt 1 (node 0, " in failures[0].message
    assert "rank 1 of attempt 1 (node 0, " in failures[0].message
    by_rank = [
        [e for r in read_spool(run.run_dir, rank) if isinstance(r, Progress) for e in r.entries]
        for rank in range(2)
    ]
    finished = write_finished(tmp_path / "finished.jsonl", *by_rank)
    again = spec.model_copy(update={"attempt": 2, "finished_path": str(finished)})
    with launched(again, tmp_path / "second", num_ranks=2) as run:
        assert run.wait() == 0, run.output
    (suspect,) = run.result().audit.quarantined
    assert (suspect.author.attempt, suspect.author.rank) == (1, 1)
    assert suspect.num_batches == len(by_rank[1])
    assert run.result().perplexity == clean.perplexity
    assert run.result().num_batches_resumed == len(by_rank[0])
