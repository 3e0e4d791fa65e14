"""The `lm-eval` convention against lm-evaluation-harness itself, on the same model and text.

Its float32 log-softmax lies about 3e-6 relative below the float64 value, hence the tolerance.
"""

import re
import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluator.contract.reports import Perplexity
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_tokenizer, words

pytest.importorskip("lm_eval", reason="lm-eval 0.4.13 is installed for these tests alone")

# Of libraries that only the harness imports.
pytestmark = pytest.mark.filterwarnings("ignore")

RELATIVE = 1e-5

ONE = [words(150, 1)]
SEVERAL = [words(150, 1), " " + words(3, 2), words(33, 3) + "\n", "a\u00e9b", words(64, 4)]


@dataclass(frozen=True)
class Theirs:
    """What the harness says."""

    nll_sum_nats: float
    num_tokens: int
    num_words: int
    num_bytes: int
    word_perplexity: float
    byte_perplexity: float
    bits_per_byte: float


def ask_harness(folder: Path, texts: list[str], window: int) -> Theirs:
    """Run `loglikelihood_rolling` on the texts, then the harness's own aggregations."""
    metrics = import_module("lm_eval.api.metrics")
    make_request = import_module("lm_eval.api.instance").Instance
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Left to itself the harness puts its prefix before a BOS that the tokenizer adds, and then
    # scores that BOS as text.
    model = import_module("lm_eval.models.huggingface").HFLM(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
        tokenizer=tokenizer,
        max_length=window,
        batch_size=1,
        device="cpu",
        add_bos_token=False,
    )
    requests = [
        make_request(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=index)
        for index, text in enumerate(texts)
    ]
    values = model.loglikelihood_rolling(requests, disable_tqdm=True)
    num_words = [len(re.split(r"\s+", text)) for text in texts]
    num_bytes = [len(text.encode()) for text in texts]
    by_byte = list(zip(values, num_bytes, strict=True))
    return Theirs(
        nll_sum_nats=-sum(values),
        num_tokens=sum(len(model.tok_encode(text)) for text in texts),
        num_words=sum(num_words),
        num_bytes=sum(num_bytes),
        word_perplexity=metrics.weighted_perplexity(list(zip(values, num_words, strict=True))),
        byte_perplexity=metrics.weighted_perplexity(by_byte),
        bits_per_byte=metrics.bits_per_byte(by_byte),
    )


def assert_agrees(ours: Perplexity, theirs: Theirs) -> None:
    assert ours.num_scored_tokens == ours.num_tokens == theirs.num_tokens
    assert ours.num_words == theirs.num_words
    assert ours.num_bytes == theirs.num_bytes
    assert ours.nll_sum_nats == pytest.approx(theirs.nll_sum_nats, rel=RELATIVE)
    assert ours.bits_per_byte == pytest.approx(theirs.bits_per_byte, rel=RELATIVE)
    assert ours.byte_perplexity == pytest.approx(theirs.byte_perplexity, rel=RELATIVE)
    # An error of the nll grows by the nats of a word.
    per_word = theirs.nll_sum_nats / theirs.num_words
    assert ours.word_perplexity == pytest.approx(theirs.word_perplexity, rel=RELATIVE * per_word)


@pytest.fixture(scope="module")
def own_bos(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer that adds BOS by itself."""
    folder = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("bos") / "model"))
    save_tokenizer(folder, adds_bos=True)
    return folder


@pytest.fixture(scope="module")
def eos_only(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer that has no BOS: EOS is the prefix."""
    folder = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("eos") / "model"))
    save_tokenizer(folder, bos=None)
    return folder


@pytest.mark.parametrize("window", [32, 64])
@pytest.mark.parametrize("texts", [ONE, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("model", ["tiny", "own_bos", "eos_only"])
def test_tiny_model(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, texts: list[str], window: int
) -> None:
    folder = request.getfixturevalue(model)
    scoring: dict[str, Any] = {"convention": "lm-eval", "window": window, "batch_tokens": 64}
    ours = run_here(make_spec(folder, texts, scoring=scoring), tmp_path)
    assert_agrees(ours.perplexity, ask_harness(folder, texts, window))


def test_detokenised_text_counts_words_and_bytes_of_the_published_one(
    tiny: Path, tmp_path: Path
) -> None:
    pages = [" = A title = \n\n One , two @-@ three 's ( four ) \n", ' " Five " ; six N']
    preprocess = import_module("lm_eval.tasks.wikitext.preprocess_wikitext")
    texts = [preprocess.wikitext_detokenizer({"page": page}) for page in pages]
    data = {"kind": "inline", "documents": pages, "detokenise": "wikitext"}
    scoring = {"convention": "lm-eval", "window": 32}
    ours = run_here(make_spec(tiny, data=data, scoring=scoring), tmp_path).perplexity
    theirs = ask_harness(tiny, texts, 32)
    assert ours.nll_sum_nats == pytest.approx(theirs.nll_sum_nats, rel=RELATIVE)
    counts = [preprocess.process_results({"page": page}, (0.0,)) for page in pages]
    assert ours.num_words == sum(count["word_perplexity"][1] for count in counts)
    assert ours.num_bytes == sum(count["byte_perplexity"][1] for count in counts)
    assert ours.num_bytes != theirs.num_bytes


@pytest.mark.smollm2
@pytest.mark.parametrize(
    ("window", "size", "num_documents"), [(512, 3000, 1), (512, 3000, 3), (2048, 11000, 1)]
)
def test_smollm2(smollm2: Path, tmp_path: Path, window: int, size: int, num_documents: int) -> None:
    text = "".join(topics[key] for key in sorted(topics))[:size]
    step = size // num_documents
    texts = [text[begin : begin + step] for begin in range(0, size, step)]
    scoring = {"convention": "lm-eval", "window": window}
    result = run_here(make_spec(smollm2, texts, scoring=scoring), tmp_path)
    assert result.perplexity.num_windows >= 2
    assert_agrees(result.perplexity, ask_harness(smollm2, texts, window))
