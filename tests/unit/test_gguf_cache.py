import shutil
import threading
from pathlib import Path

import pytest

from evaluator.errors import ModelUnsupported, TokenizerMissing, WeightsInvalid
from evaluator.model import gguf_cache
from evaluator.model.gguf_cache import converted
from tests.support.gguf_file import write_gguf
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_model, save_tokenizer, words

SCORING = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def gguf(folder: Path) -> Path:
    return write_gguf(folder / "tiny.gguf", save_model(folder), save_tokenizer(folder))


def test_a_gguf_file_scores_as_the_weights_it_was_made_from(
    gguf: Path, folder: Path, tmp_path: Path
) -> None:
    documents = [words(60), "<s> as text"]
    cache = {"cache_dir": str(tmp_path / "cache")}
    from_gguf = run_here(make_spec(gguf, documents, scoring=SCORING, **cache), tmp_path / "a")
    from_folder = run_here(make_spec(folder, documents, scoring=SCORING), tmp_path / "b")
    assert from_gguf.perplexity == from_folder.perplexity
    # The second time nothing is converted.
    (kept,) = [path for path in (tmp_path / "cache" / "gguf").iterdir() if path.is_dir()]
    before = (kept / "model.safetensors").stat()
    again = run_here(make_spec(gguf, documents, scoring=SCORING, **cache), tmp_path / "c")
    assert again.perplexity == from_gguf.perplexity
    assert (kept / "model.safetensors").stat().st_ino == before.st_ino


@pytest.mark.parametrize(("adds_bos", "prefix"), [(True, "bos"), (False, "none"), (None, "none")])
def test_the_file_says_whether_texts_begin_with_bos(
    tmp_path: Path, adds_bos: bool | None, prefix: str
) -> None:
    folder = tmp_path / "model"
    gguf = write_gguf(
        folder / "tiny.gguf", save_model(folder), save_tokenizer(folder), adds_bos=adds_bos
    )
    scoring = {"convention": "llama.cpp", "window": 32}
    spec = make_spec(gguf, [words(60)], scoring=scoring, cache_dir=str(tmp_path / "cache"))
    result = run_here(spec, tmp_path / "run")
    assert result.scoring.prefix == prefix
    # Nothing else changes: documents get the same ids.
    plain = run_here(make_spec(folder, [words(60)], scoring=scoring), tmp_path / "plain")
    assert result.perplexity.num_tokens == plain.perplexity.num_tokens
    assert (result.perplexity.nll_sum_nats == plain.perplexity.nll_sum_nats) == (not adds_bos)


def test_files_beside_the_gguf_are_not_mixed_in(gguf: Path, tmp_path: Path) -> None:
    # Seen in transformers 5.24: a tokenizer.json in the same folder wins, and BOS is lost.
    assert (gguf.parent / "tokenizer.json").is_file()
    beside = converted(gguf, tmp_path / "a").folder
    lone = Path(shutil.copy(gguf, tmp_path / "lone.gguf"))
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        expected = (converted(lone, tmp_path / "b").folder / name).read_text()
        assert (beside / name).read_text() == expected
    assert '"bos_token": "<s>"' in (beside / "tokenizer_config.json").read_text()


def test_the_same_content_under_another_name_is_not_converted_again(
    gguf: Path, tmp_path: Path
) -> None:
    first = converted(gguf, tmp_path / "cache")
    other = Path(shutil.copy(gguf, tmp_path / "other.gguf"))
    assert converted(other, tmp_path / "cache") == first


def test_two_at_once_convert_once(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    convert = gguf_cache._convert_into

    def counted(folder: Path, path: Path) -> None:
        calls.append(folder)
        convert(folder, path)

    monkeypatch.setattr(gguf_cache, "_convert_into", counted)
    start = threading.Barrier(2)
    found: list[Path] = []

    def work() -> None:
        start.wait()
        found.append(converted(gguf, tmp_path / "cache").folder)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert found[0] == found[1]
    assert (found[0] / "config.json").is_file()


def test_what_a_killed_conversion_left_is_removed(gguf: Path, tmp_path: Path) -> None:
    first = converted(gguf, tmp_path / "cache").folder
    leftover = first.with_name(f"{first.name}.abc.tmp")
    first.rename(leftover)
    (leftover / "model.safetensors").write_bytes(b"half")
    second = converted(gguf, tmp_path / "cache").folder
    assert not leftover.exists()
    assert (second / "model.safetensors").stat().st_size > 4
    assert [path.name for path in second.parent.iterdir() if path.name.endswith(".tmp")] == []


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not this format")
    with pytest.raises(WeightsInvalid, match="is no GGUF file"):
        converted(path, tmp_path / "cache")


def test_a_file_cut_short_is_told_and_nothing_is_kept(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(gguf.read_bytes()[:-10_000])
    with pytest.raises(WeightsInvalid, match="may be cut short"):
        converted(path, tmp_path / "cache")
    assert [entry for entry in (tmp_path / "cache" / "gguf").iterdir() if entry.is_dir()] == []


def test_an_architecture_that_can_not_be_read_is_told(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    content = gguf.read_bytes()
    path.write_bytes(content.replace(b"llama", b"mamma"))
    with pytest.raises(ModelUnsupported, match="mamma"):
        converted(path, tmp_path / "cache")


def test_a_file_without_tokenizer_is_told(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "mute.gguf"
    path.write_bytes(gguf.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.xxxx.tokens"))
    with pytest.raises(TokenizerMissing):
        converted(path, tmp_path / "cache")
