"""The disk under the state directory: whether it can be written to, and errors that say it is full.

SQLite reports a full disk as an error of its own, PostgreSQL as one with a code, and the operating
system as an errno.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError

FREE_MIN_BYTES = 32 * 1024 * 1024
"""With less free space than this the server is not ready: a job would soon fail for lack of it."""
_PROBE_BYTES = 4096
_FULL = frozenset(
    {("system", errno.ENOSPC), ("system", errno.EDQUOT), ("sqlite", sqlite3.SQLITE_FULL)}
)
_NOT_WRITTEN = frozenset(
    {("system", errno.EFBIG), ("system", errno.EIO), ("sqlite", sqlite3.SQLITE_IOERR_WRITE)}
)
_POSTGRESQL_FULL = ("postgresql", "53100")


class DiskRefuses(Exception):
    """The state directory can't be written to; the message names it and says why."""


def write_probe(folder: Path) -> None:
    """Write a small file in `folder`, flush it to the disk and remove it.

    Raises:
        OSError: one of the three failed.
    """
    path = folder / f".probe-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    finally:
        # The error of writing is the one to tell of, not that of a file that was never made.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def _check(folder: Path) -> None:
    try:
        write_probe(folder)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise DiskRefuses(describe(folder, error)) from error
    if free_bytes < FREE_MIN_BYTES:
        msg = (
            f"{free_bytes / 1e6:.0f} MB are free under the state directory {folder.absolute()}, "
            f"at least {FREE_MIN_BYTES / 1e6:.0f} MB are needed: make room"
        )
        raise DiskRefuses(msg)


class DiskProbe:
    """Checks the disk in a thread; a disk that hangs takes one thread, ask as often as you like."""

    def __init__(self, folder: Path) -> None:
        """Take the state directory."""
        self._folder = folder
        self._running: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Write for real and look at the free space; may be given up at any time.

        Raises:
            DiskRefuses: the folder can't be written to, or has too little space.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(_check, self._folder))
        await asyncio.shield(self._running)


def describe(folder: Path, error: OSError) -> str:
    """Say in a sentence that the state directory can't be written to."""
    known = disk_error(folder, error)
    return (
        known or f"the state directory {folder.absolute()} can't be written to ({error.strerror})"
    )


def disk_error(folder: Path, error: BaseException) -> str | None:
    """Return a sentence that names `folder` where the disk refused a write; null for other errors.

    Args:
        folder: the state directory.
        error: of the system, of a driver, or SQLAlchemy's around that.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    while cause is not None:
        code = _code(cause)
        if code in _FULL:
            return f"the disk of the state directory {folder.absolute()} is full: make room"
        if code in _NOT_WRITTEN:
            return (
                f"the state directory {folder.absolute()} can't be written to: see whether its "
                "disk is full or broken, or a limit on the size of files too low"
            )
        if code == _POSTGRESQL_FULL:
            return "the disk of the database server is full: make room there"
        cause = cause.__cause__
    return None


def _code(error: BaseException) -> tuple[str, object]:
    """Return an error's code, and whose code it is: their numbers overlap."""
    match error:
        case OSError():
            return "system", error.errno
        case sqlite3.Error():
            return "sqlite", getattr(error, "sqlite_errorcode", None)
    return "postgresql", getattr(error, "sqlstate", None)
