"""What becomes of documents before they are tokenised: first, sample, errors, detokenise, join."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.contract.data import InlineData, JsonlData, Sample
from evaluator.data import read_documents, usual_join
from evaluator.data.detokenise import tighten, wikitext
from evaluator.data.document import Document
from evaluator.data.selection import join_documents, sample_documents
from tests.support.runs import write_jsonl


def read(documents: list[str], **fields: Any) -> list[Document]:
    source = InlineData.model_validate({"kind": "inline", "documents": documents, **fields})
    return list(read_documents(source))


def texts(documents: list[str], **fields: Any) -> list[str]:
    return [document.text for document in read(documents, **fields)]


def test_first_takes_from_the_start() -> None:
    assert texts(["a", "b", "c"], first=2) == ["a", "b"]
    assert texts(["a"], first=5) == ["a"]


def drawn(num_all: int, num: int, seed: int) -> list[int]:
    documents = (Document(str(n), "") for n in range(num_all))
    sample = Sample(num_documents=num, seed=seed)
    return [int(document.text) for document in sample_documents(documents, sample)]


def test_a_sample_is_fixed_by_its_seed_and_keeps_the_order() -> None:
    # By hand: sort range(10) by sha256(b"assay-sample-1\0" + seed and index, 8 bytes each, little).
    assert drawn(10, 3, 0) == [1, 6, 8]
    for seed in range(20):
        small, large = drawn(50, 7, seed), drawn(50, 20, seed)
        assert small == sorted(set(small))
        assert len(small) == 7
        assert set(small) < set(large)
    assert drawn(50, 7, 1) != drawn(50, 7, 2)


def test_a_sample_of_more_than_there_is_takes_all() -> None:
    assert drawn(4, 4, 3) == drawn(4, 9, 3) == [0, 1, 2, 3]
    assert drawn(0, 3, 0) == []


def test_every_document_is_drawn_equally_often() -> None:
    counts = Counter(n for seed in range(2000) for n in drawn(10, 3, seed))
    # 600 each; the standard deviation is sqrt(2000 * 0.3 * 0.7) = 20.5.
    assert all(520 < counts[n] < 680 for n in range(10))


def test_a_sample_is_drawn_from_the_first() -> None:
    documents = [str(n) for n in range(40)]
    sample = {"num_documents": 5, "seed": 4}
    taken = texts(documents, first=10, sample=sample)
    assert taken == texts(documents[:10], sample=sample)


def test_documents_are_joined_with_the_text_between_them() -> None:
    (joined,) = read(["a", "", "b"], join="\n\n")
    assert joined.text == joined.counted == "a\n\n\n\nb"
    assert joined.place == "3 documents from data.documents[0] on, joined"
    assert texts(["a", "b"], join="") == ["ab"]
    assert read(["a"], join="\n") == read(["a"])
    assert list(join_documents([], "\n")) == []


def test_the_usual_join_is_that_of_request_or_known_set() -> None:
    assert usual_join(InlineData(kind="inline", documents=("a",))) is None
    assert usual_join(InlineData(kind="inline", documents=("a",), join="")) == ""


def test_half_pairs_are_replaced_and_counted_on_request(tmp_path: Path) -> None:
    def read_lines(*documents: str, **fields: Any) -> list[Document]:
        path = write_jsonl(tmp_path / "a.jsonl", [{"text": document} for document in documents])
        source = JsonlData.model_validate({"kind": "jsonl", "path": str(path), **fields})
        return list(read_documents(source))

    (found,) = read_lines("a\ud800b\udfff\U0001f600", errors="replace")
    assert found.text == "a\ufffdb\ufffd\U0001f600"
    assert found.num_replaced == 2
    (joined,) = read_lines("\ud800", "x", "\udc00\ufffd", errors="replace", join=" ")
    assert (joined.text, joined.num_replaced) == ("\ufffd x \ufffd\ufffd", 2)


@pytest.mark.parametrize(
    ("published", "readable"),
    [
        ("the players ' bench", "the players' bench"),
        ("well @-@ known 1 @,@ 000 or 3 @.@ 5", "well-known 1,000 or 3.5"),
        ("so : it ; is . here ! now ? yes , no", "so: it; is. here! now? yes, no"),
        ("( see note ) [ 1 ] { x }", "(see note) [1] {x}"),
        ('he said " go on " and " stop "', 'he said "go on" and "stop"'),
        ("a ' quoted ' word", "a 'quoted' word"),
        (
            " = Title = \n = = Part = = \n = = = Sub = = = \n",
            " = Title =\n== Part ==\n=== Sub ===\n",
        ),
        ("at 20 \u00b0 C", "at 20\u00b0C"),
        ("line \n \n next", "line\n\nnext"),
        ("a N b", "a 1 b"),
        ("Anna 's book", "Anna's book"),
        ("open ( never closed", "open ( never closed"),
        ("", ""),
    ],
)
def test_wikitext_is_made_readable(published: str, readable: str) -> None:
    assert wikitext(published) == readable


def test_bytes_and_words_are_counted_on_the_published_text() -> None:
    (found,) = read(["1 @,@ 000 ."], detokenise="wikitext")
    assert (found.text, found.counted) == ("1,000 .", "1 @,@ 000 .")
    (joined,) = read(["a @-@ b", "c"], detokenise="wikitext", join="\n \n")
    # The text between documents is no part of what was published with spaces.
    assert (joined.text, joined.counted) == ("a-b\n \nc", "a @-@ b\n \nc")


@pytest.mark.parametrize("pair", ["()", "[]", "{}", '""', "''"])
@given(text=st.text("()[]{}\"'\n \u2003ax", max_size=40))
def test_pairs_are_tightened_as_the_expression_says(pair: str, text: str) -> None:
    opening, closing = map(re.escape, pair)
    inside = rf"{opening}\s*([^{closing}]*?)\s*{closing}"
    expected = re.sub(inside, lambda found: pair[0] + found[1] + pair[1], text)
    assert tighten(text, *pair) == expected


def test_many_open_brackets_take_linear_time() -> None:
    # A search from each bracket to the end would be 2.5e11 steps.
    text = "(" * 500_000
    assert wikitext(text) == text
