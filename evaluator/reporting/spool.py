"""A rank's file of reports, one JSON object a line. It outlives the run; HTTP follows it."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self


class Lines(NamedTuple):
    """Whole lines of a spool, without their line ends."""

    lines: tuple[bytes, ...]
    next_offset: int


class Spool:
    """Append-only. A spool that is there already is continued: its reports are never lost."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _scan(path)
        # Unbuffered: a line is out of this process as soon as it is written.
        self._file = path.open("ab", buffering=0)
        self._file.truncate(whole.num_bytes)
        self.path = path
        self.last_seq = whole.last_seq
        """Number of the last report of an earlier process, 0 where there was none."""
        self.begin_offset = whole.num_bytes
        """Where this process starts to append."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, line: bytes, *, sync: bool) -> None:
        """Add one report; with `sync` it is on the disk when this returns.

        Raises:
            OSError: It can't be written, which leaves nothing of it; the error names the file.
        """
        end = os.fstat(self._file.fileno()).st_size
        rest = memoryview(line + b"\n")
        try:
            while rest:
                # On a disk that is nearly full it writes a part, and fails with the next one.
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def read_from(self, offset: int, *, max_lines: int, max_bytes: int) -> Lines:
        """Whole lines from `offset`; at least one where there is one, however long it is."""
        lines: list[bytes] = []
        with self.path.open("rb") as file:
            file.seek(offset)
            size = 0
            while len(lines) < max_lines:
                line = file.readline()
                size += len(line)
                if not line.endswith(b"\n") or (lines and size > max_bytes):
                    break
                lines.append(line[:-1])
                offset += len(line)
        return Lines(tuple(lines), offset)

    def close(self) -> None:
        """Close the file for appending; it can be read on."""
        self._file.close()


class _Whole(NamedTuple):
    """What of a spool is whole: all but a line that a killed process has left half written."""

    num_bytes: int
    last_seq: int


def _scan(path: Path) -> _Whole:
    num_bytes, last = 0, b""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    num_bytes += len(line)
                    last = line
    return _Whole(num_bytes, int(json.loads(last)["seq"]) if last else 0)
