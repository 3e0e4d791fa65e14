"""Whole runs in this process: each convention, what it leaves out, and what changes no bit."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluator.contract.reports import Progress
from tests.support.runs import make_spec, read_spool, run_here, write_finished
from tests.support.tiny import save_tokenizer, words

LM_EVAL = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}


# 200 tokens and 30 tokens, in windows of 16.
@pytest.mark.parametrize(
    ("scoring", "documents", "reasons"),
    [
        ({"convention": "lm-eval"}, 2, {}),
        ({"convention": "lm-eval", "prefix": "none"}, 2, {"first_token": 2}),
        ({"convention": "hf-strided"}, 2, {"first_token": 2}),
        # 13 windows and one token; two windows.
        ({"convention": "hf-strided", "stride": 16}, 2, {"first_token": 13 + 2}),
        ({"convention": "gptq", "tail": "keep"}, 1, {"first_token": 15}),
        ({"convention": "document"}, 1, {}),
    ],
    ids=["lm-eval", "no prefix", "hf-strided", "disjoint", "gptq", "document"],
)
def test_scored_and_unscored_tokens_are_all_tokens(
    tiny: Path, tmp_path: Path, scoring: dict[str, Any], documents: int, reasons: dict[str, int]
) -> None:
    window = 31 if scoring["convention"] == "document" else 16
    spec = make_spec(tiny, ["\u0001" * 200, "\u0001" * 30], scoring=scoring | {"window": window})
    value = run_here(spec, tmp_path).perplexity
    assert value.excluded_tokens == reasons
    assert value.num_scored_tokens + sum(reasons.values()) == value.num_tokens
    assert value.num_documents == documents
    too_long = {"too_long": 1} if scoring["convention"] == "document" else {}
    assert value.excluded_documents == too_long


def test_llama_cpp_drops_one_newline_and_tells_a_text_that_it_would_refuse(
    tiny: Path, tmp_path: Path
) -> None:
    scoring = {"convention": "llama.cpp", "window": 16}
    result = run_here(make_spec(tiny, ["\u0001" * 20 + "\n\n"], scoring=scoring), tmp_path)
    value = result.perplexity
    assert value.num_tokens == value.num_bytes == 21
    assert value.num_scored_tokens == 7
    assert value.excluded_tokens == {"first_half": 9, "tail": 5}
    assert result.warnings[0] == (
        "the text has 21 tokens, BOS counted; llama.cpp itself refuses texts of less than two "
        "windows of 16"
    )


def test_documents_of_a_stream_are_joined_as_the_result_says(tiny: Path, tmp_path: Path) -> None:
    scoring = {"convention": "gptq", "window": 16}
    joined = [words(30, 1) + "\n\n" + words(20, 2)]
    whole = run_here(make_spec(tiny, joined, scoring=scoring), tmp_path / "whole")
    parts = run_here(
        make_spec(tiny, [words(30, 1), words(20, 2)], scoring=scoring), tmp_path / "parts"
    )
    assert parts.scoring.join == "\n\n"
    assert parts.perplexity == whole.perplexity
    assert parts.data_digest == whole.data_digest


def test_bos_that_the_tokenizer_adds_and_the_request_leaves_out_is_told(
    tiny: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny, tmp_path / "model"))
    save_tokenizer(copy, adds_bos=True)
    scoring = LM_EVAL | {"prefix": "none"}
    result = run_here(make_spec(copy, [words(60)], scoring=scoring), tmp_path / "run")
    assert any("begins texts with BOS" in warning for warning in result.warnings)


def test_batch_budgets_and_threads_change_no_bit(tiny: Path, tmp_path: Path) -> None:
    # Windows of one, two and more inputs among them.
    documents = [words(150, 1), words(30, 2), "a", "b", "ab", "cd", "e f", "g h", words(3, 3)]
    results = [
        run_here(
            make_spec(
                tiny,
                documents,
                scoring=LM_EVAL | {"batch_tokens": batch_tokens},
                launch={"device": "cpu", "threads_per_rank": num_threads},
            ),
            tmp_path / f"{batch_tokens}-{num_threads}",
        )
        for batch_tokens in (2, 64, 1000)
        for num_threads in (1, 2)
    ]
    assert len({result.plan.num_batches for result in results}) == 3
    assert len({result.perplexity.nll_sum_nats.hex() for result in results}) == 1
    assert len({result.windows_digest for result in results}) == 1


@pytest.mark.parametrize("kind", ["float16", "uint8"])
def test_token_nll_on_request_also_after_a_resume(tiny: Path, tmp_path: Path, kind: str) -> None:
    documents = [words(40, 1), "", words(9, 2)]
    spec = make_spec(tiny, documents, scoring=LM_EVAL, outputs={"token_nll": kind})
    first = run_here(spec, tmp_path / "first")
    entries = [
        e for r in read_spool(tmp_path / "first") if isinstance(r, Progress) for e in r.entries
    ]
    finished = write_finished(tmp_path / "finished.jsonl", entries[:1])
    resumed = spec.model_copy(update={"attempt": 2, "finished_path": str(finished)})
    again = run_here(resumed, tmp_path / "again")
    # Sums can't be taken apart, so finished batches are scored again.
    assert again.num_batches_resumed == 0
    assert again.perplexity == first.perplexity
    contents = [(tmp_path / name / "tokens.npz").read_bytes() for name in ("first", "again")]
    assert contents[0] == contents[1]
    with np.load(tmp_path / "first" / "tokens.npz", allow_pickle=False) as file:
        nll = file["lowest"] + file["step"] * file["nll"].astype(np.float64)
        num_scored, error = file["num_scored"], float(file["largest_error"])
        assert set(file["document"].tolist()) == {0, 2}
    assert len(nll) == num_scored.sum() == first.perplexity.num_scored_tokens
    assert nll.sum() == pytest.approx(first.perplexity.nll_sum_nats, abs=error * len(nll))


def test_no_token_nll_without_request(tiny: Path, tmp_path: Path) -> None:
    run_here(make_spec(tiny, ["ab"], scoring=LM_EVAL), tmp_path)
    assert not (tmp_path / "tokens.npz").exists()
