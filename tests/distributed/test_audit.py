"""Ranks that compute wrongly are found and named, and the figure is that of a clean run."""

from pathlib import Path

import pytest

from evaluator.contract.env import TOKENS_FILE
from evaluator.contract.reports import Quarantine
from evaluator.contract.states import FailureReason
from evaluator.faults import VARIABLE
from tests.support.runs import launched, make_spec, run_here, write_finished
from tests.support.tiny import words

DOCUMENTS = [words(40 + 30 * (seed % 4), seed=seed) for seed in range(24)]
SCORING = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}
STATIC = {"device": "cpu", "scheduling": "static"}
"""So that the wrong rank scores its part however busy the machine is. That of rank 0 has batches of
one shape, which a stale result needs."""


@pytest.mark.parametrize(("rank", "kind"), [(1, "flip"), (2, "scale"), (0, "stale")])
def test_a_wrong_rank_is_named_and_its_work_done_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, kind: str
) -> None:
    outputs = {"token_nll": "float16"}
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING, outputs=outputs, launch=STATIC)
    clean = run_here(spec, tmp_path / "clean")
    monkeypatch.setenv(VARIABLE, f"{rank}:{kind}")
    with launched(spec, tmp_path, num_ranks=3) as run:
        assert run.wait() == 0, run.output
    result = run.result()
    (suspect,) = result.audit.quarantined
    assert (suspect.rank, suspect.node_rank) == (rank, 0)
    assert suspect.nll_nats != suspect.nll_nats_by_others
    assert [r.suspect for r in run.reports() if isinstance(r, Quarantine)] == [suspect]
    assert result.perplexity == clean.perplexity
    assert result.nll_by_context == clean.nll_by_context
    assert result.windows_digest == clean.windows_digest
    assert result.audit.largest_difference == 0.0
    tokens = [folder / TOKENS_FILE for folder in (tmp_path / "clean", run.run_dir)]
    assert tokens[0].read_bytes() == tokens[1].read_bytes()
    rounds = {entry.round for entry in run.entries()}
    assert rounds == {0, 1}
    assert sum(e.round for e in run.entries()) == suspect.num_batches


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


def test_with_two_ranks_nobody_is_blamed_but_the_run_fails(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1:scale")
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING, launch=STATIC)
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() != 0
    reasons = {failure.reason for failure in run.failures()}
    assert FailureReason.AUDIT_UNDECIDED in reasons
    message = next(f.message for f in run.failures() if f.reason is FailureReason.AUDIT_UNDECIDED)
    assert "rank 0 (node 0, " in message
    assert "rank 1 (node 0, " in message


def test_what_an_earlier_attempt_scored_is_checked_too(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, DOCUMENTS, scoring=SCORING)
    with launched(spec, tmp_path / "first", num_ranks=1) as run:
        assert run.wait() == 0, run.output
    clean = run.result()
    wrong = [
        entry.model_copy(update={"nll_nats": tuple(nll * 1.001 for nll in entry.nll_nats)})
        for entry in run.entries()[:30]
    ]
    finished = write_finished(tmp_path / "finished.jsonl", wrong)
    again = spec.model_copy(update={"finished_path": str(finished)})
    with launched(again, tmp_path / "second", num_ranks=2) as run:
        assert run.wait() == 0, run.output
    (suspect,) = run.result().audit.quarantined
    assert (suspect.rank, suspect.num_batches) == (None, 30)
    assert run.result().perplexity == clean.perplexity
    assert run.result().num_batches_resumed == 0
