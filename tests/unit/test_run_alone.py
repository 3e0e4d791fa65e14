"""Whole runs in this process: what comes out, and each way in which they end without a result."""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import Failure, Hello, NodeTiming, PlanReady, Progress, Result
from evaluator.contract.states import FailureReason
from evaluator.errors import EvaluatorError
from tests.support.report_server import ReportServer
from tests.support.runs import (
    make_spec,
    read_spool,
    run_here,
    write_finished,
    write_jsonl,
)
from tests.support.tiny import POSITIONS, VOCABULARY_SIZE, save_model, save_tokenizer, words

LM_EVAL = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def edit_weights(folder: Path, name: str, index: int | slice, value: float) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights[name][index] = value
    save_file(weights, path, metadata={"format": "pt"})


def test_the_reports_of_a_run(tiny: Path, tmp_path: Path) -> None:
    result = run_here(make_spec(tiny, [words(60)], scoring=LM_EVAL), tmp_path)
    reports = read_spool(tmp_path)
    kinds = [type(report) for report in reports if not isinstance(report, Progress)]
    assert kinds == [Hello, PlanReady, NodeTiming, Result]
    assert reports[-1] == result
    assert result.scoring.window == 32
    assert result.scoring.prefix == "bos"
    assert result.versions["torch"] == torch.__version__
    (node,) = (report for report in reports if isinstance(report, NodeTiming))
    (timing,) = node.ranks
    assert timing.num_scored_tokens == result.perplexity.num_scored_tokens
    assert timing.num_input_tokens == result.plan.num_input_tokens
    assert timing.num_batches == result.plan.num_batches
    assert timing.peak_memory_bytes > 50_000_000
    parts = (
        timing.load_s
        + timing.tokenise_s
        + timing.warm_up_s
        + timing.compute_s
        + timing.wait_s
        + timing.communicate_s
    )
    assert 0 < parts <= timing.wall_s <= result.wall_s


def test_an_all_zero_head_gives_the_vocabulary_size(copy: Path, tmp_path: Path) -> None:
    edit_weights(copy, "lm_head.weight", slice(None), 0.0)
    value = run_here(make_spec(copy, [words(60)], scoring=LM_EVAL), tmp_path).perplexity
    assert value.token_perplexity == pytest.approx(VOCABULARY_SIZE, rel=1e-12)
    bits = value.num_scored_tokens * math.log2(VOCABULARY_SIZE)
    assert value.bits_per_byte == pytest.approx(bits / value.num_bytes, rel=1e-12)


def test_documents_left_out_are_counted(tiny: Path, tmp_path: Path) -> None:
    scoring = LM_EVAL | {"prefix": "none"}
    documents = ["", words(30), "a", " ", "\n", ""]
    value = run_here(make_spec(tiny, documents, scoring=scoring), tmp_path).perplexity
    assert value.excluded_documents == {"empty": 2, "too_short": 3}
    assert value.num_documents == 1
    assert value.num_bytes == len(words(30))
    assert value.num_scored_tokens == value.num_tokens - 1


def test_a_window_that_nobody_asked_for_is_what_the_model_has(tiny: Path, tmp_path: Path) -> None:
    result = run_here(make_spec(tiny, [words(200)]), tmp_path)
    assert result.scoring.window == POSITIONS


def test_another_text_is_told_by_its_digests(tiny: Path, tmp_path: Path) -> None:
    first = run_here(make_spec(tiny, [words(100, 1)], scoring=LM_EVAL), tmp_path / "a")
    second = run_here(make_spec(tiny, [words(100, 2)], scoring=LM_EVAL), tmp_path / "b")
    assert first.data_digest != second.data_digest
    assert first.plan.digest != second.plan.digest
    assert first.perplexity != second.perplexity
    assert first.model_digest == second.model_digest
    assert first.tokenizer_digest == second.tokenizer_digest


def test_a_tokenizer_without_special_tokens_scores_all_but_the_first(
    copy: Path, tmp_path: Path
) -> None:
    save_tokenizer(copy, bos=None, eos=None)
    result = run_here(make_spec(copy, [words(60)], scoring=LM_EVAL), tmp_path)
    assert (result.scoring.prefix, result.scoring.prefix_token_id) == ("none", None)
    assert "but the first one" in result.scoring.definition
    assert result.perplexity.num_scored_tokens == result.perplexity.num_tokens - 1


def test_a_model_worse_than_guessing_is_told(copy: Path, tmp_path: Path) -> None:
    # Word 5 is what it always bets on, and it is never right.
    edit_weights(copy, "lm_head.weight", 5, 0.0)
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"] *= 40
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    result = run_here(make_spec(copy, [words(60)], scoring=LM_EVAL), tmp_path)
    assert result.perplexity.token_perplexity is not None
    assert result.perplexity.token_perplexity > VOCABULARY_SIZE
    assert any("does worse than guessing" in warning for warning in result.warnings)


def test_an_overflow_keeps_the_mean(copy: Path, tmp_path: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"] *= 10_000
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    result = run_here(make_spec(copy, [words(60)], scoring=LM_EVAL), tmp_path)
    assert result.perplexity.token_perplexity is None
    assert result.perplexity.mean_nll_nats > 710
    assert any("exceeds float64" in warning for warning in result.warnings)


def failure_of(spec: LaunchSpec, run_dir: Path) -> Failure:
    with pytest.raises(EvaluatorError) as caught:
        run_here(spec, run_dir)
    last = read_spool(run_dir)[-1]
    assert isinstance(last, Failure)
    assert last.message == caught.value.message
    assert last.traceback_tail.rstrip().endswith(last.message)
    return last


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"documents": ["", ""]}, FailureReason.DATA_EMPTY, r"\(2 empty\)"),
        (
            {"documents": ["a", ""], "scoring": LM_EVAL | {"prefix": "none"}},
            FailureReason.DATA_EMPTY,
            r"\(1 empty, 1 too_short\): the longest has 1 token, .* scoring.prefix bos or eos",
        ),
        (
            {"documents": ["a b c"], "scoring": {"convention": "gptq", "window": POSITIONS}},
            FailureReason.DATA_EMPTY,
            rf"\(1 too_short\): the longest has \d+ tokens, .* full windows of {POSITIONS}",
        ),
        (
            {
                "documents": ["a " * 2 * POSITIONS],
                "scoring": {"convention": "document", "window": POSITIONS},
            },
            FailureReason.DATA_EMPTY,
            rf"\(1 too_long\): document takes whole documents in windows of {POSITIONS}",
        ),
        (
            {"documents": ["a"], "scoring": LM_EVAL | {"window": POSITIONS + 1}},
            FailureReason.WINDOW_TOO_LONG,
            rf"window is {POSITIONS + 1}, but the model has {POSITIONS} positions; ask for",
        ),
        (
            {"documents": ["a"], "scoring": {"convention": "hf-strided", "stride": POSITIONS + 1}},
            FailureReason.SPEC_INVALID,
            rf"stride is {POSITIONS + 1}, above the window of {POSITIONS}",
        ),
        (
            {"data": {"kind": "text", "path": "/nonexistent/a.txt"}},
            FailureReason.DATA_NOT_FOUND,
            "there is no file",
        ),
        (
            {"documents": ["a"], "model": {"kind": "folder", "path": "/nonexistent"}},
            FailureReason.MODEL_NOT_FOUND,
            "there is no model folder",
        ),
        (
            {"documents": ["a"], "finished_path": "/nonexistent/finished.jsonl"},
            FailureReason.PLAN_MISMATCH,
            "can't be read",
        ),
    ],
    ids=[
        "empty",
        "too short",
        "no full window",
        "too long",
        "window",
        "stride",
        "no data",
        "no model",
        "no ledger",
    ],
)
def test_each_failure_is_told(
    tiny: Path, tmp_path: Path, fields: dict[str, Any], reason: FailureReason, message: str
) -> None:
    documents = fields.pop("documents", ["a"])
    spec = make_spec(tiny, documents).model_dump() | fields
    failure = failure_of(LaunchSpec.model_validate(spec), tmp_path / "run")
    assert failure.reason is reason
    assert re.search(message, failure.message)


def test_a_missing_field_names_the_line(tiny: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"txt": "b"}])
    spec = make_spec(tiny, data={"kind": "jsonl", "path": str(path)})
    failure = failure_of(spec, tmp_path / "run")
    assert failure.reason is FailureReason.FIELD_MISSING
    assert "line 2 of" in failure.message


def test_half_a_surrogate_pair_names_the_line(tiny: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "ab\ud800"}])
    spec = make_spec(tiny, data={"kind": "jsonl", "path": str(path)})
    failure = failure_of(spec, tmp_path / "run")
    assert failure.reason is FailureReason.DATA_ENCODING
    assert f"line 2 of {path}: character 2" in failure.message


def test_a_tokenizer_of_another_model_is_told(tiny: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model", vocab_size=100)
    save_tokenizer(tmp_path / "model")
    failure = failure_of(make_spec(tmp_path / "model", [words(20)]), tmp_path / "run")
    assert failure.reason is FailureReason.TOKENIZER_MISMATCH
    assert "the embedding has 100 rows" in failure.message


def test_a_broken_weight_is_told_and_what_was_finished_goes_home(
    copy: Path, tmp_path: Path
) -> None:
    # The last and shortest document alone holds the broken word.
    tokenizer = save_tokenizer(copy)
    (word,) = tokenizer("~", add_special_tokens=False)["input_ids"]
    edit_weights(copy, "model.embed_tokens.weight", word, math.inf)
    spec = make_spec(copy, [words(100), "a~b"], scoring=LM_EVAL)
    failure = failure_of(spec, tmp_path / "run")
    assert failure.reason is FailureReason.LOSS_NOT_FINITE
    assert "document 1 (data.documents[1])" in failure.message
    reports = read_spool(tmp_path / "run")
    (plan,) = (report for report in reports if isinstance(report, PlanReady))
    entries = [e for report in reports if isinstance(report, Progress) for e in report.entries]
    assert len(entries) == plan.plan.num_batches - 1


def test_finished_work_of_another_plan_or_model_is_refused(
    tiny: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_here(make_spec(tiny, [words(60)], scoring=LM_EVAL), tmp_path / "first")
    entries = [
        e for r in read_spool(tmp_path / "first") if isinstance(r, Progress) for e in r.entries
    ]
    finished: dict[str, Any] = {
        "finished_path": str(write_finished(tmp_path / "finished.jsonl", entries[:1])),
        "attempt": 2,
        "finished_plan": first.plan.digest,
        "finished_model": first.model_digest,
        "scoring": LM_EVAL,
    }
    same = run_here(make_spec(tiny, [words(60)], **finished), tmp_path / "same")
    assert same.perplexity == first.perplexity
    assert same.num_batches_resumed == 1

    failure = failure_of(make_spec(tiny, [words(61)], **finished), tmp_path / "text")
    assert failure.reason is FailureReason.PLAN_MISMATCH
    assert f"belong to the plan {first.plan.digest}" in failure.message

    edit_weights(copy, "lm_head.weight", 7, 0.5)
    failure = failure_of(make_spec(copy, [words(60)], **finished), tmp_path / "weights")
    assert failure.reason is FailureReason.PLAN_MISMATCH
    assert f"belong to the model {first.model_digest}" in failure.message

    monkeypatch.setattr("evaluator.prepare.NUMERICS", "slices of 7 positions")
    failure = failure_of(make_spec(tiny, [words(60)], **finished), tmp_path / "numerics")
    assert f"belong to the plan {first.plan.digest}" in failure.message


def test_a_run_that_is_no_longer_wanted_stops(tiny: Path, tmp_path: Path) -> None:
    server = ReportServer()
    server.answer = lambda _batch: 410
    # More work than anybody would wait for.
    scoring = {"convention": "hf-strided", "window": 128, "stride": 1, "batch_tokens": 128}
    spec = make_spec(tiny, [words(20_000)], scoring=scoring, report_url=server.url)
    try:
        failure = failure_of(spec, tmp_path)
    finally:
        server.close()
    assert failure.reason is FailureReason.SUPERSEDED
    assert not any(isinstance(report, Result) for report in read_spool(tmp_path))


def test_a_run_with_nothing_left_to_score_gives_the_result(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, [words(60)], scoring=LM_EVAL)
    first = run_here(spec, tmp_path / "first")
    entries = [
        e for r in read_spool(tmp_path / "first") if isinstance(r, Progress) for e in r.entries
    ]
    path = write_finished(tmp_path / "finished.jsonl", entries)
    resumed = spec.model_copy(update={"attempt": 2, "finished_path": str(path)})
    again = run_here(resumed, tmp_path / "again")
    assert again.perplexity == first.perplexity
    assert again.num_batches_resumed == first.plan.num_batches


def test_a_gpu_that_is_not_there_is_told(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine without a GPU, wherever the test runs.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    failure = failure_of(make_spec(tiny, ["a"], launch={"device": "cuda"}), tmp_path)
    assert failure.reason is FailureReason.DEVICE_UNAVAILABLE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_runs(tiny: Path, tmp_path: Path, dtype: str) -> None:
    spec = make_spec(tiny, [words(60)], scoring=LM_EVAL)
    full = run_here(spec, tmp_path / "full").perplexity
    half_spec = make_spec(
        tiny, [words(60)], scoring=LM_EVAL, launch={"device": "cpu", "dtype": dtype}
    )
    half = run_here(half_spec, tmp_path / "half").perplexity
    assert half.mean_nll_nats == pytest.approx(full.mean_nll_nats, rel=0.02)
    # Sums are not rounded to the 16-bit grid.
    assert half.nll_sum_nats % 1 != 0
