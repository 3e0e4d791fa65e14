"""Tokens are made once, shared, and never trusted where they are damaged."""

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evaluator.errors import DataEncoding
from evaluator.text.token_cache import Entry, TokenisedText, cached_entry, entry_key


class Maker:
    """Makes an entry, and counts how often."""

    def __init__(self, *documents: list[int]) -> None:
        self.documents = documents
        self.num_calls = 0

    def __call__(self) -> Iterator[TokenisedText]:
        self.num_calls += 1
        for number, ids in enumerate(self.documents):
            halves = (np.asarray(ids[:1], np.int32), np.asarray(ids[1:], np.int32))
            yield TokenisedText(halves, lambda number=number: number + 1)  # type: ignore[misc]


def content(entry: Entry) -> tuple[list[list[int]], list[int]]:
    return [ids.tolist() for ids in entry.documents()], entry.num_words.tolist()


@pytest.mark.parametrize(
    "documents", [[], [[]], [[1, 2, 3]], [[], [7], [], [2**31 - 1, 0, 5], []], [[1], [2], [3], [4]]]
)
def test_an_entry_comes_back_as_it_was_made(tmp_path: Path, documents: list[list[int]]) -> None:
    make = Maker(*documents)
    first = cached_entry(tmp_path / "tokens", "key", make)
    second = cached_entry(tmp_path / "tokens", "key", make)
    expected = (documents, [n + 1 for n in range(len(documents))])
    assert content(first) == content(second) == expected
    assert first.ids_digest == second.ids_digest
    assert make.num_calls == 1
    assert sorted(p.name for p in (tmp_path / "tokens").iterdir()) == ["key.lock", "key.tokens"]


def test_an_entry_is_mapped_and_can_not_be_changed(tmp_path: Path) -> None:
    entry = cached_entry(tmp_path, "key", Maker([1, 2, 3]))
    (ids,) = entry.documents()
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 4


def damage(name: str, content: bytes) -> bytes:
    middle = len(content) // 2
    return {
        "bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "end": content[:-1] + bytes([content[-1] ^ 1]),
        "cut": content[:-8],
        "half": content[:middle],
        "longer": content + b"\0" * 8,
        "empty": b"",
        "other": b"no tokens at all" * 40,
    }[name]


@pytest.mark.parametrize("name", ["bit", "end", "cut", "half", "longer", "empty", "other"])
def test_a_damaged_entry_is_made_anew(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make = Maker([1, 2, 3], [4])
    cached_entry(tmp_path, "key", make)
    path = tmp_path / "key.tokens"
    path.write_bytes(damage(name, path.read_bytes()))
    assert content(cached_entry(tmp_path, "key", make))[0] == [[1, 2, 3], [4]]
    assert make.num_calls == 2
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "a damaged entry of the cache is replaced"
    ]


def test_an_entry_that_can_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    def make() -> Iterator[TokenisedText]:
        yield from Maker([1, 2])()
        raise DataEncoding("no text")

    with pytest.raises(DataEncoding):
        cached_entry(tmp_path, "key", make)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
    assert content(cached_entry(tmp_path, "key", Maker([5])))[0] == [[5]]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    own, other, old = (tmp_path / f"{n}.x.tmp" for n in ("key", "other", "old"))
    for path in (own, other, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cached_entry(tmp_path, "key", Maker([1]))
    # Another run may still be writing the one that is new.
    assert [path.exists() for path in (own, other, old)] == [False, True, False]


def test_two_at_once_make_one_entry(tmp_path: Path) -> None:
    make = Maker(*([n] for n in range(500)))
    start = threading.Barrier(3)
    found: list[Entry] = []

    def work() -> None:
        start.wait()
        found.append(cached_entry(tmp_path, "key", make))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.num_calls == 1
    assert content(found[0]) == content(found[1]) == content(found[2])


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    size_bytes = 0
    for number, key in enumerate("abc"):
        cached_entry(tmp_path, key, Maker([1, 2]))
        path = tmp_path / f"{key}.tokens"
        size_bytes = path.stat().st_size
        os.utime(path, (1000 + number, 1000 + number))
    held = cached_entry(tmp_path, "b", Maker())
    # Using `a` makes `c` the oldest, then `b`.
    os.utime(tmp_path / "b.tokens", (2000, 2000))
    cached_entry(tmp_path, "a", Maker())
    cached_entry(tmp_path, "d", Maker([3, 4]), max_bytes=3 * size_bytes)
    assert sorted(p.stem for p in tmp_path.glob("*.tokens")) == ["a", "b", "d"]
    cached_entry(tmp_path, "e", Maker([5, 6]), max_bytes=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.lock", "e.tokens"]
    # A run that has an entry mapped keeps it.
    assert content(held)[0] == [[1, 2]]


def test_keys_tell_apart_whatever_decides_ids() -> None:
    keys = [entry_key("a", "b"), entry_key("ab"), entry_key("b", "a"), entry_key("a", "b", "")]
    assert len(set(keys)) == 4
    assert entry_key("a", "b") == keys[0]


def test_who_waits_for_an_entry_goes_on_reporting(tmp_path: Path) -> None:
    make, waited = Maker([1, 2], [3]), threading.Event()
    with (tmp_path / "key.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threading.Thread(
            target=cached_entry, args=(tmp_path, "key", make), kwargs={"tick": waited.set}
        )
        waiting.start()
        assert waited.wait(timeout=60)
        assert make.num_calls == 0
    waiting.join()
    assert make.num_calls == 1


def test_who_makes_an_entry_reports_with_each_piece(tmp_path: Path) -> None:
    ticks: list[None] = []
    cached_entry(tmp_path, "key", Maker([1, 2], [3]), tick=lambda: ticks.append(None))
    assert len(ticks) == 4
