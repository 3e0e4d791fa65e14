"""Other tools on the same model, text, window, dtype and threads, all taking turns."""

from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import pytest
import torch

from app.cli.demo_inputs import find_model as find_demo_model
from evaluator.contract.launch import GgufModel
from evaluator.contract.reports import NodeTiming
from evaluator.model.files import find_model
from tests.bench.machine import apart, publish
from tests.bench.sides import Task, compare, harness, loop
from tests.bench.test_scoring import large_vocabulary_model
from tests.support.runs import launched
from tests.support.tiny import save_tokenizer, words

NUM_TURNS = 3
TEXT = "".join(topics[key] for key in sorted(topics))
LM_EVAL = {"convention": "lm-eval"}
STRIDED = {"convention": "hf-strided", "stride": 64}
SIZES = (400, 3300, 700, 1900, 300, 1100)
"""Characters of uneven documents."""

pytestmark = pytest.mark.filterwarnings("ignore")


def convert(cache: Path) -> Path:
    return find_model(GgufModel(kind="gguf", path=str(find_demo_model())), cache).folder


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return apart(convert, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    large_vocabulary_model(torch.float32).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def uneven() -> list[str]:
    begins = [sum(SIZES[:index]) for index in range(len(SIZES))]
    return [TEXT[begin : begin + size] for begin, size in zip(begins, SIZES, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_process(
    smollm2: Path, large: Path, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Task(smollm2, dtype, [TEXT[:3300]], 512, LM_EVAL, tmp_path)
    many = Task(smollm2, dtype, uneven(), 512, LM_EVAL, tmp_path)
    strided = Task(large, dtype, [words(300)], 512, STRIDED, tmp_path)
    peers = {"lm-eval, batch 1": (harness, 1), "lm-eval, batch 8": (harness, 8), "loop": (loop,)}
    rows = [
        *compare("one document", one, peers, NUM_TURNS),
        *compare("uneven documents", many, {"lm-eval, batch 8": (harness, 8)}, NUM_TURNS),
        *compare(
            "strided, 262 144 words",
            strided,
            {"lm-eval, batch 1": (harness, 1), "loop": (loop,)},
            NUM_TURNS,
        ),
    ]
    if dtype == "bfloat16":  # it tries what fits before it scores: minutes in float32
        rows += compare("one document", one, {"lm-eval, batch auto": (harness, "auto")}, 2)
    publish(f"peers-{dtype}", rows, capsys, "torch", "transformers", "lm-eval")


def busiest_s(task: Task, num_ranks: int, folder: Path) -> float:
    """Seconds of the busiest rank, from text to the last batch."""
    with launched(task.spec, folder, num_ranks=num_ranks) as run:
        assert run.wait() == 0, run.output[-4000:]
        ranks = [
            rank for each in run.reports() if isinstance(each, NodeTiming) for rank in each.ranks
        ]
    return max(rank.compute_s + rank.communicate_s for rank in ranks)


def test_two_ranks(smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Task(smollm2, "float32", [TEXT[:16000]], 512, LM_EVAL, tmp_path)
    pairs = []
    for turn in range(NUM_TURNS):
        one_s, two_s = (busiest_s(task, num, tmp_path / f"{num}-{turn}") for num in (1, 2))
        pairs.append((one_s, two_s))
    ratios = sorted(one_s / two_s for one_s, two_s in pairs)
    row = {
        "case": "two ranks over one",
        "one_s": median(one_s for one_s, _ in pairs),
        "two_s": median(two_s for _, two_s in pairs),
        "faster": median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
    }
    publish("peers-ranks", [row], capsys, "torch", "transformers")


def test_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    has_cuda = torch.cuda.is_available()
    rows = [
        {
            "what": "llama.cpp",
            "state": "not run: llama-cpp-python has no wheel to install",
        },
        {
            "what": "CUDA",
            "state": "not run: no part of this uses it" if has_cuda else "not run: no CUDA device",
        },
    ]
    publish("peers-not-run", rows, capsys)
