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
        self._file = path.open("a+b", buffering=0)
        self._drop_torn_line()
        self.path = path
        self.last_seq = self._find_last_seq()
        self.begin_offset = self._file.seek(0, os.SEEK_END)
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
        """Add one report; with `sync` it is on the disk when this returns."""
        self._file.write(line + b"\n")
        if sync:
            os.fsync(self._file.fileno())

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

    def _drop_torn_line(self) -> None:
        """Cut off what a process killed while it wrote has left."""
        self._file.seek(0)
        content_size = 0
        for line in self._file:
            if line.endswith(b"\n"):
                content_size += len(line)
        self._file.truncate(content_size)

    def _find_last_seq(self) -> int:
        self._file.seek(0)
        last = b""
        for line in self._file:
            last = line
        return int(json.loads(last)["seq"]) if last else 0
