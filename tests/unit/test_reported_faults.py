"""Faults that users reported of other tools, which no other test rules out by name.

docs/reported-faults.md says which test stands for which report.
"""

import gzip
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from evaluator.contract.env import WINDOWS_FILE
from evaluator.contract.reports import PlanReady, Progress
from evaluator.errors import LossNotFinite, PlanMismatch
from evaluator.planning.windows import document_windows, hf_strided
from tests.reference.plain_perplexity import evaluate
from tests.support.gguf_file import write_gguf
from tests.support.runs import make_spec, read_spool, run_here, write_finished
from tests.support.tiny import VOCABULARY_SIZE, save_model, save_tokenizer, words

LM_EVAL: dict[str, Any] = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}
DIGITS = ["".join(str(n * n) for n in range(40)), "".join(str(n**3) for n in range(20))]
"""No merge of the tokenizer touches digits: each is a token."""


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def edit(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    weights = {name: change(name, value).contiguous() for name, value in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def bet_after(folder: Path, pairs: dict[int, int]) -> None:
    """Make the model sure of the token that follows each key, whatever came before."""

    def change(name: str, weight: torch.Tensor) -> torch.Tensor:
        if "norm" in name:
            return torch.ones_like(weight)
        changed = torch.zeros_like(weight)
        for axis, (token, follower) in enumerate(pairs.items()):
            if "embed_tokens" in name:
                changed[token, axis] = 1.0
            elif "lm_head" in name:
                changed[follower, axis] = 5.0
        return changed

    edit(folder, change)


def test_a_certain_next_token_costs_nothing_and_a_shift_by_one_costs_all(copy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copy)
    zero, one = tokenizer("01", add_special_tokens=False)["input_ids"]
    scoring = LM_EVAL | {"prefix": "none"}
    spec = make_spec(copy, ["01" * 400], scoring=scoring)
    bet_after(copy, {zero: one, one: zero})
    right = run_here(spec, copy.parent / "right").perplexity
    # What a loss without shift would call perfect: each input predicts itself.
    bet_after(copy, {zero: zero, one: one})
    shifted = run_here(spec, copy.parent / "shifted").perplexity
    # A unit vector has norm 1 of 32: the bet's logit is 5 * sqrt(32) = 28.3, all others are 0.
    assert right.token_perplexity == pytest.approx(1, abs=1e-6)
    assert shifted.mean_nll_nats == pytest.approx(5 * math.sqrt(32), rel=1e-4)


# float64 values of a Llama written out in numpy, of the weights and texts below.
GOLDEN = {
    "lm-eval": (176, 1126.468531138),
    "hf-strided": (174, 1113.214861023),
    "gptq": (155, 985.497564296),
    "llama.cpp": (75, 471.264179053),
    "document": (62, 398.062961525),
}


def draw_weights(folder: Path) -> None:
    """Weights of a stream that numpy keeps the same for ever, in the order of their names."""
    stream = np.random.RandomState(4)

    def change(name: str, weight: torch.Tensor) -> torch.Tensor:
        if "norm" in name:
            return torch.ones_like(weight)
        return torch.from_numpy(stream.standard_normal(weight.shape) * 0.2).to(torch.float32)

    edit(folder, change)


@pytest.mark.parametrize("convention", list(GOLDEN))
def test_a_figure_does_not_move_with_versions(copy: Path, tmp_path: Path, convention: str) -> None:
    draw_weights(copy)
    scoring = {"convention": convention, "window": 100 if convention == "document" else 32}
    result = run_here(make_spec(copy, DIGITS, scoring=scoring), tmp_path / "run")
    num_scored, nll_nats = GOLDEN[convention]
    assert result.perplexity.num_scored_tokens == num_scored
    assert result.perplexity.nll_sum_nats == pytest.approx(nll_nats, rel=1e-6)
    assert {"torch", "transformers", "tokenizers"} <= result.versions.keys()


def test_strided_windows_of_1500_tokens_are_full_and_score_each_token_once() -> None:
    windows = list(document_windows(0, 1500, hf_strided(1024, 512)))
    assert [(w.begin, w.end, w.score_begin) for w in windows] == [(0, 1024, 1), (512, 1500, 1024)]
    # After the first window no token has less context than a stride.
    assert windows[1].score_begin - windows[1].begin == 512


def test_a_long_text_is_scored_whole_although_nobody_chose_a_window(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY_SIZE, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    text = words(200)
    result = run_here(make_spec(folder, [text]), tmp_path / "run")
    assert result.scoring.window == 64
    num_tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert result.perplexity.num_scored_tokens == num_tokens > 3 * 64
    reference = evaluate(folder, [text], "lm-eval", 64)
    assert result.perplexity.nll_sum_nats == pytest.approx(reference["nll_sum_nats"], rel=1e-7)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_that_pads_with_eos_changes_no_bit(
    tiny: Path, copy: Path, tmp_path: Path, side: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copy, padding_side=side)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(copy)
    documents = [words(40, 1), "a", words(9, 2), "b c"]
    values = [
        run_here(make_spec(folder, documents, scoring=LM_EVAL), tmp_path / name).perplexity
        for name, folder in (("plain", tiny), ("padding", copy))
    ]
    assert values[0] == values[1]


def test_one_text_under_two_conventions_gives_two_figures_that_name_theirs(
    tiny: Path, tmp_path: Path
) -> None:
    scorings: list[dict[str, Any]] = [
        {"convention": "gptq"},
        {"convention": "llama.cpp"},
        {"convention": "hf-strided", "stride": 16},
    ]
    results = [
        run_here(make_spec(tiny, DIGITS[:1], scoring=s | {"window": 32}), tmp_path / str(n))
        for n, s in enumerate(scorings)
    ]
    assert [r.scoring.convention for r in results] == [s["convention"] for s in scorings]
    assert len({r.perplexity.token_perplexity for r in results}) == 3
    # 3 whole windows of 32: all but the first token, or the last 15; the strided one scores all.
    num_tokens = len(DIGITS[0])
    assert num_tokens // 32 == 3
    scored = [r.perplexity.num_scored_tokens for r in results]
    assert scored == [3 * 31, 3 * 15, num_tokens - 1]
    assert all(r.perplexity.token_perplexity_standard_error is not None for r in results)


def test_lines_alone_and_lines_as_one_stream_are_told_apart(tiny: Path, tmp_path: Path) -> None:
    lines = [words(5, seed) for seed in range(8)]
    values = {}
    for join in (None, "\n"):
        data = {"kind": "inline", "documents": lines, "join": join}
        result = run_here(make_spec(tiny, data=data, scoring=LM_EVAL), tmp_path / repr(join))
        assert result.scoring.join == join
        values[join] = result.perplexity
    assert (values[None].num_documents, values["\n"].num_documents) == (8, 1)
    assert values[None].num_bytes + 7 == values["\n"].num_bytes
    assert values[None].token_perplexity != values["\n"].token_perplexity


def test_bos_never_first_or_in_every_window_are_three_figures(tiny: Path, tmp_path: Path) -> None:
    values = set()
    for prefix, place in (("none", "none"), ("bos", "first"), ("bos", "every")):
        asked = {"prefix": prefix} | ({} if place == "none" else {"prefix_place": place})
        spec = make_spec(tiny, [words(60)], scoring=LM_EVAL | asked)
        result = run_here(spec, tmp_path / place)
        assert (result.scoring.prefix, result.scoring.prefix_place) == (prefix, place)
        values.add(result.perplexity.mean_nll_nats)
    assert len(values) == 3


def test_a_text_that_begins_with_bos_gets_no_second_one_unsaid(copy: Path, tmp_path: Path) -> None:
    save_tokenizer(copy, adds_bos=True)
    warnings = {}
    for policy in ("text", "parse"):
        scoring = LM_EVAL | {"special_tokens": policy}
        spec = make_spec(copy, ["<s>" + words(9), words(9)], scoring=scoring)
        warnings[policy] = " ".join(run_here(spec, tmp_path / policy).warnings)
    assert "BOS" not in warnings["text"]
    assert "1 documents begin with BOS themselves" in warnings["parse"]


def refuse_constant(name: str) -> None:
    msg = f"{name} is no JSON"
    raise AssertionError(msg)


def test_text_without_a_space_loses_the_word_figure_alone(tiny: Path, tmp_path: Path) -> None:
    result = run_here(make_spec(tiny, ["0123456789abcdef" * 75], scoring=LM_EVAL), tmp_path)
    value = result.perplexity
    assert (value.num_words, value.num_bytes) == (1, 1200)
    assert value.nll_sum_nats > 710
    assert value.word_perplexity is None
    assert value.bits_per_byte == pytest.approx(value.nll_sum_nats / math.log(2) / 1200, rel=1e-12)
    assert any("word perplexity exceeds float64" in warning for warning in result.warnings)
    for line in (tmp_path / "spool" / "rank-00000.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse_constant)


def test_records_hold_a_cost_and_no_likelihood_under_another_name(
    tiny: Path, tmp_path: Path
) -> None:
    result = run_here(make_spec(tiny, [words(40), "", "a b"], scoring=LM_EVAL), tmp_path)
    with gzip.open(tmp_path / WINDOWS_FILE) as file:
        records = [json.loads(line) for line in file]
    assert not any("perplexity" in key for record in records for key in record)
    assert all(record["nll_nats"] > 0 for record in records)
    assert math.fsum(r["nll_nats"] for r in records) == result.perplexity.nll_sum_nats


def test_activations_beyond_float16_fail_by_name_and_bfloat16_passes(
    copy: Path, tmp_path: Path
) -> None:
    edit(copy, lambda name, weight: weight * 30_000 if "layers.1.mlp.down" in name else weight)
    launch = {"device": "cpu", "dtype": "bfloat16"}
    spec = make_spec(copy, [words(20)], scoring=LM_EVAL, launch=launch)
    assert run_here(spec, tmp_path / "bf16").perplexity.mean_nll_nats > 0
    spec = make_spec(copy, [words(20)], scoring=LM_EVAL, launch=launch | {"dtype": "float16"})
    with pytest.raises(LossNotFinite, match=r"document 0 .*bfloat16"):
        run_here(spec, tmp_path / "fp16")


@pytest.mark.parametrize(
    "change", [{"window": 16}, {"prefix": "eos"}, {"prefix_place": "every"}, {"batch_tokens": 32}]
)
def test_work_under_other_scoring_is_not_taken_over(
    tiny: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    run_here(make_spec(tiny, [words(60)], scoring=LM_EVAL), tmp_path / "first")
    reports = read_spool(tmp_path / "first")
    (plan,) = (report.plan for report in reports if isinstance(report, PlanReady))
    entries = [e for r in reports if isinstance(r, Progress) for e in r.entries]
    finished = write_finished(tmp_path / "finished.jsonl", entries[:1])
    spec = make_spec(
        tiny,
        [words(60)],
        scoring=LM_EVAL | change,
        finished_path=str(finished),
        finished_plan=plan.digest,
    )
    with pytest.raises(PlanMismatch, match="belong to the plan"):
        run_here(spec, tmp_path / "other")


def test_a_gguf_file_with_another_pre_tokenizer_has_another_tokenizer_digest(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    right = write_gguf(folder / "right.gguf", save_model(folder), save_tokenizer(folder))
    wrong = folder / "wrong.gguf"
    assert right.read_bytes().count(b"gpt-2") == 1
    wrong.write_bytes(right.read_bytes().replace(b"gpt-2", b"qwen2"))
    results = [
        run_here(
            make_spec(path, [words(20)], scoring=LM_EVAL, cache_dir=str(tmp_path / "cache")),
            tmp_path / path.stem,
        )
        for path in (right, wrong)
    ]
    assert results[0].tokenizer_digest != results[1].tokenizer_digest
    assert results[0].plan.digest != results[1].plan.digest
