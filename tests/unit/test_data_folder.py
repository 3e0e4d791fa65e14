import os
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from evaluator.contract.data import DataSource, FolderData
from evaluator.data import read_documents
from evaluator.data.document import Document
from evaluator.errors import DataEncoding, DataInvalid, DataNotFound

SOURCE: TypeAdapter[DataSource] = TypeAdapter(DataSource)


def read(folder: Path, pattern: str = "*.txt") -> list[Document]:
    return list(read_documents(FolderData(kind="folder", path=str(folder), pattern=pattern)))


def texts(folder: Path, pattern: str = "*.txt") -> list[str]:
    return [document.text for document in read(folder, pattern)]


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or path.name)
    return path


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a/z.txt",
        "a/b/c.txt",
        "a.txt",
        "Z.txt",
        "\u00e9.txt",
        "10.txt",
        "9.txt",
    ):
        put(tmp_path / name, name)
    expected = ["10.txt", "9.txt", "Z.txt", "a.txt", "a/b/c.txt", "a/z.txt", "b.txt", "\u00e9.txt"]
    assert texts(tmp_path) == expected
    assert [d.place for d in read(tmp_path)] == [str(tmp_path / name) for name in expected]


def test_the_pattern_says_which_names_count(tmp_path: Path) -> None:
    names = ("a.txt", "b.TXT", "c.md", "d.txt.gz", ".e.txt", ".hidden/f.txt", "txt")
    for name in names:
        put(tmp_path / name, name)
    assert texts(tmp_path) == ["a.txt"]
    assert texts(tmp_path, "*.[mM][dD]") == ["c.md"]
    assert texts(tmp_path, ".*.txt") == [".e.txt"]
    assert texts(tmp_path, "*") == ["a.txt", "b.TXT", "c.md", "d.txt.gz", "txt"]


def test_the_contract_takes_the_patterns_of_a_shell() -> None:
    for pattern in ("*.txt", "x0*", "*", "[!a]?.\u00e9"):
        found = SOURCE.validate_python({"kind": "folder", "path": "d", "pattern": pattern})
        assert isinstance(found, FolderData)
        assert found.pattern == pattern
    for pattern in ("../*", "a/b", "", "a\0b"):
        with pytest.raises(ValueError, match="pattern"):
            SOURCE.validate_python({"kind": "folder", "path": "d", "pattern": pattern})


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    secret = put(tmp_path / "secret.txt")
    put(tmp_path / "data/a.txt")
    link = tmp_path / "data/b.txt"
    for target in (secret, Path("../secret.txt")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(DataInvalid, match=r"b\.txt is a link that leads out of the folder"):
            read(tmp_path / "data")
    # Not one that merely begins with the same letters.
    put(tmp_path / "data2/c.txt")
    link.unlink()
    link.symlink_to(tmp_path / "data2/c.txt")
    with pytest.raises(DataInvalid, match="leads out"):
        read(tmp_path / "data")


def test_links_inside_are_read_and_folders_behind_links_are_not(tmp_path: Path) -> None:
    put(tmp_path / "data/a.txt", "one")
    (tmp_path / "data/b.txt").symlink_to("a.txt")
    put(tmp_path / "outside/c.txt")
    (tmp_path / "data/out").symlink_to(tmp_path / "outside")
    (tmp_path / "data/again").symlink_to(tmp_path / "data")
    assert texts(tmp_path / "data") == ["one", "one"]
    # The folder itself may be a link.
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert texts(tmp_path / "link") == ["one", "one"]


def test_a_link_to_nothing_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("gone.txt")
    with pytest.raises(DataInvalid, match=r"a\.txt is no file, or a link to nothing"):
        read(tmp_path)
    (tmp_path / "a.txt").unlink()
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(DataInvalid, match=r"b\.txt is no file"):
        read(tmp_path)


def test_no_folder_and_no_match_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"there is no folder .*gone"):
        read(tmp_path / "gone")
    with pytest.raises(DataNotFound, match="there is no folder"):
        read(put(tmp_path / "file"))
    with pytest.raises(DataNotFound, match=r"no file in .* matches '\*\.txt'; .*data\.pattern"):
        read(tmp_path)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(b"ab\xff")
    with pytest.raises(DataEncoding, match=r"b\.txt: byte 2 \(0xff\)"):
        read(tmp_path)
