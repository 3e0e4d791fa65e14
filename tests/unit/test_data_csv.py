import csv
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evaluator.contract.data import CsvData
from evaluator.data import read_documents
from evaluator.data.document import Document
from evaluator.errors import DataEncoding, DataInvalid, EvaluatorError, FieldMissing


def read(path: Path, content: bytes | None = None, **fields: Any) -> list[Document]:
    if content is not None:
        path.write_bytes(content)
    return list(read_documents(CsvData(kind="csv", path=str(path), **fields)))


def texts(path: Path, content: bytes, **fields: Any) -> list[str]:
    return [document.text for document in read(path, content, **fields)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.csv"


def test_each_row_below_the_header_is_a_document(path: Path) -> None:
    content = b'id,text\r\n1,one\r\n2,"two, ""2"""\r\n\r\n3,\r\n4,"a\r\nb\nc"\r\n'
    assert texts(path, content) == ["one", 'two, "2"', "", "a\r\nb\nc"]
    places = [document.place for document in read(path)]
    assert places == [f"line {line} of {path}" for line in (2, 3, 5, 6)]
    assert texts(path, b"id,text\n1,last line without end") == ["last line without end"]
    assert texts(path, b"id,text\n") == []


def test_field_and_delimiter_are_the_requests(path: Path) -> None:
    assert texts(path, b"body\tn\na,b\t1\n", field="body", delimiter="\t") == ["a,b"]
    assert texts(path, "\ufefftext;n\n\u00e9;1\n".encode(), delimiter=";") == ["\u00e9"]


@pytest.mark.parametrize("delimiter", ["", '"', "\n", "\r", "\0", ",,"])
def test_a_delimiter_that_means_something_else_is_refused(delimiter: str) -> None:
    with pytest.raises(ValidationError):
        CsvData(kind="csv", path="a.csv", delimiter=delimiter)


def test_what_the_standard_library_writes_comes_back(path: Path) -> None:
    rows = ['"', ",", "a\nb", " spaces ", "\u2028", "'quoted'", '""', "x\r\ny", ""]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "text"])
        writer.writerows((n, row) for n, row in enumerate(rows))
    assert [document.text for document in read(path)] == rows


def test_a_field_above_the_librarys_own_limit_is_read(path: Path) -> None:
    text = "lorem ipsum, " * 20_000
    assert texts(path, f'text\n"{text}"\n'.encode()) == [text]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", FieldMissing, "line 1 of .* no field 'text', but no field at all"),
        (b"id,body\n1,a\n", FieldMissing, "line 1 of .*'id', 'body'; name it in data.field"),
        (b"text,text\na,b\n", DataInvalid, "line 1 of .* names the field 'text' 2 times"),
        (b"id,text\n1,a\n2,b,c\n", DataInvalid, "line 3 of .* has 3 fields and the header 2"),
        (b"id,text\n1\n", DataInvalid, "line 2 of .* has 1 fields and the header 2"),
        (b'text\n"a"b\n', DataInvalid, "begins on line 2 of .* is no CSV"),
        (b'text\na\n"b\nc\nd\n', DataInvalid, "begins on line 3 of .* is no CSV"),
        (b"text\na\rb\n", DataInvalid, "begins on line 2 of .* is no CSV"),
        (b"text\na\nb\0c\n", DataEncoding, "byte 8 is NUL"),
        (b"text\na\ncaf\xe9\n", DataEncoding, r"byte 10 \(0xe9\) is no UTF-8"),
    ],
    ids=["empty", "field", "twice", "more", "fewer", "quote", "open", "return", "nul", "latin-1"],
)
def test_bad_csv_names_the_line(
    path: Path, content: bytes, error: type[EvaluatorError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(path, content)


def test_replaced_bytes_are_counted_in_their_row(path: Path) -> None:
    content = b'text,\xff\n"a\n\xff\xfe",1\nb,2\nc\xc3,3\n'
    found = read(path, content, errors="replace")
    assert [(d.text, d.num_replaced) for d in found] == [
        ("a\n\ufffd\ufffd", 2),
        ("b", 0),
        ("c\ufffd", 1),
    ]


def test_carriage_returns_alone_are_told_in_our_words(path: Path) -> None:
    with pytest.raises(DataInvalid) as raised:
        read(path, b"id,text\r1,one\r2,two\r")
    assert str(raised.value) == (
        f"the row that begins on line 1 of {path} is no CSV: it has a carriage return outside of "
        "quotes that no line feed follows; convert the line ends of the file to LF or CRLF, or "
        "quote the field"
    )
    with pytest.raises(DataInvalid, match=r"begins on line 2 of .* carriage return"):
        read(path, b"text\none\rtwo\n")
    assert texts(path, b'text\n"one\rtwo"\n') == ["one\rtwo"]
