"""Runs of the evaluator, scored again by `evaluator.verify`, and runs that were tampered with."""

import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from evaluator.contract.env import SPOOL_DIR, WINDOWS_FILE, spool_name
from evaluator.contract.launch import FolderModel
from evaluator.contract.reports import ScoringUsed
from evaluator.model.files import find_model
from evaluator.plain_windows import Piece, cut
from evaluator.verify import WindowCheck, conclude, main
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_model, save_tokenizer, words

DOCUMENTS = [words(30, seed=3), "", words(3, seed=4) + " <s> \u00e9", words(45, seed=5) + "\n"]
CONVENTIONS: list[dict[str, Any]] = [
    {"convention": "lm-eval", "window": 16},
    {"convention": "lm-eval", "window": 16, "prefix": "none"},
    {"convention": "lm-eval", "window": 16, "prefix_place": "every"},
    {"convention": "hf-strided", "window": 16, "stride": 6},
    {"convention": "hf-strided", "window": 16, "stride": 16, "prefix": "bos"},
    {"convention": "hf-strided", "window": 16, "prefix": "eos", "prefix_place": "every"},
    {"convention": "gptq", "window": 16},
    {"convention": "gptq", "window": 16, "tail": "keep", "prefix": "bos", "prefix_place": "every"},
    {"convention": "llama.cpp", "window": 16},
    {"convention": "llama.cpp", "window": 17, "prefix": "none"},
    {"convention": "document", "window": 100, "special_tokens": "parse"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    save_tokenizer(folder, adds_bos=True)
    return folder


def run(model: Path, folder: Path, **fields: Any) -> Path:
    """A finished run; its spec."""
    spec = make_spec(model, DOCUMENTS, run_dir=str(folder / "run"), **fields)
    run_here(spec, folder / "run")
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


@pytest.mark.parametrize("scoring", CONVENTIONS, ids=lambda each: "-".join(map(str, each.values())))
def test_every_window_of_every_convention_agrees(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], scoring: dict[str, Any]
) -> None:
    spec = run(model, tmp_path, scoring=scoring)
    capsys.readouterr()
    assert main([str(spec), "--windows", "1000"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["num_windows_checked"] == verdict["num_windows"] == len(verdict["windows"])
    assert 0 < verdict["largest_relative"] < 3e-7


def test_a_sample_is_that_of_its_seed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = run(model, tmp_path, scoring={"convention": "lm-eval", "window": 8})
    capsys.readouterr()
    chosen = []
    for seed in ("1", "1", "2"):
        assert main([str(spec), "--windows", "3", "--seed", seed]) == 0
        verdict = json.loads(capsys.readouterr().out)
        assert verdict["num_windows_checked"] == 3 < verdict["num_windows"]
        chosen.append([(each["document"], each["begin"]) for each in verdict["windows"]])
    assert chosen[0] == chosen[1] != chosen[2]


def test_other_weights_are_found_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = run(model, tmp_path, scoring={"convention": "lm-eval", "window": 16})
    other = tmp_path / "other"
    save_model(other, seed=1)
    save_tokenizer(other, adds_bos=True)
    spec.write_text(spec.read_text().replace(str(model), str(other)))
    capsys.readouterr()
    assert main([str(spec)]) == 3
    digests = [find_model(each, tmp_path).digest() for each in sources(model, other)]
    said = capsys.readouterr().err
    assert said.startswith("the model has changed since the job")
    assert said.index(digests[1]) < said.index(digests[0])
    # As if the run itself had gone wrong: the same digest, other numbers.
    spool = tmp_path / "run" / SPOOL_DIR / spool_name(0)
    spool.write_text(spool.read_text().replace(digests[0], digests[1]))
    assert main([str(spec)]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert not verdict["ok"]
    assert verdict["largest_relative"] > 1e-3


def sources(*folders: Path) -> list[FolderModel]:
    return [FolderModel(kind="folder", path=str(folder)) for folder in folders]


def test_another_tokenizer_is_found_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    spec = run(other, tmp_path, scoring={"convention": "lm-eval", "window": 16})
    content = json.loads((other / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert main([str(spec)]) == 3
    assert capsys.readouterr().err.startswith("the tokenizer has changed since the job")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_that_no_longer_load_are_told_as_changed_or_broken(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    spec = run(other, tmp_path, scoring={"convention": "lm-eval", "window": 16})
    path = other / name
    path.write_bytes(path.read_bytes()[:-64])
    capsys.readouterr()
    assert main([str(spec)]) == 3
    said = capsys.readouterr().err
    if name == "tokenizer.json":
        assert "has no tokenizer that can be loaded: tokenizer.json can't be used" in said
    else:
        assert said.startswith("the model has changed since the job: it has digest sha256:")


def test_what_cannot_be_verified_says_why(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = run(model, tmp_path, scoring={"convention": "lm-eval", "window": 16})
    records = tmp_path / "run" / WINDOWS_FILE
    whole = records.read_bytes()
    spool = tmp_path / "run" / SPOOL_DIR / spool_name(0)
    text = spec.read_text()

    def says() -> str:
        capsys.readouterr()
        assert main([str(spec)]) == 3
        return capsys.readouterr().err

    spec.write_text(text.replace(DOCUMENTS[0], "changed"))
    assert "the data has changed since the job" in says()
    spec.write_text(text)
    records.write_bytes(gzip.compress(gzip.decompress(whole).replace(b'"begin":0', b'"begin":1')))
    assert "has digest" in says()
    records.write_bytes(whole[:40])
    assert "can't be read" in says()
    records.write_bytes(whole)
    lines = spool.read_text().splitlines(keepends=True)
    spool.write_text("".join(lines[:-1]))
    assert "has no result" in says()


@pytest.mark.parametrize(("relative", "ok"), [(9e-7, True), (1e-6, False)])
def test_one_window_over_the_limit_is_enough(relative: float, ok: bool) -> None:
    fine = WindowCheck(0, 0, 2, 4.0, 4.0, 0.0, 0.0)
    other = WindowCheck(0, 2, 2, 6.0, 6.0, 6 * relative, relative)
    verdict = conclude([other, fine], 5, 1e-6)
    assert (verdict.ok, verdict.largest_relative, verdict.num_windows) == (ok, relative, 5)
    assert verdict.sample_perplexity == pytest.approx(math.exp(2.5))
    assert [each.begin for each in verdict.windows] == [0, 2]


def used(
    convention: str,
    window: int,
    stride: int,
    prefix: int | None,
    place: str,
    tail: str | None = None,
) -> ScoringUsed:
    return ScoringUsed.model_validate(
        {
            "convention": convention, "window": window, "stride": stride, "batch_tokens": 8,
            "prefix": "none" if prefix is None else "bos", "prefix_token_id": prefix,
            "prefix_place": place, "special_tokens": "text", "join": None, "tail": tail,
            "definition": "",
        }
    )  # fmt: skip


def test_windows_written_out_by_hand() -> None:
    ids = [10, 11, 12, 13, 14]
    assert list(cut(ids, used("lm-eval", 3, 3, 0, "first"))) == [
        Piece(0, [0, 10, 11], [10, 11, 12]),
        Piece(3, [11, 12, 13], [13, 14]),
    ]
    assert list(cut(ids, used("hf-strided", 3, 2, None, "none"))) == [
        Piece(1, [10, 11], [11, 12]),
        Piece(3, [12, 13], [13, 14]),
    ]
    assert list(cut(ids, used("gptq", 2, 2, None, "none", tail="keep"))) == [
        Piece(1, [10], [11]),
        Piece(3, [12], [13]),
    ]
    assert list(cut([9, *ids, 15], used("llama.cpp", 4, 4, 0, "replaces", tail="drop"))) == [
        Piece(2, [0, 9, 10], [11]),
        Piece(6, [0, 13, 14], [15]),
    ]
