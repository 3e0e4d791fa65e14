"""A text in pieces has the ids of the whole text, with any tokenizer."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from evaluator.text import pieces
from evaluator.text.pieces import Encoder, cut_text, encode_long

PARTS = (
    "the|don't|I'm|Hello|x|a1b2|1234567|3.14|(see)|...|--|#tag|<s>|</s>|caf\u00e9|e\u0301|"
    "\u65e5\u672c\u8a9e|\u30c6\u30b9\u30c8|\U0001f600|\u00bd|\u0645\u0631\u062d\u0628\u0627|"
    " |  |\n|\n\n| \n |\t|\r\n|\u00a0|\u2003"
)


def mixed_text(num_parts: int, seed: int) -> str:
    generator = random.Random(seed)
    parts = PARTS.split("|")
    return "".join(
        generator.choice(parts) + generator.choice([" ", " ", "\n", ""]) for _ in range(num_parts)
    )


def trained(trainer: Any, tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.train_from_iterator([mixed_text(3000, seed=99)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def bpe_trainer(size: int = 900) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return trained(bpe_trainer(), tokenizer)


def digit_groups() -> PreTrainedTokenizerFast:
    """As GPT-4 and Llama 3: digits in threes from the start of their run, and NFC."""
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return trained(bpe_trainer(), tokenizer)


def prefix_space() -> PreTrainedTokenizerFast:
    """Puts a space in front of every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return trained(bpe_trainer(), tokenizer)


def no_pre_tokenizer() -> PreTrainedTokenizerFast:
    """As Gemma: merges may reach over any place."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return trained(bpe_trainer(1500), tokenizer)


def prepended() -> PreTrainedTokenizerFast:
    """As Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return trained(bpe_trainer(), tokenizer)


def unigram() -> PreTrainedTokenizerFast:
    """As T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    return trained(trainer, tokenizer)


KINDS = [byte_level, digit_groups, prefix_space, no_pre_tokenizer, prepended, unigram]


@pytest.fixture(scope="module", params=KINDS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    made: PreTrainedTokenizerFast = request.param()
    return made


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHARS", 700)
    monkeypatch.setattr(pieces, "CONTEXT_CHARS", 100)


def blocks(text: str, length: int) -> Iterator[str]:
    for begin in range(0, len(text), length):
        yield text[begin : begin + length]


def ids_in_pieces(encoder: Encoder, text: str, block: int) -> list[int]:
    return [int(i) for ids in encode_long(blocks(text, block), encoder) for i in ids]


@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_pieces_have_the_ids_of_the_whole(tokenizer: Any, special_tokens: Any) -> None:
    tokenizer.add_tokens(["the lazy"])
    encoder = Encoder(tokenizer, special_tokens)
    for seed in range(3):
        text = mixed_text(1500, seed) + "the lazy dog " * 20
        (whole,) = encoder.ids([text])
        for block in (97, 3000, 10**9):
            assert ids_in_pieces(encoder, text, block) == whole.tolist()


def test_text_is_cut_where_a_tokenizer_allows_it(tokenizer: Any, request: Any) -> None:
    text = "some quick words and more " * 400
    found = list(cut_text([text], Encoder(tokenizer)))
    assert "".join(found) == text
    kind = request.node.callspec.params["tokenizer"].__name__
    if kind in ("no_pre_tokenizer", "prepended"):
        # Nothing says that a cut is harmless, so the text stays whole.
        assert len(found) == 1
    else:
        assert {len(piece) for piece in found[:-1]} <= set(range(700, 710))


@pytest.mark.parametrize(
    "text", ["a" * 5000, "1234567890" * 500, " " * 5000, "\u65e5\u672c" * 2500, "\n" * 5000]
)
def test_a_text_without_a_place_to_cut_stays_whole(tokenizer: Any, text: str) -> None:
    encoder = Encoder(tokenizer)
    assert list(cut_text(blocks(text, 100), encoder)) == [text]
    (whole,) = encoder.ids([text])
    assert ids_in_pieces(encoder, text, 100) == whole.tolist()


def test_looking_for_places_takes_linear_time() -> None:
    looked_at = []

    class Reluctant(Encoder):
        def is_harmless(self, before: str, after: str) -> bool:
            looked_at.append(before)
            return False

    text = "a b " * 50_000
    assert list(cut_text(blocks(text, 100), Reluctant(None))) == [text]
    # 16 places each time that the text has doubled.
    assert len(looked_at) <= 16 * 9


def test_empty_texts_have_no_ids() -> None:
    encoder = Encoder(byte_level())
    assert list(cut_text([], encoder)) == list(cut_text(["", ""], encoder)) == []
    assert np.concatenate([*encode_long(["ab"], encoder)]).size > 0
