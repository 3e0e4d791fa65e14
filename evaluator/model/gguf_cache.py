"""GGUF files, dequantised once and kept as safetensors folders that load in a fraction of a second.

Safe for any number of ranks and jobs: whoever holds the lock of a file's digest converts, into a
temporary folder that is renamed when it is whole; the others wait for the lock and find it done.
"""

import copy
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.digests import digest_file
from evaluator.errors import (
    ModelUnsupported,
    TokenizerMissing,
    WeightsInvalid,
    is_out_of_memory,
)
from evaluator.text.tokens import adds_bos

logger = logging.getLogger(__name__)

MAGIC = b"GGUF"
FORMAT = 3
"""Of a converted folder; another number makes old ones unused."""


class Conversion(NamedTuple):
    """A GGUF file as a folder."""

    folder: Path
    digest: str
    """Of the GGUF file."""


def converted(path: Path, cache_dir: Path) -> Conversion:
    """The folder for a GGUF file; converts it where no one has.

    Raises:
        WeightsInvalid: The file is no GGUF or is cut short.
        ModelUnsupported: transformers can't read this architecture from GGUF.
        TokenizerMissing: The file has no tokenizer.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            msg = f"{path} is no GGUF file: it does not begin with the letters GGUF"
            raise WeightsInvalid(msg)
    digest = digest_file(path)
    # What a conversion gives depends on the library that makes it.
    folder = cache_dir / "gguf" / f"{digest}-{FORMAT}-transformers-{version('transformers')}"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _convert_into(folder, path)
    return Conversion(folder, f"sha256:{digest}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        # Released by the kernel when the holder ends, however it ends.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(folder: Path, path: Path) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.*.tmp"):
        shutil.rmtree(leftover)
    logger.info("converting GGUF", extra={"path": str(path), "folder": str(folder)})
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        with _alone(path) as lone_path:
            _save(lone_path, temporary)
        _sync(temporary)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """The file in a folder of its own: transformers mixes in a tokenizer.json that lies beside it.

    The name stays, for messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / path.name
        link.symlink_to(path.absolute())
        yield link


def _save(path: Path, folder: Path) -> None:
    model = _read_model(path)
    # A model read from GGUF refuses to be saved: it passes for quantised. Its weights are not.
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)._from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    tokenizer = _read_tokenizer(path)
    _add_bos_as_told(path, tokenizer)
    tokenizer.save_pretrained(folder)
    # Inside a process group it would have written nothing on ranks other than 0.
    assert (folder / "config.json").is_file(), "save_pretrained wrote nothing"


def _read_model(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
    except ImportError as error:
        msg = f"{path.resolve()} can't be read without a package that is missing: {error}"
        raise ModelUnsupported(msg) from error
    except Exception as error:
        # The reader raises whatever a broken file leads to.
        if is_out_of_memory(error):
            raise
        if "not supported" in str(error):
            msg = f"{path.resolve()} has an architecture that can't be read from GGUF: {error}"
            raise ModelUnsupported(msg) from error
        msg = f"{path.resolve()} can't be read as GGUF, it may be cut short: {error}"
        raise WeightsInvalid(msg) from error


def _read_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True
        )
    except (KeyError, ValueError, OSError) as error:
        msg = f"{path.resolve()} has no tokenizer that can be read: {error}"
        raise TokenizerMissing(msg) from error


def _add_bos_as_told(path: Path, tokenizer: Any) -> None:
    """Have the tokenizer begin texts with BOS where the file says so: transformers 5.24 skips it.

    A file that says nothing leaves the tokenizer as it is.
    """
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("tokenizer.ggml.add_bos_token")
    if field is None or tokenizer.bos_token_id is None:
        return
    told = bool(field.contents())
    if adds_bos(tokenizer) != told:
        tokenizer.add_bos_token = told


def _sync(folder: Path) -> None:
    """Have everything on the disk before the rename, which would outlive a crash otherwise."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
