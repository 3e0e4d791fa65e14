from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from evaluator.contract.reports import ScoringUsed
from evaluator.contract.scoring import Scoring
from evaluator.errors import SpecInvalid, TokenizerMismatch, WindowTooLong
from evaluator.planning.conventions import Convention, resolve_convention
from tests.support.tiny import save_tokenizer

SCORING: TypeAdapter[Scoring] = TypeAdapter(Scoring)
NAMES = ["lm-eval", "hf-strided", "gptq", "llama.cpp", "document"]
BOS, EOS = 0, 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    """Has BOS and does not add it."""
    return save_tokenizer(folder / "plain")


@pytest.fixture(scope="module")
def adding(folder: Path) -> Any:
    """Begins each text with BOS."""
    return save_tokenizer(folder / "adding", adds_bos=True)


@pytest.fixture(scope="module")
def bare(folder: Path) -> Any:
    """Has neither BOS nor EOS."""
    return save_tokenizer(folder / "bare", bos=None, eos=None)


def resolve(
    tokenizer: Any, *, max_positions: int | None = None, join: str | None = None, **fields: Any
) -> Convention:
    scoring = SCORING.validate_python(fields)
    return resolve_convention(scoring, max_positions=max_positions, tokenizer=tokenizer, join=join)


def prefix_of(used: ScoringUsed) -> tuple[str, int | None, str]:
    return used.prefix, used.prefix_token_id, used.prefix_place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm-eval", ("bos", BOS, "first")),
        ("hf-strided", ("none", None, "none")),
        ("gptq", ("none", None, "none")),
        ("llama.cpp", ("none", None, "none")),
        ("document", ("bos", BOS, "first")),
    ],
)
def test_auto_with_a_tokenizer_that_has_bos_but_does_not_add_it(
    plain: Any, name: str, expected: tuple[str, int | None, str]
) -> None:
    assert prefix_of(resolve(plain, convention=name).used) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm-eval", ("bos", BOS, "first")),
        ("hf-strided", ("none", None, "none")),
        ("gptq", ("bos", BOS, "first")),
        ("llama.cpp", ("bos", BOS, "replaces")),
        ("document", ("bos", BOS, "first")),
    ],
)
def test_auto_with_a_tokenizer_that_adds_bos(
    adding: Any, name: str, expected: tuple[str, int | None, str]
) -> None:
    assert prefix_of(resolve(adding, convention=name).used) == expected


@pytest.mark.parametrize("name", NAMES)
def test_auto_without_special_tokens_is_none(bare: Any, name: str) -> None:
    assert prefix_of(resolve(bare, convention=name).used) == ("none", None, "none")


def test_only_lm_eval_falls_back_to_eos(folder: Path) -> None:
    eos_only = save_tokenizer(folder / "eos", bos=None)
    assert prefix_of(resolve(eos_only, convention="lm-eval").used) == ("eos", EOS, "first")
    assert resolve(eos_only, convention="document").used.prefix == "none"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["first", "every"])
def test_what_is_asked_is_used_and_told(plain: Any, name: str, place: str) -> None:
    used = resolve(plain, convention=name, window=8, prefix="eos", prefix_place=place).used
    assert prefix_of(used) == ("eos", EOS, place)
    assert "EOS is fed" in used.definition


@pytest.mark.parametrize("name", NAMES)
def test_none_is_none_whatever_the_tokenizer_does(adding: Any, name: str) -> None:
    used = resolve(adding, convention=name, prefix="none").used
    assert prefix_of(used) == ("none", None, "none")
    assert "BOS" not in used.definition


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_that_is_not_there_is_refused(bare: Any, name: str) -> None:
    with pytest.raises(TokenizerMismatch, match="prefix is bos"):
        resolve(bare, convention=name, prefix="bos")


@pytest.mark.parametrize(
    ("name", "usual"),
    [("lm-eval", 2048), ("hf-strided", 1024), ("gptq", 2048), ("llama.cpp", 512)],
)
def test_the_usual_window_is_at_most_the_positions(plain: Any, name: str, usual: int) -> None:
    assert resolve(plain, convention=name).used.window == usual
    assert resolve(plain, convention=name, max_positions=100).used.window == 100
    assert resolve(plain, convention=name, max_positions=9999).used.window == usual


def test_a_document_gets_all_positions(plain: Any) -> None:
    assert resolve(plain, convention="document", max_positions=9999).used.window == 9999


@pytest.mark.parametrize("name", NAMES)
def test_a_window_above_the_positions_is_refused_with_both_numbers(plain: Any, name: str) -> None:
    with pytest.raises(WindowTooLong, match="window is 101, but the model has 100 positions"):
        resolve(plain, convention=name, window=101, max_positions=100)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("lm-eval", None, None),
        ("lm-eval", " ", " "),
        ("hf-strided", None, None),
        ("gptq", None, "\n\n"),
        ("gptq", " ", " "),
        ("llama.cpp", None, ""),
        ("llama.cpp", "\n", "\n"),
        ("document", None, None),
    ],
)
def test_join_is_what_was_given_or_the_streams_own(
    plain: Any, name: str, given: str | None, expected: str | None
) -> None:
    assert resolve(plain, convention=name, join=given).used.join == expected


def test_strides(plain: Any) -> None:
    assert resolve(plain, convention="hf-strided", window=8).used.stride == 4
    assert resolve(plain, convention="hf-strided", window=8, stride=8).used.stride == 8
    assert resolve(plain, convention="lm-eval", window=8).used.stride == 8
    every: dict[str, Any] = {"window": 8, "prefix": "bos", "prefix_place": "every"}
    assert resolve(plain, convention="lm-eval", **every).used.stride == 7
    assert resolve(plain, convention="gptq", **every).used.stride == 7
    with pytest.raises(SpecInvalid, match="stride is 8, above the window of 8 less the prefix"):
        resolve(plain, convention="hf-strided", stride=8, **every)
    with pytest.raises(SpecInvalid, match="stride is 9, above the window of 8"):
        resolve(plain, convention="hf-strided", stride=9, max_positions=8)


def test_a_half_window_needs_three_tokens() -> None:
    with pytest.raises(ValidationError, match="no token after its first half"):
        SCORING.validate_python({"convention": "llama.cpp", "window": 2})


def test_no_two_conventions_are_defined_alike(adding: Any) -> None:
    definitions = {
        resolve(adding, convention=name, window=64, prefix_place=place).used.definition
        for name in NAMES
        for place in ("auto", "first", "every")
    }
    # `auto` is `first` but for llama.cpp; without a prefix (hf-strided) the place says nothing.
    assert len(definitions) == 2 + 1 + 2 + 3 + 2
    assert not any("{" in definition for definition in definitions)


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({"convention": "gptq"}, "drop"),
        ({"convention": "gptq", "tail": "keep"}, "keep"),
        ({"convention": "llama.cpp"}, "drop"),
        ({"convention": "lm-eval"}, None),
    ],
)
def test_what_becomes_of_the_tail_is_told(
    plain: Any, fields: dict[str, Any], tail: str | None
) -> None:
    assert resolve(plain, **fields).used.tail == tail
