"""Finds a model's files, wherever they are, as a folder that can be loaded. Must not load them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.contract.launch import FolderModel, GgufModel, HubModel, ModelSource
from evaluator.digests import digest_files
from evaluator.errors import ModelNotFound, WeightsUnsafe
from evaluator.model.gguf_cache import converted

HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]
"""What is fetched of a hub model: no pickles, and no code that anything would run."""
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")


@dataclass(frozen=True)
class ModelFiles:
    """A folder with config, safetensors and tokenizer."""

    folder: Path
    digest: Callable[[], str]
    """Of what defines the model's numbers; reads the files, so it may take seconds."""


def find_model(source: ModelSource, cache_dir: Path) -> ModelFiles:
    """The model's folder.

    Args:
        source: Folder, GGUF file or hub name.
        cache_dir: Holds what is converted.

    Raises:
        ModelNotFound: It is not there.
        WeightsUnsafe: It has only pickled weights.
        WeightsInvalid: A GGUF file can't be parsed.
        ModelUnsupported: A GGUF file's architecture is not known.
        TokenizerMissing: A GGUF file has no tokenizer.
    """
    return _FINDERS[type(source)](source, cache_dir)


def _find_folder(source: FolderModel, _cache_dir: Path) -> ModelFiles:
    folder = Path(source.path)
    if not folder.is_dir():
        msg = f"there is no model folder {folder}"
        raise ModelNotFound(msg)
    return _checked(folder, str(folder))


def _find_gguf(source: GgufModel, cache_dir: Path) -> ModelFiles:
    path = Path(source.path)
    if not path.is_file():
        msg = f"there is no GGUF file {path}"
        raise ModelNotFound(msg)
    conversion = converted(path, cache_dir)
    return ModelFiles(conversion.folder, lambda: conversion.digest)


def _find_hub(source: HubModel, _cache_dir: Path) -> ModelFiles:
    # Only runs that use the hub pay for its import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name = f"{source.name} at revision {source.revision}"
    try:
        folder = Path(
            snapshot_download(source.name, revision=source.revision, allow_patterns=HUB_PATTERNS)
        )
    except (OSError, HfHubHTTPError, HFValidationError, ValueError) as error:
        msg = f"the hub model {name} can't be had: {error}"
        raise ModelNotFound(msg) from error
    if not list(folder.glob("*.safetensors")):
        msg = f"the hub model {name} has no safetensors; pickled weights are never loaded"
        raise WeightsUnsafe(msg)
    return _checked(folder, name)


def _checked(folder: Path, name: str) -> ModelFiles:
    config = folder / "config.json"
    if not config.is_file():
        msg = f"{name} has no config.json, so it is no model"
        raise ModelNotFound(msg)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = [path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern)]
        if pickles:
            msg = f"{name} has only pickled weights ({pickles[0]}); convert them to safetensors"
            raise WeightsUnsafe(msg)
        msg = f"{name} has no weights: there is no *.safetensors file"
        raise ModelNotFound(msg)
    return ModelFiles(folder, lambda: digest_files([config, *weights]))


_FINDERS: dict[type, Callable[[Any, Path], ModelFiles]] = {
    FolderModel: _find_folder,
    GgufModel: _find_gguf,
    HubModel: _find_hub,
}
