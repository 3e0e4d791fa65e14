import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import TypeAdapter

from evaluator.contract.data import DataSource
from evaluator.data import READERS, hub, read_documents
from evaluator.errors import (
    DataEncoding,
    DataInvalid,
    DataNotFound,
    EvaluatorError,
    FieldMissing,
)

SOURCE: TypeAdapter[DataSource] = TypeAdapter(DataSource)


def read(kind: str, path: Path | None = None, **fields: Any) -> list[str]:
    if path is not None:
        fields["path"] = str(path)
    source = SOURCE.validate_python({"kind": kind, **fields})
    return [document.text for document in read_documents(source)]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_every_source_of_the_contract_has_a_reader() -> None:
    _, sources = SOURCE.json_schema()["anyOf"]
    kinds = set(sources["discriminator"]["mapping"])
    readers = {r.__name__.removesuffix("Data").lower() for r in READERS}
    # A known set becomes a hub data set, which a mirror may have, before it is read.
    assert readers - {"knownset", "mirrored"} == kinds - {"known"}


def test_a_text_file_is_one_document_as_it_is(tmp_path: Path) -> None:
    content = "Zeile eins\r\n\n  zwei \u2028 drei\n"
    assert read("text", written(tmp_path / "a.txt", content.encode())) == [content]
    assert read("text", written(tmp_path / "empty.txt", b"")) == [""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"text", mtime=0), r"byte 1 \(0x8b\) is no UTF-8; it is gzip"),
        ("text".encode("utf-16"), r"byte 0 \(0xff\) is no UTF-8; it is UTF-16"),
        ("text".encode("utf-16-be"), "byte 0 is NUL, so this is UTF-16 or no text"),
        (b"caf\xe9 au lait", r"byte 3 \(0xe9\) is no UTF-8; convert"),
        (b"cut short \xe2\x82", r"byte 10 \(0xe2\)"),
        (b"half a pair \xed\xa0\x80", r"byte 12 \(0xed\)"),
        (b"text\0more", "byte 4 is NUL"),
    ],
    ids=["gzip", "utf-16", "utf-16 without mark", "latin-1", "cut", "surrogate", "nul"],
)
def test_bytes_that_are_no_utf8_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = written(tmp_path / "a.txt", content)
    with pytest.raises(DataEncoding, match=message) as caught:
        read("text", path)
    assert str(path) in caught.value.message


def test_jsonl_takes_the_field_and_skips_blank_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "eins", "n": 1}), "", json.dumps({"text": ""}), "  "]
    path = written(tmp_path / "a.jsonl", "\n".join(lines).encode())
    assert read("jsonl", path) == ["eins", ""]
    content = written(tmp_path / "b.jsonl", b'{"content": "a\\u00e9\\n"}\n')
    assert read("jsonl", content, field="content") == ["a\u00e9\n"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', DataInvalid, "line 2 of .* is no JSON"),
        (b'{"text": "a"}\n\n["a"]\n', DataInvalid, "line 3 of .* is no JSON object but list"),
        (b"[" * 100_000, DataInvalid, "line 1 of .* is nested too deeply"),
        (b'{"n": ' + b"1" * 5000 + b"}", DataInvalid, "line 1 of .* has a number with too many"),
        (b'{"text": "a"}\n{"txt": "b", "id": 3}\n', FieldMissing, "line 2 of .*'txt', 'id'"),
        (b"{}\n", FieldMissing, "line 1 of .* no field at all"),
        (b'{"text": null}\n', FieldMissing, "field 'text' is no text but null"),
        (b'{"text": [1, 2, 3]}\n', FieldMissing, "field 'text' is no text but list"),
        (b'{"text": "a"}\n{"text": "\xe9"}\n', DataEncoding, r"byte 24 \(0xe9\)"),
    ],
    ids=["bad", "list", "deep", "digits", "field", "empty", "null", "numbers", "encoding"],
)
def test_bad_jsonl_names_the_line(
    tmp_path: Path, content: bytes, error: type[EvaluatorError], message: str
) -> None:
    path = written(tmp_path / "a.jsonl", content)
    with pytest.raises(error, match=message):
        read("jsonl", path)


def test_parquet_reads_over_row_groups(tmp_path: Path) -> None:
    texts = [f"row {n}" for n in range(2500)]
    table = pa.table({"id": list(range(2500)), "body": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    assert read("parquet", tmp_path / "a.parquet", field="body") == texts


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_reads_other_string_types(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["a", "b", "a"]).cast(kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read("parquet", tmp_path / "a.parquet") == ["a", "b", "a"]


def not_utf8() -> pa.Array:
    return pa.array([b"ok", b"caf\xe9"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"body": ["a"], "id": [1]}, FieldMissing, "no field 'text', but 'body', 'id'"),
        ({"text": ["a", None]}, FieldMissing, "row 2 of .* no text but null"),
        ({"text": [1, 2]}, FieldMissing, "row 1 of .* no text but int"),
        ({"text": not_utf8()}, DataEncoding, "row 2 of .* byte 3 of field 'text'"),
    ],
    ids=["field", "null", "numbers", "encoding"],
)
def test_bad_parquet_names_the_row(
    tmp_path: Path, columns: dict[str, Any], error: type[EvaluatorError], message: str
) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(error, match=message):
        read("parquet", tmp_path / "a.parquet")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", b"PAR1 and then nothing")
    with pytest.raises(DataInvalid, match="no readable Parquet file"):
        read("parquet", path)


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_a_path_that_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataNotFound, match=r"there is no file .*missing"):
        read(kind, tmp_path / "missing")
    with pytest.raises(DataNotFound, match="is no file"):
        read(kind, tmp_path)


def test_inline_documents_keep_their_order() -> None:
    assert read("inline", documents=["b", "", "a"]) == ["b", "", "a"]


def test_a_hub_name_that_is_a_folder_here_is_not_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wiki").mkdir()
    written(tmp_path / "wiki" / "test.jsonl", b'{"text": "private"}\n')
    with pytest.raises(DataNotFound, match="is a path on this machine"):
        read("hub", name="wiki")


def test_a_hub_data_set_that_can_not_be_had_is_named() -> None:
    with pytest.raises(DataNotFound, match=r"acme/nothing \(test\) at main can't be had"):
        read("hub", name="acme/nothing")


def test_hub_rows_become_documents() -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "id": [1, 2]})
    found = list(hub.documents(rows, "text", "acme/wiki"))
    assert [d.text for d in found] == ["a", "b"]
    assert found[1].place == "row 2 of acme/wiki"
    with pytest.raises(FieldMissing, match="row 1 of acme/wiki: there is no field 'body'"):
        list(hub.documents(rows, "body", "acme/wiki"))


@pytest.mark.parametrize(
    ("line", "name"),
    [('{"text": "a", "text": "b"}', "text"), ('{"text": "a", "m": {"n": 1, "n": 1}}', "n")],
)
def test_a_member_that_comes_twice_is_refused(tmp_path: Path, line: str, name: str) -> None:
    path = written(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{line}\n'.encode())
    with pytest.raises(DataInvalid, match=f"line 2 of .*: an object has the member '{name}' twice"):
        read("jsonl", path)
