"""The scorer beside the bare forward: alternating, in one process, with one thread."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.cli.demo_inputs import find_model as find_demo_model
from evaluator.contract.launch import GgufModel
from evaluator.model.files import find_model
from evaluator.model.forward import cut_model
from evaluator.model.loading import load_model
from evaluator.planning.plan import Batch
from evaluator.planning.windows import Window
from evaluator.reporting.timing import peak_resident_bytes
from evaluator.scoring.score import Scorer
from evaluator.text.tokens import TokenDocument
from tests.bench.machine import apart, publish

WINDOW = 512
NUM_PAIRS = 15
SMOLLM2_WORDS = 49_152
LARGE_VOCABULARY = 262_144
MEMORY_BAR_BYTES = 500 * 10**6


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = GgufModel(kind="gguf", path=str(find_demo_model()))
    return find_model(source, tmp_path_factory.mktemp("cache")).folder


def large_vocabulary_model(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LARGE_VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def scorer_for(model: Any, ids: np.ndarray[Any, np.dtype[np.int32]], num_rows: int) -> Scorer:
    document = TokenDocument(
        index=0,
        place="bench",
        ids=ids,
        num_bytes=1,
        num_words=1,
        num_replaced=0,
        highest_id=int(ids.max()),
    )
    return Scorer(
        forward=cut_model(model, num_rows).forward,
        documents={0: document},
        prefix_token_id=None,
        device=torch.device("cpu"),
        dtype=str(model.dtype),
    )


def processor_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def matrix_peak(dtype: torch.dtype) -> float:
    """Floating point operations a second of a large product, on this thread."""
    size = 2048
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    seconds = min(processor_s(lambda: torch.mm(left, right)) for _ in range(5))
    return float(2 * size**3 / seconds)


def products(model: Any) -> int:
    """Floating point operations of the matrix products with weights, for one window."""
    weights = sum(m.weight.numel() for m in model.modules() if type(m) is torch.nn.Linear)
    return 2 * WINDOW * weights


def compare(name: str, make: Callable[[], Any], num_rows: int) -> dict[str, object]:
    """Speed of the scorer over that of the model's own forward with its scored logits."""
    torch.set_num_threads(1)
    plain, model = make(), make()  # two of them: the scorer packs its own
    ids = np.random.default_rng(0).integers(10, num_rows, WINDOW + 1).astype(np.int32)
    scorer = scorer_for(model, ids, num_rows)
    batch = Batch(0, (Window(0, 0, WINDOW + 1, 1, prefixed=False),))
    inputs_1T = torch.from_numpy(ids[:-1].astype(np.int64))[None]

    @torch.inference_mode()
    def bare() -> None:
        plain(input_ids=inputs_1T, use_cache=False)

    def score() -> None:
        scorer.score(batch)

    bare()
    score()
    pairs = []
    for index in range(NUM_PAIRS):
        first, second = (bare, score) if index % 2 else (score, bare)
        took = {first: processor_s(first), second: processor_s(second)}
        pairs.append((took[bare], took[score]))
    lower, middle, upper = statistics.quantiles(bare_s / score_s for bare_s, score_s in pairs)
    score_s = statistics.median(score_s for _, score_s in pairs)
    return {
        "model": name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "bare_s": statistics.median(bare_s for bare_s, _ in pairs),
        "score_s": score_s,
        "ratio": middle,
        "quartile_1": lower,
        "quartile_3": upper,
        "of_matrix_peak": products(plain) / score_s / matrix_peak(plain.dtype),
    }


def compare_smollm2(folder: Path, dtype: torch.dtype) -> dict[str, object]:
    def make() -> Any:
        return load_model(folder, device=torch.device("cpu"), dtype=dtype).model

    return compare("SmolLM2-135M", make, SMOLLM2_WORDS)


def compare_large_vocabulary(dtype: torch.dtype) -> dict[str, object]:
    name = f"{LARGE_VOCABULARY} words"
    return compare(name, lambda: large_vocabulary_model(dtype), LARGE_VOCABULARY)


def peak_over_weights_bytes() -> int:
    """Of scoring four windows of 2048 with a large vocabulary."""
    torch.set_num_threads(1)
    model = large_vocabulary_model(torch.float32)
    before_bytes = peak_resident_bytes()
    ids = np.random.default_rng(0).integers(10, LARGE_VOCABULARY, 2049).astype(np.int32)
    scorer = scorer_for(model, ids, LARGE_VOCABULARY)
    scorer.score(Batch(0, (Window(0, 0, 2049, 1, prefixed=False),) * 4))
    return peak_resident_bytes() - before_bytes


def test_scoring_beside_the_bare_forward(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        rows.append(apart(compare_smollm2, smollm2, dtype))
        rows.append(apart(compare_large_vocabulary, dtype))
    publish("scoring", rows, capsys, "torch", "transformers")


def test_memory_at_a_large_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    peak_bytes = apart(peak_over_weights_bytes)
    row = {"vocabulary": LARGE_VOCABULARY, "window": 2048, "peak_over_weights_bytes": peak_bytes}
    publish("scoring-memory", [row], capsys, "torch", "transformers")
    assert peak_bytes < MEMORY_BAR_BYTES
