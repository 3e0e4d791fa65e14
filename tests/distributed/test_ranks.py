"""Real torchrun launches: any number of ranks computes the same, to the last bit."""

import gzip
import hashlib
from pathlib import Path

import pytest

from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.reports import NodeTiming, PlanReady, Progress
from evaluator.contract.states import FailureReason
from tests.support.gguf_file import write_gguf
from tests.support.runs import Launched, launched, make_spec, read_spool, run_here
from tests.support.tiny import save_model, save_tokenizer, words

# Uneven documents: none, one token, a few windows, many windows.
UNEVEN = [
    "",
    words(1, 1),
    words(700, 2),
    words(3, 3),
    "",
    words(90, 4),
    words(12, 5),
    words(400, 6),
]
SCORING = {"convention": "lm-eval", "window": 64, "batch_tokens": 256}


def scored_tokens(run: Launched) -> list[int]:
    (node,) = [report for report in run.reports() if isinstance(report, NodeTiming)]
    return [timing.num_scored_tokens for timing in node.ranks]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_ranks_change_no_bit(tiny: Path, tmp_path: Path, num_ranks: int) -> None:
    spec = make_spec(tiny, UNEVEN, scoring=SCORING)
    alone = run_here(spec, tmp_path / "alone")
    with launched(spec, tmp_path, num_ranks=num_ranks) as run:
        assert run.wait() == 0, run.output
    result = run.result()
    assert result.perplexity.nll_sum_nats.hex() == alone.perplexity.nll_sum_nats.hex()
    assert result.perplexity == alone.perplexity
    assert result.plan == alone.plan
    assert result.windows_digest == alone.windows_digest
    lines = gzip.decompress((run.run_dir / WINDOWS_FILE).read_bytes())
    assert result.windows_digest == f"sha256:{hashlib.sha256(lines).hexdigest()}"
    assert result.world_size == num_ranks
    assert result.perplexity.excluded_documents == {"empty": 2}
    assert sorted(e.batch for e in run.entries()) == list(range(result.plan.num_batches))
    assert sum(scored_tokens(run)) == result.plan.num_scored_tokens
    for rank in range(num_ranks):
        reports = read_spool(run.run_dir, rank)
        assert [report.seq for report in reports] == list(range(1, len(reports) + 1))
        stages = [report.stage for report in reports if isinstance(report, Progress)]
        assert list(dict.fromkeys(stages)) == [
            *("load", "tokenise", "warm_up", "score", "audit", "reduce")
        ]
        assert any(isinstance(report, PlanReady) for report in reports) == (rank == 0)


def test_threads_and_batch_budgets_change_no_bit_in_processes_of_their_own(
    tiny: Path, tmp_path: Path
) -> None:
    spec = make_spec(tiny, UNEVEN, scoring=SCORING)
    alone = run_here(spec, tmp_path / "alone")
    other = make_spec(
        tiny,
        UNEVEN,
        scoring=SCORING | {"batch_tokens": 1000},
        launch={"device": "cpu", "threads_per_rank": 2},
    )
    with launched(other, tmp_path, num_ranks=2) as run:
        assert run.wait() == 0, run.output
    result = run.result()
    assert result.plan.num_batches < alone.plan.num_batches
    assert result.perplexity == alone.perplexity
    assert result.windows_digest == alone.windows_digest


def test_ranks_gather_the_nll_of_each_token(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, UNEVEN, scoring=SCORING, outputs={"token_nll": "uint8"})
    run_here(spec, tmp_path / "alone")
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() == 0, run.output
    alone = (tmp_path / "alone" / TOKENS_FILE).read_bytes()
    assert (run.run_dir / TOKENS_FILE).read_bytes() == alone


def test_one_window_on_four_ranks(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, ["ab"], scoring=SCORING)
    with launched(spec, tmp_path, num_ranks=4) as run:
        assert run.wait() == 0, run.output
    result = run.result()
    assert result.plan.num_batches == 1
    assert result.perplexity == run_here(spec, tmp_path / "alone").perplexity
    assert sorted(scored_tokens(run)) == [0, 0, 0, result.plan.num_scored_tokens]


def test_ranks_share_one_conversion_of_a_gguf_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    gguf = write_gguf(folder / "tiny.gguf", save_model(folder), save_tokenizer(folder))
    cache_dir = tmp_path / "cache"
    spec = make_spec(gguf, UNEVEN, scoring=SCORING, cache_dir=str(cache_dir))
    with launched(spec, tmp_path, num_ranks=3) as run:
        assert run.wait() == 0, run.output
    assert run.output.count("converting GGUF") == 1
    assert len([path for path in (cache_dir / "gguf").iterdir() if path.is_dir()]) == 1
    plain = run_here(make_spec(folder, UNEVEN, scoring=SCORING), tmp_path / "plain")
    assert run.result().perplexity == plain.perplexity


def test_a_rank_that_reads_other_data_is_named(tiny: Path, tmp_path: Path) -> None:
    # This file tells each process another text: its own process id.
    data = {"kind": "text", "path": "/proc/self/stat"}
    spec = make_spec(tiny, data=data, scoring=SCORING)
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() != 0
    mismatches = [f for f in run.failures() if f.reason is FailureReason.PLAN_MISMATCH]
    assert mismatches, run.output
    assert mismatches[0].rank == 1
    assert "rank 1 (node 0) and rank 0 differ in data" in mismatches[0].message


def test_a_failure_is_reported_and_raised_out_of_record(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"caf\xe9")
    spec = make_spec(tiny, data={"kind": "text", "path": str(path)})
    with launched(spec, tmp_path, num_ranks=2) as run:
        assert run.wait() == 1
    reasons = {failure.reason for failure in run.failures()}
    assert FailureReason.DATA_ENCODING in reasons, run.output
    # torchrun shows the error file that `record` has written.
    assert "DataEncoding" in run.output
    assert "error_file: <N/A>" not in run.output.split("Root Cause")[1]
