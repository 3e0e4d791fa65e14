"""Known names, and the mirror that goes before the hub."""

import re
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import TypeAdapter

from evaluator.contract.data import DataSource, HubData, KnownData, KnownName
from evaluator.contract.known import KNOWN_SETS, KnownSet, expand, mirror_fault, mirror_files
from evaluator.data import read_documents, usual_join
from evaluator.data.document import Document
from evaluator.errors import DataNotFound, FieldMissing

SOURCE: TypeAdapter[DataSource] = TypeAdapter(DataSource)
WIKITEXT = "Salesforce/wikitext/wikitext-2-raw-v1"


def put(path: Path, *texts: str, field: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({field: list(texts)}), path)


def read(source: Any, mirror: Path) -> list[Document]:
    return list(read_documents(SOURCE.validate_python(source), mirror_dir=mirror))


def texts(source: Any, mirror: Path) -> list[str]:
    return [document.text for document in read(source, mirror)]


def hub(**fields: Any) -> HubData:
    return HubData.model_validate({"kind": "hub", "name": "acme/wiki", **fields})


def test_every_known_name_is_in_the_table_and_the_docs_repeat_it() -> None:
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w/-]+)` \|(.*)\|$", page, re.MULTILINE)
    told = {
        name: (hub_name, [cell.strip(" `") for cell in rest.split("|")])
        for name, hub_name, rest in rows
    }
    assert set(told) == set(KNOWN_SETS) == set(get_args(KnownName))
    for name, known in KNOWN_SETS.items():
        first = "" if known.first is None else str(known.first)
        join = "" if known.join is None else f'"{known.join}"'.replace("\n", r"\n")
        assert told[name] == (
            known.name,
            [known.config, known.split, known.field, first, join],
        )


def test_a_name_alone_is_a_known_set() -> None:
    source = SOURCE.validate_python("wikitext-2")
    assert source == KnownData(kind="known", name="wikitext-2")
    with pytest.raises(ValueError, match="'wikitext-2', 'wikitext-103', 'ptb', 'c4' or 'lambada'"):
        SOURCE.validate_python("wikitext-3")


def test_what_the_request_says_goes_before_the_usual() -> None:
    usual = expand(KnownData(kind="known", name="c4"))
    assert usual == KNOWN_SETS["c4"]
    said = {"first": 7, "join": "", "errors": "replace", "detokenise": "wikitext"}
    source = KnownData.model_validate({"kind": "known", "name": "c4", **said})
    changed = expand(source)
    assert changed.model_dump() == {**usual.model_dump(), **said}
    assert usual_join(source) == ""
    assert usual_join(KnownData(kind="known", name="c4")) == " "
    assert usual_join(KnownData(kind="known", name="lambada")) is None
    # A request that was stored and read again has all its nulls written out.
    stored = KnownData(kind="known", name="ptb")
    assert expand(KnownData.model_validate_json(stored.model_dump_json())) == KNOWN_SETS["ptb"]


def test_a_known_set_is_read_from_the_mirror(tmp_path: Path) -> None:
    put(tmp_path / WIKITEXT / "test-00000-of-00002.parquet", "", " = A = \n")
    put(tmp_path / WIKITEXT / "test-00001-of-00002.parquet", "b @-@ c\n")
    (joined,) = read("wikitext-2", tmp_path)
    assert joined.text == "\n\n = A = \n\n\nb @-@ c\n"
    assert joined.place.startswith("3 documents from row 1 of ")
    (tight,) = read({"kind": "known", "name": "wikitext-2", "detokenise": "wikitext"}, tmp_path)
    assert (tight.text, tight.counted) == ("\n\n = A =\n\n\nb-c\n", joined.text)
    put(
        tmp_path / "ptb-text-only/ptb_text_only/penn_treebank/test.parquet",
        "a",
        "b",
        field="sentence",
    )
    assert texts("ptb", tmp_path) == ["a b"]
    put(tmp_path / "EleutherAI/lambada_openai/default/test.parquet", "a", "b")
    assert texts("lambada", tmp_path) == ["a", "b"]


def test_c4_is_cut_as_the_papers_do(tmp_path: Path) -> None:
    put(tmp_path / "allenai/c4/en/validation-0.parquet", *(str(n) for n in range(1200)))
    assert texts("c4", tmp_path) == [" ".join(map(str, range(1100)))]
    source = {"kind": "known", "name": "c4", "sample": {"num_documents": 2}}
    assert len(texts(source, tmp_path)[0].split()) == 2


def test_any_hub_set_may_be_mirrored(tmp_path: Path) -> None:
    put(tmp_path / "acme/wiki/test.parquet", "no config")
    put(tmp_path / "acme/wiki/en/train-0.parquet", "train", field="body")
    assert texts(hub(), tmp_path) == ["no config"]
    assert texts(hub(config="en", split="train", field="body"), tmp_path) == ["train"]
    with pytest.raises(FieldMissing, match="no field 'text', but 'body'"):
        read(hub(config="en", split="train"), tmp_path)


def test_a_split_is_only_its_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "acme/wiki"
    for name in ("test-1", "test-0", "test_long", "tests", "test2", "train-test", "test.x"):
        put(folder / f"{name}.parquet")
    (folder / "test-2.json").touch()
    found = [path.name for path in mirror_files(tmp_path, hub())]
    assert found == ["test-0.parquet", "test-1.parquet"]
    assert mirror_files(tmp_path, hub(split="t.*")) == []


@pytest.mark.parametrize("config", ["..", "../other", "en/../..", ".git", "a\\b", "/etc"])
def test_no_config_leads_out_of_the_mirror(tmp_path: Path, config: str) -> None:
    put(tmp_path / "other/test.parquet", "secret")
    (tmp_path / "mirror/acme/wiki/en").mkdir(parents=True)
    (tmp_path / "mirror/acme/other").symlink_to(tmp_path / "other")
    assert mirror_files(tmp_path / "mirror", hub(config=config)) == []
    assert mirror_files(tmp_path / "mirror", hub(split="../../../other/test")) == []


def test_a_mirror_has_no_revisions(tmp_path: Path) -> None:
    put(tmp_path / "acme/wiki/test.parquet", "which?")
    assert mirror_files(tmp_path, hub(revision="v1.0")) == []
    assert len(mirror_files(tmp_path, hub())) == 1
    # Known sets name a revision because the hub keeps their Parquet files there.
    known = KnownSet(kind="hub", name="acme/wiki", revision="refs/convert/parquet")
    assert len(mirror_files(tmp_path, known)) == 1


def test_what_neither_mirror_nor_hub_has_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"Salesforce/wikitext \(test\).*mirror \(docs/data\.md"):
        read("wikitext-2", tmp_path)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("test.parquet",), None),
        (("test-00000-of-00001.parquet",), None),
        (("test-00000-of-00002-0a1b.parquet", "test-00001-of-00002-2c3d.parquet"), None),
        (("test-00000-of-00002.parquet",), "has 1 of 2 parts: part 00001 is missing"),
        (("test-00001-of-00002.parquet",), "part 00000 is missing"),
        (("test.parquet", "test-00000-of-00001.parquet"), "more than one copy"),
        (("test-old.parquet", "test.parquet"), "more than one copy"),
        (("test-old.parquet",), None),
        (
            ("test-00000-of-00001.parquet", "test-00000-of-00002.parquet"),
            "more than one copy",
        ),
        (
            ("test-00000-of-00002-0a.parquet", "test-00000-of-00002-0b.parquet"),
            "part 00001 is missing",
        ),
        (
            ("test-00000-of-00001-0a.parquet", "test-00000-of-00001-0b.parquet"),
            "a part twice: test-00000-of-00001-0a.parquet",
        ),
    ],
)
def test_a_mirror_must_have_one_whole_copy(names: tuple[str, ...], fault: str | None) -> None:
    found = mirror_fault([Path("mirror") / name for name in names])
    assert (found is None) if fault is None else (fault in str(found))
