"""Tiny random models with a real tokenizer, made on the spot: nothing is downloaded."""

import random
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

VOCABULARY_SIZE = 320
"""256 bytes, the special tokens, and some merges."""
POSITIONS = 128
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "mix",
    "strange",
    "potions",
]


def words(num_words: int, seed: int = 0) -> str:
    """Text without meaning, always the same for a seed."""
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(num_words))


def save_tokenizer(
    folder: Path, *, bos: str | None = "<s>", eos: str | None = "</s>", adds_bos: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, so that any text has ids, with ids below `VOCABULARY_SIZE`.

    With `adds_bos` it begins each text with `<s>` by itself.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([words(2000, seed=1)], trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos)
    fast.save_pretrained(folder)
    return fast


def save_model(
    folder: Path, *, seed: int = 0, vocab_size: int = VOCABULARY_SIZE, layers: int = 2
) -> LlamaForCausalLM:
    """A random Llama. Its logits are spread out, so that no two targets cost the same."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


Family = Literal["llama", "qwen", "gpt2", "gemma", "mamba"]


def save_family(folder: Path, family: Family, **fields: Any) -> Path:
    """A random model of a family, with biases and an odd vocabulary, and its tokenizer.

    The Qwen has tied embeddings and one layer with a sliding window of 20; the Gemma too, and
    changes its logits after the head; the Mamba has no attention.
    """
    torch.manual_seed(0)
    config = _FAMILIES[family](**_COMMON_FIELDS | _OWN_FIELDS[family] | fields)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


_FAMILIES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen": Qwen2Config,
    "gpt2": GPT2Config,
    "gemma": Gemma2Config,
    "mamba": MambaConfig,
}
_COMMON_FIELDS: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE + 1,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
_OWN_FIELDS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 64, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen": {
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "gpt2": {},
    "gemma": {
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 20,
        "final_logit_softcapping": 2.0,
        "pad_token_id": 0,
    },
    "mamba": {},
}


def save_tiny(folder: Path, *, seed: int = 0) -> Path:
    """Model and tokenizer in one folder."""
    save_model(folder, seed=seed)
    save_tokenizer(folder)
    return folder
