"""Token ids on disk, mapped into memory: tokenised once per node, shared by ranks and jobs.

An entry is named by the digest of the texts, the digest of the tokenizer, and what else decides
ids. It is written to a temporary file that is renamed when it is whole, under a lock that the
kernel releases however its holder ends; it ends with a digest of itself, and one that does not
hold is written anew. Entries that were not used for longest go when the folder is full; a run
that has one mapped keeps it.
"""

import errno
import fcntl
import hashlib
import logging
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.contract.launch import CACHE_LIMIT_BYTES
from evaluator.digests import IDS_START
from evaluator.text.pieces import Ids

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of an entry; another number makes old ones unused."""
STALE_S = 86_400.0
"""A temporary file as old as this belongs to a run that was killed."""

WAIT_S = 0.1
"""Between two looks at a lock that another holds."""

_SUFFIX = ".tokens"
_BLOCK_BYTES = 1 << 20
_COUNTS = struct.Struct("<QQ32s")
"""Documents, ids, and the digest of these: what stands before the digest of the file."""
_DIGEST_BYTES = 32
_ROW_BYTES = 3 * 8
"""Length, words and highest id of a document."""


class TokenisedText(NamedTuple):
    """What an entry is made of, one for each document."""

    ids: Iterable[Ids]
    """Pieces of the document's ids."""
    count_words: Callable[[], int]
    """Called after the ids were taken."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The ids of a data set."""

    ids: Ids
    """Of all documents, one after the other; mapped from the file."""
    lengths: NDArray[np.int64]
    """Of each document, in ids."""
    num_words: NDArray[np.int64]
    """Of each document."""
    highest: NDArray[np.int64]
    """Highest id of each document, 0 where it has none."""
    ids_digest: str
    """As `tokens.tokenise` makes it."""

    def documents(self) -> Iterator[Ids]:
        """Ids of each document; views, nothing is read."""
        begin = 0
        for length in self.lengths.tolist():
            yield self.ids[begin : begin + length]
            begin += length


def entry_key(*facts: str) -> str:
    """Name of the entry for digests and settings; what a library makes depends on its version."""
    known = (str(FORMAT), version("tokenizers"), version("transformers"), *facts)
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def cached_entry(
    folder: Path,
    key: str,
    make: Callable[[], Iterable[TokenisedText]],
    *,
    max_bytes: int = CACHE_LIMIT_BYTES,
    tick: Callable[[], None] = lambda: None,
) -> Entry:
    """The entry of a key; whoever comes first makes it, the others wait.

    Args:
        folder: Holds all entries.
        key: From `entry_key`.
        make: Tokenises the texts.
        max_bytes: Of all entries; the one of this key stays even if it alone is larger.
        tick: Called often while others are waited for, and for each text that is tokenised.

    Raises:
        OSError: The folder can't be written, or has no room.
    """
    path = folder / f"{key}{_SUFFIX}"
    found = _open(path)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock", tick):
            found = _open(path)
            if found is None:
                if path.exists():
                    logger.warning(
                        "a damaged entry of the cache is replaced", extra={"path": str(path)}
                    )
                logger.info("tokenising into the cache", extra={"path": str(path)})
                _make(path, lambda: _ticking(make(), tick))
                found = _open(path)
                _prune(folder, path, max_bytes)
    if found is None:
        msg = "the entry does not read back as it was written; check the disk"
        raise OSError(errno.EIO, msg, str(path))
    with suppress(OSError):  # gone already, or of another user
        os.utime(path)
    return found


@contextmanager
def _locked(path: Path, tick: Callable[[], None]) -> Iterator[None]:
    with path.open("wb") as file:
        while not _try_lock(file):
            tick()
            time.sleep(WAIT_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ticking(texts: Iterable[TokenisedText], tick: Callable[[], None]) -> Iterator[TokenisedText]:
    """The texts; `tick` is called for each piece of their ids."""
    for text in texts:
        yield text._replace(ids=_ticked(text.ids, tick))


def _ticked(pieces: Iterable[Ids], tick: Callable[[], None]) -> Iterator[Ids]:
    for ids in pieces:
        tick()
        yield ids


class _Writer:
    """Writes and digests."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)

    def finish(self) -> None:
        self._file.write(self._digest.digest())


def _make(path: Path, make: Callable[[], Iterable[TokenisedText]]) -> None:
    for leftover in path.parent.glob(f"{path.stem}.*.tmp"):
        leftover.unlink(missing_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            _write(file, make())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).rename(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _write(file: BinaryIO, texts: Iterable[TokenisedText]) -> None:
    writer = _Writer(file)
    lengths: list[int] = []
    num_words: list[int] = []
    highest: list[int] = []
    for text in texts:
        length = highest_id = 0
        for ids in text.ids:
            writer.write(ids.astype("<i4").tobytes())
            length += len(ids)
            highest_id = max(highest_id, int(ids.max(initial=0)))
        highest.append(highest_id)
        lengths.append(length)
        num_words.append(text.count_words())
    ids_digest = _digest_ids(file, lengths)
    # What follows is of 8 bytes each, and mapped where such numbers may stand.
    writer.write(b"\0" * (sum(lengths) % 2 * 4))
    for column in (lengths, num_words, highest):
        writer.write(np.asarray(column, dtype="<i8").tobytes())
    writer.write(_COUNTS.pack(len(lengths), sum(lengths), ids_digest))
    writer.finish()


def _digest_ids(file: BinaryIO, lengths: list[int]) -> bytes:
    """Read the ids back: each document's length goes before it, known only after its last piece."""
    digest = hashlib.sha256(IDS_START)
    file.seek(0)
    for length in lengths:
        digest.update(struct.pack("<Q", length))
        remaining = 4 * length
        while remaining > 0:
            block = file.read(min(_BLOCK_BYTES, remaining))
            digest.update(block)
            remaining -= len(block)
    file.seek(0, os.SEEK_END)
    return digest.digest()


def _open(path: Path) -> Entry | None:
    """The entry where it is there and as it was written."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            tail = _read_tail(file, size_bytes)
            if tail is None or not _is_whole(file, size_bytes):
                return None
            return _map(path, tail)
    except FileNotFoundError:
        return None


class _Tail(NamedTuple):
    num_documents: int
    num_ids: int
    ids_digest: bytes


def _read_tail(file: BinaryIO, size_bytes: int) -> _Tail | None:
    """The counts, where they fit the size of the file."""
    tail_bytes = _COUNTS.size + _DIGEST_BYTES
    if size_bytes < tail_bytes:
        return None
    file.seek(size_bytes - tail_bytes)
    tail = _Tail(*_COUNTS.unpack(file.read(_COUNTS.size)))
    fits = _columns_begin(tail.num_ids) + _ROW_BYTES * tail.num_documents + tail_bytes == size_bytes
    return tail if fits else None


def _is_whole(file: BinaryIO, size_bytes: int) -> bool:
    digest = hashlib.sha256()
    file.seek(0)
    remaining = size_bytes - _DIGEST_BYTES
    while remaining > 0 and (block := file.read(min(_BLOCK_BYTES, remaining))):
        digest.update(block)
        remaining -= len(block)
    return file.read(_DIGEST_BYTES) == digest.digest()


def _columns_begin(num_ids: int) -> int:
    return 4 * (num_ids + num_ids % 2)


def _map(path: Path, tail: _Tail) -> Entry:
    content = np.memmap(path, dtype=np.uint8, mode="r")
    begin = _columns_begin(tail.num_ids)
    end = begin + _ROW_BYTES * tail.num_documents
    columns = np.array(content[begin:end]).view("<i8").reshape(3, tail.num_documents)
    return Entry(
        # A plain array: slices of a memmap cost far more memory than those of an array.
        ids=np.asarray(content[: 4 * tail.num_ids]).view("<i4"),
        lengths=columns[0],
        num_words=columns[1],
        highest=columns[2],
        ids_digest=f"sha256:{tail.ids_digest.hex()}",
    )


def _prune(folder: Path, keep: Path, max_bytes: int) -> None:
    """Remove what was not used for longest until the rest fits, and what killed runs left."""
    used: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(OSError):  # another run removed it
            status = path.stat()
            if path.suffix == _SUFFIX:
                used.append((status.st_mtime, status.st_size, path))
            elif path.suffix == ".tmp" and status.st_mtime < time.time() - STALE_S:
                path.unlink()
    total_bytes = sum(size for _, size, _ in used)
    for _, size, path in sorted(used):
        if total_bytes <= max_bytes:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            total_bytes -= size
