import re
from pathlib import Path
from typing import Any

import pytest

from evaluator.data.document import Document
from evaluator.errors import DataEncoding, TokenizerMismatch
from evaluator.text.tokens import (
    Corpus,
    Prefix,
    adds_bos,
    check_ids,
    choose_prefix,
    count_words,
    digest_tokenizer,
    tokenise,
)
from tests.support.tiny import save_tokenizer, words


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def corpus_of(tokenizer: Any, *texts: str) -> Corpus:
    return tokenise([Document(text, f"row {n}") for n, text in enumerate(texts)], tokenizer)


def test_text_that_looks_like_a_special_token_stays_text(tokenizer: Any) -> None:
    corpus = corpus_of(tokenizer, "a <s> b </s>")
    ids = corpus.documents[0].ids.tolist()
    assert not {0, 1} & set(ids)
    assert tokenizer.decode(ids) == "a <s> b </s>"


def test_nothing_is_added_and_nothing_is_lost(tokenizer: Any) -> None:
    text = words(50) + " \u00e9\u4e16\U0001f600\n"
    (document,) = corpus_of(tokenizer, text).documents
    assert tokenizer.decode(document.ids.tolist()) == text
    assert document.num_bytes == len(text.encode())


def test_empty_documents_are_counted_and_the_others_keep_their_index(tokenizer: Any) -> None:
    corpus = corpus_of(tokenizer, "", "one", "", "two")
    assert [d.index for d in corpus.documents] == [1, 3]
    assert [d.place for d in corpus.documents] == ["row 1", "row 3"]
    assert corpus.num_empty == 2


def test_documents_in_groups_get_the_ids_that_they_get_alone(tokenizer: Any) -> None:
    texts = [words(n % 7 + 1, seed=n) for n in range(200)]
    together = corpus_of(tokenizer, *texts).documents
    alone = [corpus_of(tokenizer, text).documents[0] for text in texts]
    assert [d.ids.tolist() for d in together] == [d.ids.tolist() for d in alone]


def test_special_tokens_are_parsed_on_request(tokenizer: Any) -> None:
    documents = [Document("a <s> b </s>", "row 0")]
    (parsed,) = tokenise(documents, tokenizer, "parse").documents
    (text,) = tokenise(documents, tokenizer, "text").documents
    assert {0, 1} <= set(parsed.ids.tolist())
    assert len(parsed.ids) < len(text.ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("one", 1), ("one two\n\tthree", 3), (" one ", 3), ("", 1), (" ", 2), ("a\u00a0b", 2)],
)
def test_words_are_counted_as_the_harness_does(text: str, expected: int) -> None:
    assert count_words(text) == len(re.split(r"\s+", text)) == expected


def test_words_and_bytes_are_those_of_the_text_as_published(tokenizer: Any) -> None:
    published = Document("a , b", "row 0")._replace(text="a, b", original="a , b")
    (document,) = tokenise([published], tokenizer).documents
    assert (document.num_words, document.num_bytes) == (3, 5)
    assert tokenizer.decode(document.ids.tolist()) == "a, b"


def test_a_tokenizer_that_adds_bos_is_known_and_its_bos_is_not_scored(tmp_path: Path) -> None:
    plain, adding = save_tokenizer(tmp_path), save_tokenizer(tmp_path, adds_bos=True)
    assert not adds_bos(plain)
    assert adds_bos(adding)
    ids = [corpus_of(t, "one two").documents[0].ids.tolist() for t in (plain, adding)]
    assert ids[0] == ids[1]


def test_digests_tell_texts_apart(tokenizer: Any) -> None:
    digest = corpus_of(tokenizer, "ab", "c").data_digest
    assert digest == corpus_of(tokenizer, "ab", "c").data_digest
    others = [("a", "bc"), ("c", "ab"), ("abc",), ("ab", "c", ""), ("ab", "d")]
    for texts in others:
        assert corpus_of(tokenizer, *texts).data_digest != digest


def test_half_a_surrogate_pair_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataEncoding, match="row 1: character 2 is half a surrogate pair"):
        corpus_of(tokenizer, "fine", "ab\ud800")


def test_tokenizer_digest_is_of_what_decides_ids(tmp_path: Path, tokenizer: Any) -> None:
    digest = digest_tokenizer(tokenizer)
    # Settings of the last call do not count.
    tokenizer("some text", truncation=True, max_length=2)
    assert digest_tokenizer(tokenizer) == digest
    tokenizer.backend_tokenizer.no_truncation()
    other = save_tokenizer(tmp_path)
    other.add_tokens(["zebra"])
    assert digest_tokenizer(other) != digest


@pytest.mark.parametrize(
    ("asked", "bos", "eos", "expected"),
    [
        ("auto", "<s>", "</s>", Prefix("bos", 0)),
        ("auto", None, "</s>", Prefix("eos", 1)),
        ("auto", None, None, Prefix("none", None)),
        ("bos", "<s>", "</s>", Prefix("bos", 0)),
        ("eos", "<s>", "</s>", Prefix("eos", 1)),
        ("none", "<s>", "</s>", Prefix("none", None)),
    ],
)
def test_prefix(
    tmp_path: Path, asked: Any, bos: str | None, eos: str | None, expected: Prefix
) -> None:
    assert choose_prefix(asked, save_tokenizer(tmp_path, bos=bos, eos=eos)) == expected


@pytest.mark.parametrize("asked", ["bos", "eos"])
def test_a_prefix_that_is_not_there_is_refused(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(TokenizerMismatch, match=f"scoring.prefix is {asked}"):
        choose_prefix(asked, save_tokenizer(tmp_path, bos=None, eos=None))


def test_ids_beyond_the_embedding_are_named(tokenizer: Any) -> None:
    corpus = corpus_of(tokenizer, "a", words(300))
    highest = max(int(d.ids.max()) for d in corpus.documents)
    check_ids(corpus, Prefix("bos", 0), highest + 1)
    with pytest.raises(TokenizerMismatch, match=f"row 1: .* id {highest}, .* {highest} rows"):
        check_ids(corpus, Prefix("bos", 0), highest)
    with pytest.raises(TokenizerMismatch, match="the prefix token has id 999"):
        check_ids(corpus, Prefix("bos", 999), highest + 1)
