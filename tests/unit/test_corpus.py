"""A corpus from the cache is the one that is made in memory."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evaluator.contract.data import JsonlData, TextData
from evaluator.data import long_text, read_documents
from evaluator.data.document import Document
from evaluator.data.long_text import LongDocument, long_document, num_cut_bytes
from evaluator.errors import DataEncoding, DataInvalid
from evaluator.text import corpus, pieces
from evaluator.text.corpus import AnyDocument, load_corpus
from evaluator.text.tokens import Corpus, tokenise
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_tokenizer, words

DIGEST = "sha256:of-the-tokenizer"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def _all_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CACHED_BYTES", -1)


# Corpora


def load(
    documents: Iterable[AnyDocument], tokenizer: Any, folder: Path, policy: Any = "text"
) -> Corpus:
    taken = list(documents)
    return load_corpus(lambda: taken, tokenizer, policy, tokenizer_digest=DIGEST, cache_dir=folder)


def same(first: Corpus, second: Corpus) -> bool:
    facts = [
        (
            [
                (d.index, d.place, d.ids.tolist(), d.num_bytes, d.num_words, d.num_replaced)
                for d in one.documents
            ],
            one.num_empty,
            one.data_digest,
            one.ids_digest,
        )
        for one in (first, second)
    ]
    return facts[0] == facts[1]


DOCUMENTS = [
    Document("", "row 0"),
    Document(words(30), "row 1"),
    Document(" a <s> b </s>\n", "row 2", 3),
    Document("well-known", "row 3", 0, "well @-@ known"),
    Document("", "row 4"),
    Document("\u00e9\U0001f600 " * 9 + words(400, seed=3), "row 5"),
]


@pytest.mark.usefixtures("_all_cached")
@pytest.mark.parametrize("policy", ["text", "parse"])
def test_a_cached_corpus_is_the_one_made_in_memory(
    tmp_path: Path, tokenizer: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "PIECE_CHARS", 100)
    monkeypatch.setattr(pieces, "PIECE_CHARS", 200)
    monkeypatch.setattr(corpus, "GROUP_DOCUMENTS", 2)
    plain = tokenise(DOCUMENTS, tokenizer, policy)
    assert same(load(DOCUMENTS, tokenizer, tmp_path, policy), plain)
    assert same(load(DOCUMENTS, tokenizer, tmp_path, policy), plain)
    assert len(list((tmp_path / "tokens").glob("*.tokens"))) == 1


@pytest.mark.usefixtures("_all_cached")
def test_nothing_is_shared_that_could_differ(tmp_path: Path, tokenizer: Any) -> None:
    def num_entries() -> int:
        return len(list((tmp_path / "tokens").glob("*.tokens")))

    load(DOCUMENTS, tokenizer, tmp_path)
    load(DOCUMENTS, tokenizer, tmp_path, "parse")
    assert num_entries() == 2
    load(DOCUMENTS[:-1], tokenizer, tmp_path)
    assert num_entries() == 3
    # The same text, but its words are counted on another one.
    other = [d._replace(original=d.original and d.original[::-1]) for d in DOCUMENTS]
    load(other, tokenizer, tmp_path)
    assert num_entries() == 4
    load_corpus(lambda: DOCUMENTS, tokenizer, "text", tokenizer_digest="other", cache_dir=tmp_path)
    assert num_entries() == 5
    # Places and replaced bytes are the reader's, not the cache's.
    moved = [d._replace(place=f"moved {d.place}", num_replaced=1) for d in DOCUMENTS]
    found = load(moved, tokenizer, tmp_path)
    assert num_entries() == 5
    assert {d.num_replaced for d in found.documents} == {1}
    assert found.documents[0].place == "moved row 1"


def test_a_small_data_set_leaves_no_entry(tmp_path: Path, tokenizer: Any) -> None:
    assert same(load(DOCUMENTS, tokenizer, tmp_path), tokenise(DOCUMENTS, tokenizer))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_all_cached")
def test_a_folder_that_can_not_be_written_is_done_without(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "tokens").write_text("a file where the folder would be")
    assert same(load(DOCUMENTS, tokenizer, tmp_path), tokenise(DOCUMENTS, tokenizer))


@pytest.mark.usefixtures("_all_cached")
def test_texts_that_change_between_two_readings_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    readings = iter([["a b", "c"], ["a b", "d"], ["a b", "c"], ["a b"]])

    def changing() -> list[Document]:
        return [Document(text, "row") for text in next(readings)]

    for _ in range(2):
        with pytest.raises(DataInvalid, match="changed while it was read"):
            load_corpus(changing, tokenizer, "text", tokenizer_digest=DIGEST, cache_dir=tmp_path)
    assert list((tmp_path / "tokens").glob("*.tokens")) == []


@pytest.mark.usefixtures("_all_cached")
def test_half_a_pair_is_refused_before_anything_is_tokenised(
    tmp_path: Path, tokenizer: Any
) -> None:
    bad = [*DOCUMENTS, Document("ab\ud800", "row 6")]
    with pytest.raises(DataEncoding, match=r"row 6: character 2 .* data\.errors: replace"):
        load(bad, tokenizer, tmp_path)


@pytest.mark.usefixtures("_all_cached")
def test_many_empty_documents_are_only_counted(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"text": ""})
    path.write_text(f"{line}\n" * 20_000 + json.dumps({"text": words(300)}) + f"\n{line}\n")
    source = JsonlData(kind="jsonl", path=str(path))
    found = load_corpus(
        lambda: read_documents(source),
        tokenizer,
        "text",
        tokenizer_digest=DIGEST,
        cache_dir=tmp_path,
    )
    assert found.num_empty == 20_001
    (document,) = found.documents
    assert (document.index, document.num_words) == (20_000, 300)


# Long texts


@pytest.fixture
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "LONG_BYTES", 10)
    monkeypatch.setattr(long_text, "BLOCK_BYTES", 7)
    monkeypatch.setattr(pieces, "PIECE_CHARS", 300)
    monkeypatch.setattr(pieces, "CONTEXT_CHARS", 50)


def put(path: Path, content: bytes) -> TextData:
    path.write_bytes(content)
    return TextData(kind="text", path=str(path), errors="replace")


TEXT = ("\u00e9 \n\n \U0001f600 " * 3 + words(300) + " <s>\r\n \n").encode()


@pytest.mark.usefixtures("_short_blocks", "_all_cached")
@pytest.mark.parametrize(
    "content", [TEXT, b"\xef\xbb\xbf" + TEXT, TEXT[:-3], TEXT + b"caf\xe9 \xf0\x9f\x98 \xe2\x82"]
)
def test_a_long_text_is_the_one_read_at_once(
    tmp_path: Path, tokenizer: Any, content: bytes
) -> None:
    source = put(tmp_path / "a.txt", content)
    (plain,) = read_documents(source)
    long = long_document(source)
    assert long is not None
    assert "".join(block.text for block in long.blocks()) == plain.text
    assert sum(block.num_replaced for block in long.blocks()) == plain.num_replaced
    assert same(load([long], tokenizer, tmp_path), tokenise([plain], tokenizer))
    dropped = plain._replace(text=plain.text.removesuffix("\n"))
    assert same(
        load([long.without_final_newline()], tokenizer, tmp_path), tokenise([dropped], tokenizer)
    )


@pytest.mark.usefixtures("_short_blocks")
def test_offsets_in_a_long_text_are_those_of_the_file(tmp_path: Path) -> None:
    source = put(tmp_path / "a.txt", TEXT + b"\xff" + TEXT).model_copy(update={"errors": "strict"})
    long = long_document(source)
    assert isinstance(long, LongDocument)
    with pytest.raises(DataEncoding, match=rf"byte {len(TEXT)} \(0xff\)"):
        list(long.blocks())
    long = long_document(put(tmp_path / "b.txt", TEXT + b"\0"))
    assert isinstance(long, LongDocument)
    with pytest.raises(DataEncoding, match=f"byte {len(TEXT)} is NUL"):
        list(long.blocks())


@pytest.mark.usefixtures("_short_blocks")
def test_only_large_text_files_are_long(tmp_path: Path) -> None:
    assert long_document(put(tmp_path / "a.txt", b"short")) is None
    source = put(tmp_path / "b.txt", TEXT)
    assert long_document(source) is not None
    assert long_document(source.model_copy(update={"detokenise": "wikitext"})) is None
    assert long_document(JsonlData(kind="jsonl", path="nowhere")) is None


@pytest.mark.parametrize("text", ["a", "\u00e9", "\u20ac", "\U0001f600"])
def test_a_character_is_cut_in_no_place(text: str) -> None:
    encoded = text.encode()
    for kept in range(1, len(encoded)):
        assert num_cut_bytes(b"abc" + encoded[:kept]) == kept
    assert num_cut_bytes(b"abc" + encoded) == 0
    for broken in (b"", b"\x80", b"abc\x80\x80\x80\x80", b"\xff", b"\xc0", b"\xf5\x80"):
        assert num_cut_bytes(broken) == 0


# Runs


@pytest.mark.usefixtures("_short_blocks")
@pytest.mark.parametrize("convention", ["lm-eval", "llama.cpp"])
def test_a_run_has_the_same_figure_with_the_cache_as_without(
    tmp_path: Path, tiny: Path, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    spec = make_spec(
        tiny,
        data={"kind": "text", "path": str(path)},
        scoring={"convention": convention, "window": 32},
        cache_dir=str(tmp_path / "cache"),
    )
    cached = [run_here(spec, tmp_path / str(n)) for n in range(2)]
    assert len(list((tmp_path / "cache/tokens").glob("*.tokens"))) == 1
    monkeypatch.setattr(long_text, "LONG_BYTES", 1 << 20)
    plain = run_here(spec, tmp_path / "plain")
    for result in cached:
        assert result.perplexity == plain.perplexity
        assert result.plan == plain.plan
        assert result.data_digest == plain.data_digest
