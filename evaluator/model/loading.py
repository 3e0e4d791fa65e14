"""Loads a causal language model and its tokenizer. Nothing of a model is run or unpickled."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import disable_progress_bars
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor

from evaluator.errors import (
    ModelUnsupported,
    TokenizerMissing,
    WeightsInvalid,
    is_out_of_memory,
)
from evaluator.parallel.group import SINGLE, ScoringGroup
from evaluator.parallel.loading import LoadedWeights, load_parts
from evaluator.scoring.score import Loss, token_nll

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""What the vocabulary of a tokenizer is kept in; one of them is enough."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that is ready to score."""

    model: Any
    tokenizer: Any
    max_positions: int | None
    """None where the architecture has no limit."""
    num_rows: int
    """Rows of the embedding; ids lie below."""
    loss: Loss = token_nll
    """Of the logits that its head gives."""
    warnings: tuple[str, ...] = ()


def silence_libraries() -> None:
    """Leave the log to ours: no progress bars, and their records go through the root logger."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_default_handler()
    transformers.utils.logging.enable_propagation()
    disable_progress_bars()


def load_model(
    folder: Path, *, device: torch.device, dtype: torch.dtype, group: ScoringGroup = SINGLE
) -> LoadedModel:
    """Load weights and tokenizer of a folder.

    Args:
        folder: With config, safetensors and tokenizer.
        device: Where to.
        dtype: Of the weights.
        group: Where it splits the weights, this rank's part of them is loaded.

    Raises:
        ParallelismInvalid: The group can't split this model.
        ModelUnsupported: It is no causal model that this transformers knows.
        WeightsInvalid: The weights are broken, or not those of the config.
        TokenizerMissing: There is no tokenizer.
    """
    # The config first: a tokenizer is looked up through it.
    config = load_config(folder)
    tokenizer = load_tokenizer(folder)
    if group.splits_weights:
        weights = load_parts(folder, config, group, device=device, dtype=dtype)
    else:
        weights = _load_whole(folder, config, device=device, dtype=dtype)
    warnings = []
    if weights.unused:
        names = list(weights.unused[:3])
        warnings.append(f"{len(weights.unused)} tensors of the weights were not used: {names}")
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return LoadedModel(
        model=weights.model,
        tokenizer=tokenizer,
        max_positions=positions if isinstance(positions, int) and positions > 0 else None,
        num_rows=weights.num_rows,
        loss=weights.loss,
        warnings=tuple(warnings),
    )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        TokenizerMissing: There is none.
    """
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        # Each tokenizer class fails in its own way.
        msg = f"{folder} has no tokenizer that can be loaded: {_tokenizer_fault(folder, error)}"
        raise TokenizerMissing(msg) from error


def _tokenizer_fault(folder: Path, error: Exception) -> str:
    """What is missing or broken, and what to do; the library's own words are a list of classes."""
    found = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    if not found:
        return (
            f"none of {', '.join(TOKENIZER_FILES)} is there; put the tokenizer.json (and "
            "tokenizer_config.json) that belongs to the model beside the weights"
        )
    return (
        f"{' and '.join(found)} can't be used ({first_line(error).rstrip(':')}); copy the "
        "tokenizer of the model again"
    )


def load_config(folder: Path) -> Any:
    """The config of a folder.

    Raises:
        ModelUnsupported: It is no causal model that this transformers knows.
        WeightsInvalid: The file is broken.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except OSError as error:
        msg = f"{folder}: config.json can't be read: {first_line(error)}"
        raise WeightsInvalid(msg) from error
    except (ValueError, KeyError, TypeError, ImportError) as error:
        msg = f"{folder}: {first_line(error)}"
        raise ModelUnsupported(msg) from error
    if config.is_encoder_decoder:
        msg = f"{folder} is an encoder-decoder ({config.model_type}), not a causal model"
        raise ModelUnsupported(msg)
    return config


def _load_whole(
    folder: Path, config: Any, *, device: torch.device, dtype: torch.dtype
) -> LoadedWeights:
    model, info = _load_weights(folder, config, dtype)
    _refuse_missing(folder, info["missing_keys"])
    model = model.eval().requires_grad_(requires_grad=False).to(device)
    head = model.get_output_embeddings()
    if head is None:
        msg = f"{folder}: {type(model).__name__} has no output head"
        raise ModelUnsupported(msg)
    num_rows = min(model.get_input_embeddings().weight.shape[0], head.weight.shape[0])
    return LoadedWeights(model, num_rows, tuple(sorted(info["unexpected_keys"])))


def _load_weights(folder: Path, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    try:
        # Annotated as a model alone, though with `output_loading_info` it is a pair.
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        model, info = loaded
    except (SafetensorError, OSError) as error:
        msg = f"{folder}: the weights can't be read: {first_line(error)}"
        raise WeightsInvalid(msg) from error
    except (ValueError, KeyError, TypeError, ImportError) as error:
        msg = f"{folder} can't be loaded as a causal model: {first_line(error)}"
        raise ModelUnsupported(msg) from error
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        msg = f"{folder}: the weights do not fit the config: {first_line(error)}"
        raise WeightsInvalid(msg) from error
    return model, info


def _refuse_missing(folder: Path, missing: set[str]) -> None:
    """Tensors that are missing would be random numbers."""
    if missing:
        names = sorted(missing)
        msg = f"{folder}: {len(names)} tensors are missing from the weights, such as {names[0]}"
        raise WeightsInvalid(msg)


def digest_weights(model: Any) -> str:
    """Digest of the weights as they are in memory, which any single flipped bit changes.

    Of each tensor's bytes it takes the sum, which reads 20 GB a second on one core: less than a
    tenth of the forward of one window. It tells copies apart that should be equal; it is no proof
    against forgery.
    """
    digest = hashlib.sha256(b"assay-weights-2\0")
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        digest.update(_sum_bytes(tensor).to_bytes(8, "little"))
    return f"sha256:{digest.hexdigest()}"


def _sum_bytes(tensor: torch.Tensor) -> int:
    """Sum of a tensor's bytes, eight at a time, modulo 2^64; of a sharded one this rank's part."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    plain = own.detach().to_dense() if own.is_mkldnn else own.detach()
    bytes_N = plain.reshape(-1).view(torch.uint8)
    if bytes_N.storage_offset() % 8:
        bytes_N = bytes_N.clone()
    num_whole = len(bytes_N) // 8 * 8
    words_N = bytes_N[:num_whole].view(torch.int64)
    rest_N = bytes_N[num_whole:]
    return int(words_N.sum().item() + rest_N.sum(dtype=torch.int64).item()) % 2**64


def first_line(error: BaseException) -> str:
    """The first line of a message; libraries append advice that does not fit a sentence."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].strip()
