import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from evaluator.contract.launch import ModelSource
from evaluator.digests import digest_files
from evaluator.errors import (
    EvaluatorError,
    ModelNotFound,
    ModelUnsupported,
    TokenizerMissing,
    WeightsInvalid,
    WeightsUnsafe,
)
from evaluator.model.files import ModelFiles, find_model
from evaluator.model.loading import LoadedModel, load_model
from tests.support.tiny import POSITIONS, VOCABULARY_SIZE, save_model, save_tiny

SOURCE: TypeAdapter[ModelSource] = TypeAdapter(ModelSource)


def find(tmp_path: Path, **source: Any) -> ModelFiles:
    return find_model(SOURCE.validate_python(source), tmp_path / "cache")


def load(folder: Path) -> LoadedModel:
    return load_model(folder, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_model_is_loaded_with_what_scoring_needs(tiny: Path) -> None:
    loaded = load(tiny)
    assert loaded.max_positions == POSITIONS
    assert loaded.num_rows == VOCABULARY_SIZE
    assert not loaded.model.training
    assert loaded.warnings == ()


def test_the_digest_is_of_config_and_weights(tiny: Path, copy: Path, tmp_path: Path) -> None:
    digest = find(tmp_path, kind="folder", path=str(tiny)).digest()
    assert find(tmp_path, kind="folder", path=str(copy)).digest() == digest
    (copy / "README.md").write_text("a note")
    assert find(tmp_path, kind="folder", path=str(copy)).digest() == digest
    edit_config(copy, rms_norm_eps=1e-5)
    assert find(tmp_path, kind="folder", path=str(copy)).digest() != digest


def test_a_digest_of_files_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"one")
    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    expected = hashlib.sha256(f"assay-files-1\0a\0{one}\nb\0{two}\n".encode()).hexdigest()
    assert digest_files([tmp_path / "b", tmp_path / "a"]) == f"sha256:{expected}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "folder", "path": "/nonexistent/model"}, "there is no model folder"),
        ({"kind": "gguf", "path": "/nonexistent/model.gguf"}, "there is no GGUF file"),
        ({"kind": "hub", "name": "acme/model"}, "acme/model at revision main can't be had"),
    ],
    ids=["folder", "gguf", "hub"],
)
def test_a_model_that_is_not_there_is_named(
    tmp_path: Path, source: dict[str, str], message: str
) -> None:
    with pytest.raises(ModelNotFound, match=message):
        find(tmp_path, **source)


def test_a_hub_model_comes_from_the_local_hub_cache(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library's own layout, as a download leaves it.
    commit = "0123456789012345678901234567890123456789"
    repository = tmp_path / "models--acme--tiny"
    shutil.copytree(tiny, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = find(tmp_path, kind="hub", name="acme/tiny")
    assert found.folder == repository / "snapshots" / commit
    for weights in found.folder.glob("*.safetensors"):
        weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(WeightsUnsafe, match="has no safetensors"):
        find(tmp_path, kind="hub", name="acme/tiny")


def test_a_folder_without_config_is_no_model(copy: Path, tmp_path: Path) -> None:
    (copy / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        find(tmp_path, kind="folder", path=str(copy))


def test_pickled_weights_are_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(WeightsUnsafe, match=r"only pickled weights \(pytorch_model\.bin\)"):
        find(tmp_path, kind="folder", path=str(copy))


def test_a_folder_without_weights_is_no_model(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"there is no \*\.safetensors"):
        find(tmp_path, kind="folder", path=str(copy))


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(1000))


def other_shapes(folder: Path) -> None:
    edit_config(folder, intermediate_size=128)


def more_layers(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_type(folder: Path) -> None:
    edit_config(folder, model_type="nonsense", auto_map={"AutoModelForCausalLM": "m.Model"})


def image_model(folder: Path) -> None:
    edit_config(folder, model_type="vit")


def encoder_decoder(folder: Path) -> None:
    edit_config(folder, model_type="t5", is_encoder_decoder=True)


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (cut_short, WeightsInvalid, "the weights can't be read"),
        (garbage, WeightsInvalid, "the weights can't be read"),
        (other_shapes, WeightsInvalid, "the weights do not fit the config"),
        (more_layers, WeightsInvalid, r"9 tensors are missing .* model\.layers\.2\."),
        (no_json, WeightsInvalid, r"config\.json can't be read"),
        (unknown_type, ModelUnsupported, "nonsense"),
        (image_model, ModelUnsupported, "can't be loaded as a causal model"),
        (encoder_decoder, ModelUnsupported, r"is an encoder-decoder \(t5\)"),
        (
            no_tokenizer,
            TokenizerMissing,
            r"has no tokenizer that can be loaded: none of tokenizer\.json, .* put the tokenizer",
        ),
        (
            broken_tokenizer,
            TokenizerMissing,
            r"tokenizer\.json can't be used \(.*[^:]\); copy the tokenizer",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_told(
    copy: Path, spoil: Any, error: type[EvaluatorError], message: str
) -> None:
    spoil(copy)
    with pytest.raises(error, match=message):
        load(copy)


def test_a_file_with_code_is_never_run(copy: Path) -> None:
    edit_config(copy, auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
    marker = copy / "was_run"
    (copy / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    load(copy)
    assert not marker.exists()


def test_weights_that_were_not_used_are_told(copy: Path) -> None:
    edit_config(copy, num_hidden_layers=1)
    (warning,) = load(copy).warnings
    assert "9 tensors of the weights were not used" in warning


def test_a_model_saved_in_16_bit_is_loaded_in_the_asked_type(tmp_path: Path) -> None:
    save_tiny(tmp_path / "half")
    save_model(tmp_path / "half").bfloat16().save_pretrained(tmp_path / "half")
    assert load(tmp_path / "half").model.dtype is torch.float32
