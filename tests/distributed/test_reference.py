"""The figure against an independent script that shares no code with the evaluator."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from transformers import AutoTokenizer

from evaluator.contract.reports import Result
from tests.reference.plain_perplexity import (
    Request,
    evaluate,
    evaluate_requests,
    gptq_requests,
    hf_strided_requests,
    llama_cpp_requests,
    lm_eval_every_requests,
    lm_eval_requests,
)
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_tokenizer, words

RELATIVE = 1e-7

LM_EVAL: dict[str, Any] = {"convention": "lm-eval", "window": 64, "batch_tokens": 512}
HF_STRIDED: dict[str, Any] = {"convention": "hf-strided", "window": 64, "stride": 24}
DISJOINT: dict[str, Any] = {"convention": "hf-strided", "window": 64, "stride": 64}
GPTQ: dict[str, Any] = {"convention": "gptq", "window": 64}
LLAMA_CPP: dict[str, Any] = {"convention": "llama.cpp", "window": 64, "batch_tokens": 200}
DOCUMENT: dict[str, Any] = {"convention": "document", "window": 100}
PRESETS = [LM_EVAL, HF_STRIDED, DISJOINT, GPTQ, LLAMA_CPP, DOCUMENT]
NAMES = ["lm-eval", "hf-strided", "disjoint", "gptq", "llama.cpp", "document"]

DOCUMENTS = [words(200, 1), "<s>x</s> \u00e9", words(31, 2), "ab", words(64, 3) + "\n\n"]


def assert_agrees(result: Result, reference: dict[str, Any]) -> None:
    value = result.perplexity
    assert value.num_scored_tokens == reference["num_scored_tokens"]
    assert value.nll_sum_nats == pytest.approx(reference["nll_sum_nats"], rel=RELATIVE)
    assert value.token_perplexity == pytest.approx(reference["perplexity"], rel=RELATIVE)
    error = reference["naive_standard_error"]
    assert value.naive_standard_error == pytest.approx(error, rel=RELATIVE)
    unscored = sum(value.excluded_tokens.values())
    assert value.num_scored_tokens + unscored == value.num_tokens


@pytest.fixture(scope="module")
def tiny_with_bos(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer that adds BOS by itself."""
    folder = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("bos") / "model"))
    save_tokenizer(folder, adds_bos=True)
    return folder


@pytest.mark.parametrize("scoring", PRESETS, ids=NAMES)
@pytest.mark.parametrize("model", ["tiny", "tiny_with_bos"])
def test_tiny_model(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, scoring: dict[str, Any]
) -> None:
    folder = request.getfixturevalue(model)
    result = run_here(make_spec(folder, DOCUMENTS, scoring=scoring), tmp_path)
    reference = evaluate(
        folder, DOCUMENTS, scoring["convention"], scoring["window"], scoring.get("stride", 0)
    )
    assert_agrees(result, reference)


BOS, EOS = 0, 1


def options_by_hand(option: str, tokens: list[int]) -> Iterator[Request]:
    """What the options of a convention make of one text, in windows of 64."""
    match option:
        case "lm-eval every":
            return lm_eval_every_requests(tokens, 64, BOS)
        case "lm-eval none":
            return lm_eval_requests(tokens, 64, None)
        case "hf-strided first":
            return hf_strided_requests([EOS, *tokens], 64, 24)
        case "gptq keep":
            return gptq_requests([EOS, *tokens], 64, keep=True)
        case "llama.cpp replaces":
            return llama_cpp_requests([EOS, *tokens], 64, EOS)
    return llama_cpp_requests([BOS, *tokens], 64, None)


@pytest.mark.parametrize(
    ("option", "scoring"),
    [
        ("lm-eval every", LM_EVAL | {"prefix_place": "every"}),
        ("lm-eval none", LM_EVAL | {"prefix": "none"}),
        ("hf-strided first", HF_STRIDED | {"prefix": "eos"}),
        ("gptq keep", GPTQ | {"prefix": "eos", "tail": "keep"}),
        ("llama.cpp replaces", LLAMA_CPP | {"prefix": "eos"}),
        ("llama.cpp first", LLAMA_CPP | {"prefix": "bos", "prefix_place": "first"}),
    ],
)
@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_options_of_the_conventions(
    tiny: Path, tmp_path: Path, option: str, scoring: dict[str, Any], special_tokens: str
) -> None:
    text = words(150, 1) + "<s>a</s>" + words(40, 2)
    spec = make_spec(tiny, [text], scoring=scoring | {"special_tokens": special_tokens})
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny, local_files_only=True)
    tokens = tokenizer(
        text, add_special_tokens=False, split_special_tokens=special_tokens == "text"
    )["input_ids"]
    assert ({BOS, EOS} <= set(tokens)) == (special_tokens == "parse")
    reference = evaluate_requests(tiny, options_by_hand(option, tokens))
    assert_agrees(run_here(spec, tmp_path), reference)


@pytest.mark.smollm2
@pytest.mark.parametrize(
    "scoring",
    [
        LM_EVAL | {"window": 512},
        HF_STRIDED | {"window": 256, "stride": 128},
        LLAMA_CPP | {"window": 512},
    ],
    ids=["lm-eval", "hf-strided", "llama.cpp"],
)
def test_smollm2_through_the_gguf_cache(
    gguf: Path, cache_dir: Path, tmp_path: Path, scoring: dict[str, Any]
) -> None:
    text = "".join(topics[key] for key in sorted(topics))[:4000]
    spec = make_spec(
        gguf,
        [text],
        cache_dir=str(cache_dir),
        scoring=scoring,
    )
    result = run_here(spec, tmp_path)
    assert result.model_digest == (
        "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )
    (folder,) = [path for path in (cache_dir / "gguf").iterdir() if path.is_dir()]
    reference = evaluate(
        folder, [text], scoring["convention"], scoring["window"], scoring.get("stride", 0)
    )
    assert_agrees(result, reference)


@pytest.mark.smollm2
def test_smollm2_costs_the_same_with_two_threads_and_in_other_batches(
    smollm2: Path, tmp_path: Path
) -> None:
    # Lengths at which matrix products were seen to depend on threads or company.
    texts = ["a", "b", *(words(n, n) for n in (2, 3, 5, 8, 9, 12, 15, 40, 60)), words(5, 99)]
    found = set()
    for num_threads, batch_tokens in ((1, 2), (2, 2), (1, 500), (2, 500)):
        spec = make_spec(
            smollm2,
            texts,
            scoring=LM_EVAL | {"batch_tokens": batch_tokens},
            launch={"device": "cpu", "threads_per_rank": num_threads},
        )
        result = run_here(spec, tmp_path / f"{num_threads}-{batch_tokens}")
        found.add((result.perplexity.nll_sum_nats.hex(), result.windows_digest))
    assert len(found) == 1


@pytest.mark.smollm2
def test_smollm2_does_better_with_longer_windows(smollm2: Path, tmp_path: Path) -> None:
    text = "".join(topics[key] for key in sorted(topics))[:2000]
    values = [
        run_here(
            make_spec(smollm2, [text], scoring=LM_EVAL | {"window": window}),
            tmp_path / str(window),
        ).perplexity
        for window in (64, 128, 512)
    ]
    assert len({value.num_scored_tokens for value in values}) == 1
    means = [value.mean_nll_nats for value in values]
    assert means[0] > means[1] > means[2]
