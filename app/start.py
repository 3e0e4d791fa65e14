"""What comes before the first request: the port, the state directory, its lock, the database.

Everything that may be refused here ends as a `StartError`, one sentence that names the place, the
value and the way out. It never holds a password.
"""

import asyncio
import difflib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from app.auth.access import Access
from app.db import Database
from app.disk import describe, disk_error, write_probe
from app.migrate import MigrationError, upgrade
from app.settings import Settings

EXIT_SETTINGS = 2
"""A setting can't be right, whatever the machine."""
EXIT_REFUSED = 4
"""The machine, the database or another server refuses."""
LOCK_FILE = "worker.lock"
DATABASE_WITHIN_SECONDS = 15.0

_DRIVERS = frozenset({"sqlite+aiosqlite", "postgresql+psycopg"})
_BACKLOG = 2048
_NOT_SETTINGS = frozenset({"ASSAY_SERVER", "ASSAY_TOKEN", "ASSAY_LAUNCH_ID"})
"""Ours, but of the command line and of the launches."""

_log = logging.getLogger(__name__)


class StartError(Exception):
    """The server can't start; the message is for whoever started it."""

    def __init__(self, message: str, exit_code: int = EXIT_REFUSED) -> None:
        """Take the sentence and the exit code of the process."""
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def listen(settings: Settings) -> Iterator[list[socket.socket]]:
    """Hold the port: nothing else is done for a server that would not get it.

    Connections wait until the server accepts them.

    Raises:
        StartError: the address is not this machine's, or the port is taken.
    """
    place = f"ASSAY_HOST={settings.host} ASSAY_PORT={settings.port}"
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            addresses = dict.fromkeys((family, address) for family, *_, address in found)
            sockets = [stack.enter_context(_bind(family, address)) for family, address in addresses]
        except OSError as error:
            reason, remedy = error.strerror, "choose another address"
            if error.errno == errno.EADDRINUSE:
                reason, remedy = "the port is in use", "stop what listens there, or choose another"
            elif error.errno == errno.EACCES:
                remedy = "choose a port above 1023"
            msg = f"can't listen at {place} ({reason}): {remedy}"
            raise StartError(msg) from error
        yield sockets


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    # The protocol is named, else asyncio leaves Nagle's algorithm on, and each answer whose body
    # follows its head waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        # At once: two that are bound and do not listen yet may share a port.
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def prepare_state_dir(folder: Path) -> None:
    """Make the state directory and see that it can be written to.

    Raises:
        StartError: it can't.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_probe(folder)
    except FileExistsError as error:
        msg = f"ASSAY_STATE_DIR={folder} is a file: name a folder, or a place for a new one"
        raise StartError(msg) from error
    except OSError as error:
        msg = f"ASSAY_STATE_DIR={folder}: {describe(folder, error)}"
        if disk_error(folder, error) is None:
            msg += "; name a folder that this user may write to"
        raise StartError(msg) from error


@contextmanager
def worker_lock(folder: Path) -> Iterator[None]:
    """Be the only server whose workers look after this state directory.

    The lock ends with the process, however that ends; launches do not inherit it.

    Raises:
        StartError: another server holds it.
    """
    path = folder / LOCK_FILE
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StartError(f"{path} can't be opened ({error.strerror}): see whose it is") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            msg = (
                f"a server (pid {holder}) runs the workers of ASSAY_STATE_DIR={folder} already: "
                "name another state directory, or set ASSAY_WORKER=false"
            )
            raise StartError(msg) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_database_url(settings: Settings) -> None:
    """Refuse a database that this server has no driver for.

    Raises:
        StartError: the URL can't be read, or names another database.
    """
    remedy = "use postgresql://user:password@host/database or sqlite:////path/to/file"
    try:
        url = make_url(settings.sqlalchemy_url)
    except (ArgumentError, ValueError) as error:
        # Without the error's own words: they repeat the URL, password and all.
        raise StartError(f"ASSAY_DATABASE_URL is not a URL: {remedy}", EXIT_SETTINGS) from error
    if url.drivername not in _DRIVERS:
        msg = f"ASSAY_DATABASE_URL: {url.drivername}:// is not supported: {remedy}"
        raise StartError(msg, EXIT_SETTINGS)
    if url.drivername.startswith("sqlite") and url.database in (None, "", ":memory:"):
        msg = f"ASSAY_DATABASE_URL: SQLite in memory can't be shared: {remedy}"
        raise StartError(msg, EXIT_SETTINGS)


async def prepare_database(database: Database, folder: Path) -> None:
    """Reach the database and bring it to the newest migration.

    Raises:
        StartError: it does not answer, or refuses.
    """
    place = f"the database {_place(database.engine.url)}"
    remedy = "see that it runs and check ASSAY_DATABASE_URL"
    if database.is_sqlite:
        remedy = "check the file and who owns it"
    try:
        async with asyncio.timeout(DATABASE_WITHIN_SECONDS):
            await database.ping()
    except TimeoutError as error:
        msg = f"{place} does not answer within {DATABASE_WITHIN_SECONDS:g} s: {remedy}"
        raise StartError(msg) from error
    except (DBAPIError, OSError) as error:
        raise _refusal(error, f"{place} can't be reached", remedy, database, folder) from error
    try:
        await upgrade(database)
    except MigrationError as error:
        raise StartError(f"{place} can't be migrated: {error}") from error
    except (DBAPIError, OSError) as error:
        raise _refusal(error, f"{place} can't be migrated", remedy, database, folder) from error


async def refuse_open_door(settings: Settings, access: Access) -> None:
    """Refuse to be reachable from other machines while there is no token to ask for.

    Raises:
        StartError: the server would be.
    """
    if settings.is_loopback or settings.allow_unauthenticated or await access.needs_token():
        return
    msg = (
        f"ASSAY_HOST={settings.host} is reachable from other machines and there is no token to "
        "ask for: make one with `assay token create --first`, listen on 127.0.0.1, or set "
        "ASSAY_ALLOW_UNAUTHENTICATED=true behind a proxy that authenticates"
    )
    raise StartError(msg, EXIT_SETTINGS)


def _refusal(
    error: Exception, what: str, remedy: str, database: Database, folder: Path
) -> StartError:
    if (refused := disk_error(folder, error)) is not None:
        return StartError(refused)
    reason = str(error.orig if isinstance(error, DBAPIError) else error).strip()
    password = database.engine.url.password
    if password:
        reason = reason.replace(str(password), "***")
    return StartError(f"{what} ({reason.splitlines()[0] if reason else type(error)}): {remedy}")


def _place(url: URL) -> str:
    """Return where it is: without user, password and options."""
    scheme = url.drivername.partition("+")[0]
    if scheme == "sqlite":
        return str(url.database)
    port = f":{url.port}" if url.port else ""
    return f"{scheme}://{url.host or ''}{port}/{url.database or ''}"


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """Log the variables that look like settings and are none, misspelt ones for instance."""
    known = {f"ASSAY_{name.upper()}" for name in Settings.model_fields}
    for name in sorted(environment):
        if not name.upper().startswith("ASSAY_") or name.upper() in known | _NOT_SETTINGS:
            continue
        close = difflib.get_close_matches(name.upper(), known, n=1)
        _log.warning(
            "this environment variable is no setting, it has no effect",
            extra={"variable": name, "did_you_mean": close[0] if close else None},
        )


def warn_of_missing_roots(settings: Settings) -> None:
    """Log the folders for models and texts that do not exist: they may be made later."""
    for variable, roots in (
        ("ASSAY_MODEL_ROOTS", settings.model_roots),
        ("ASSAY_DATA_ROOTS", settings.data_roots),
    ):
        for root in roots:
            if not root.is_dir():
                _log.warning(
                    "this folder to read from does not exist",
                    extra={"variable": variable, "path": str(root.absolute())},
                )
