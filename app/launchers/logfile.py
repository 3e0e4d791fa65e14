"""The log of an agent: capped on disk, and read for the sentence that says why the launch failed.

When an agent writes more than it may, its first lines (what was started, with which versions) and
its last ones (the error) are kept, and one line between them says how much is missing. The file
only ever grows, so that a reader who follows it by offset never has to go back.
Standard library only, because the supervisor imports it.
"""

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from app.launchers.rundir import latest_log

TAIL_BYTES = 512 * 1024
"""Newest output that is kept in memory."""
MARKER_BYTES = 100
"""Room for the line that says how much is missing."""
LAST_LINES_BYTES = 128 * 1024
"""What of it is read for the last lines and the root cause."""
NUM_TAIL_LINES = 50
LINE_MAX_CHARS = 2000

_ANSI_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_ROOT_CAUSE = "Root Cause (first observed failure)"


class CappedLog:
    """Writes one file. A full disk loses lines, never the launch."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._tail_bytes = min(max_bytes // 2, TAIL_BYTES)
        self._head_bytes = max(0, max_bytes - self._tail_bytes - MARKER_BYTES)
        self._latest_path = latest_log(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o600)
        self._seen_bytes = 0
        self._written_bytes = 0
        self._head_is_open = True
        self._latest_is_due = False
        self._tail = bytearray()

    def write(self, chunk: bytes) -> None:
        """Take output of the launch."""
        self._seen_bytes += len(chunk)
        self._tail += chunk
        if len(self._tail) > 2 * TAIL_BYTES:  # twice, so that it is moved rarely
            del self._tail[: -(TAIL_BYTES + MARKER_BYTES)]
        if self._head_is_open:
            room = self._head_bytes - self._written_bytes
            self._written_bytes += self._append(chunk[:room])
            self._head_is_open = self._written_bytes == self._seen_bytes
        self._latest_is_due = not self._head_is_open

    def write_latest(self) -> None:
        """Show the newest output in a file of its own when the log is full."""
        if not self._latest_is_due:
            return
        temporary = self._latest_path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a convenience; the launch matters more
            temporary.write_bytes(self._tail[-self._tail_bytes :])
            temporary.replace(self._latest_path)
        self._latest_is_due = False

    def close(self) -> tuple[str, ...]:
        """Write what is still owed and return the last lines."""
        missing_bytes = self._seen_bytes - self._written_bytes
        if missing_bytes:
            rest = bytes(self._tail[-missing_bytes:])
            if missing_bytes > self._tail_bytes + MARKER_BYTES:
                rest = rest[-self._tail_bytes :]
                rest = rest[rest.find(b"\n", 0, LINE_MAX_CHARS) + 1 :]  # begin with a whole line
                dropped = f"\n[{missing_bytes - len(rest)} bytes of the log are left out here]\n"
                rest = dropped.encode() + rest
            self._append(rest)
        with contextlib.suppress(OSError):
            os.fsync(self.fd)
        os.close(self.fd)
        self._latest_path.unlink(missing_ok=True)
        return clean_lines(bytes(self._tail[-LAST_LINES_BYTES:]))

    def _append(self, data: bytes) -> int:
        """Append as much as the disk takes; returns the number of bytes."""
        num_written = 0
        with contextlib.suppress(OSError):
            while num_written < len(data):
                num_written += os.write(self.fd, data[num_written:])
        return num_written


def clean_lines(data: bytes, max_lines: int | None = None) -> tuple[str, ...]:
    """Make text of raw output: valid, no colours or control characters, lines of bounded length.

    Of a progress bar, which returns to the start of its line, only the last state is kept.

    Args:
        data: bytes as they were written.
        max_lines: how many of the last lines to return; None for all.
    """
    lines = data.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    if max_lines is not None:
        lines = lines[-max_lines:]
    return tuple(_clean(line) for line in lines) if data else ()


def _clean(line: str) -> str:
    last_state = line.rstrip("\r").rpartition("\r")[2]
    text = _CONTROL.sub("", _ANSI_SEQUENCE.sub("", last_state[: 2 * LINE_MAX_CHARS]))
    return text if len(text) <= LINE_MAX_CHARS else text[: LINE_MAX_CHARS - 1] + "…"


def find_root_cause(lines: Sequence[str]) -> str | None:
    """The failure that came first, from the summary that torchrun prints at its end."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_ROOT_CAUSE)]
    if not starts:
        return None
    summary = lines[starts[-1] + 1 :]
    fields: dict[str, str] = {}
    for line in summary:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    try:
        rank = int(fields["rank"].split()[0])
        exit_code = int(fields["exitcode"].split()[0])
    except (KeyError, IndexError, ValueError):
        return None
    if exit_code < 0:
        return f"rank {rank} was killed by {describe_signal(-exit_code)}"
    message = _exception_line(summary)
    return f"rank {rank} exited with code {exit_code}" + (f": {message}" if message else "")


def describe_signal(number: int) -> str:
    """A signal with its name, for example `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _exception_line(summary: Sequence[str]) -> str | None:
    """First line of the exception below a traceback, which is indented more than it."""
    in_traceback = False
    for line in summary:
        if in_traceback and line[:2].isspace() and not line[:3].isspace():
            return line.strip()
        in_traceback = in_traceback or "Traceback (most recent call last)" in line
    return None
