"""Texts that are odd or broken: what is scored as it stands, what is refused, what is replaced."""

import bz2
import gzip
import json
import lzma
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import TypeAdapter

from evaluator.contract.data import DataSource
from evaluator.contract.states import FailureReason
from evaluator.data import read_documents
from evaluator.data.document import Document
from evaluator.data.encoding import decode_utf8, replace_invalid
from evaluator.errors import DataEncoding, DataInvalid, DataNotFound

SOURCE: TypeAdapter[DataSource] = TypeAdapter(DataSource)
MARK = "\ufeff".encode()


def documents(kind: str, path: Path, content: bytes | None = None, **fields: Any) -> list[Document]:
    if content is not None:
        path.write_bytes(content)
    source = SOURCE.validate_python({"kind": kind, "path": str(path), **fields})
    return list(read_documents(source))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", MARK + b"a\r\nb"),
        ("jsonl", MARK + b'{"text": "a\\r\\nb"}\r\n'),
        ("csv", MARK + b'text\r\n"a\r\nb"\r\n'),
    ],
)
def test_a_mark_at_the_start_is_dropped_and_line_ends_stay(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    (found,) = documents(kind, tmp_path / "a", content)
    assert found.text == found.counted == "a\r\nb"
    assert found.num_replaced == 0


def test_only_one_mark_at_the_start_is_dropped(tmp_path: Path) -> None:
    (found,) = documents("text", tmp_path / "a", MARK + MARK + b"a" + MARK)
    assert found.text == "\ufeffa\ufeff"
    (second,) = documents("jsonl", tmp_path / "b", b'\n{"text": "\xef\xbb\xbfa"}')
    assert second.text == "\ufeffa"
    (third,) = documents("csv", tmp_path / "c", b"text\n\xef\xbb\xbfa\n")
    assert third.text == "\ufeffa"


def test_offsets_count_the_mark(tmp_path: Path) -> None:
    with pytest.raises(DataEncoding, match=r"byte 5 \(0xff\)"):
        documents("text", tmp_path / "a", MARK + b"ab\xff")


def archive(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.txt", "text " * 100)
    return path.read_bytes()


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "csv"])
def test_what_is_no_text_is_refused_whatever_is_asked(
    tmp_path: Path, kind: str, errors: str
) -> None:
    contents = {
        "gzip": gzip.compress(b"text\n" * 10, mtime=0),
        "UTF-16": 'text\n{"text": "a"}\n'.encode("utf-16"),
        "zip": archive(tmp_path / "a.zip"),
        "zstd": b"\x28\xb5\x2f\xfd\x04\x00",
        "UTF-32": 'text\n{"text": "a"}\n'.encode("utf-32"),
        "bzip2": bz2.compress(b"text\n" * 10),
        "xz": lzma.compress(b"text\n" * 10),
    }
    for name, content in contents.items():
        with pytest.raises(DataEncoding, match=f"is no UTF-8; it is .*{name}") as caught:
            documents(kind, tmp_path / "a", content, errors=errors)
        assert caught.value.reason is FailureReason.DATA_ENCODING


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize(
    ("kind", "content", "offset"),
    [("text", b"one\ntwo\0", 7), ("csv", b"text\none\0\n", 8), ("jsonl", b'{"text": "a\0"}', 11)],
)
def test_nul_in_a_text_file_is_refused(
    tmp_path: Path, kind: str, content: bytes, offset: int, errors: str
) -> None:
    with pytest.raises(DataEncoding, match=f"byte {offset} is NUL, so this is UTF-16 or no text"):
        documents(kind, tmp_path / "a", content, errors=errors)


def test_nul_that_was_written_on_purpose_is_a_character(tmp_path: Path) -> None:
    (found,) = documents("jsonl", tmp_path / "a", b'{"text": "a\\u0000b"}')
    assert found.text == "a\0b"
    parquet.write_table(pa.table({"text": ["a\0b"]}), tmp_path / "b")
    assert documents("parquet", tmp_path / "b")[0].text == "a\0b"


@pytest.mark.parametrize(
    ("content", "text", "num_replaced"),
    [
        (b"caf\xe9 au lait", "caf\ufffd au lait", 1),
        (b"\x80\x81", "\ufffd\ufffd", 2),
        # One for a sequence that was cut, three for the bytes of half a pair: as Unicode advises.
        (b"cut \xe2\x82", "cut \ufffd", 1),
        (b"half \xed\xa0\x80", "half \ufffd\ufffd\ufffd", 3),
        (b"\xf0\x9f\x98 then \xef\xbf\xbd", "\ufffd then \ufffd", 1),
        (b"\xe2\xef\xbf\xbd\xef", "\ufffd\ufffd\ufffd", 2),
        ("genuine \ufffd".encode(), "genuine \ufffd", 0),
    ],
)
def test_invalid_bytes_are_replaced_and_counted_on_request(
    tmp_path: Path, content: bytes, text: str, num_replaced: int
) -> None:
    (found,) = documents("text", tmp_path / "a", content, errors="replace")
    assert (found.text, found.num_replaced) == (text, num_replaced)
    assert replace_invalid(content) == (text, num_replaced)
    line = b'{"text": "' + content + b'"}\n'
    (found,) = documents("jsonl", tmp_path / "b", line, errors="replace")
    assert (found.text, found.num_replaced) == (text, num_replaced)


def test_invalid_bytes_of_parquet_are_replaced_on_request(tmp_path: Path) -> None:
    broken = pa.array([b"caf\xe9", b"ok"], pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"text": broken}), tmp_path / "a")
    parquet.write_table(pa.table({"text": broken.dictionary_encode()}), tmp_path / "b")
    for name in ("a", "b"):
        found = documents("parquet", tmp_path / name, errors="replace")
        assert [(d.text, d.num_replaced) for d in found] == [("caf\ufffd", 1), ("ok", 0)]


def test_the_message_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataEncoding, match=r"convert the file to UTF-8, or .* data\.errors"):
        documents("text", tmp_path / "a", b"caf\xe9")
    with pytest.raises(DataEncoding, match=r"a: byte 103 \(0xe9\)"):
        decode_utf8(b"caf\xe9", "a", offset=100)


def test_one_very_long_line_is_read(tmp_path: Path) -> None:
    # Large enough that anything quadratic would not end.
    text = "lorem ipsum \u00e9 " * 300_000
    (found,) = documents("text", tmp_path / "a", text.encode())
    assert found.text == text
    (found,) = documents("jsonl", tmp_path / "b", json.dumps({"text": text}).encode())
    assert found.text == text
    (found,) = documents("csv", tmp_path / "c", f"text\n{text}\n".encode())
    assert found.text == text


def test_many_empty_documents_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": ""}\n' * 100_000 + b"broken\n")
    source = SOURCE.validate_python({"kind": "jsonl", "path": str(path)})
    stream = iter(read_documents(source))
    # Those before the broken line come out before it is looked at.
    assert sum(not document.text for document in islice(stream, 100_000)) == 100_000
    with pytest.raises(DataInvalid, match="line 100001 of"):
        next(stream)


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_file_without_a_byte_is_no_error_of_its_own(tmp_path: Path, kind: str) -> None:
    found = documents(kind, tmp_path / "a", b"")
    # prepare.py refuses a data set without a token, and says how many documents were empty.
    assert [document.text for document in found] == ([""] if kind == "text" else [])


def test_a_path_that_the_system_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="can't be read: File name too long"):
        documents("text", tmp_path / ("x" * 300))
