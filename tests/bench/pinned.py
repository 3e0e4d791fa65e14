"""A real server on one core; its database and whoever asks it are on the others."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import SecretStr

from app.db import Database
from app.ids import hash_token, new_id, new_token
from app.jobs.repository import load_job, move, utcnow
from app.jobs.transitions import JobEvent
from app.models import Attempt
from app.settings import Settings
from tests.support.postgres import postgres_server
from tests.support.server import Server


@contextmanager
def database_url(kind: str) -> Iterator[str | None]:
    """URL of an empty database; null for the server's own SQLite."""
    if kind == "sqlite":
        yield None
        return
    with postgres_server() as url:
        yield url


@dataclass(frozen=True)
class Pinned:
    """A server and its database."""

    server: Server
    settings: Settings
    """Those of the server, for whoever looks into its database."""
    process: psutil.Process

    def cpu_s(self) -> float:
        """CPU time that the server has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def database(self) -> Database:
        """A way into the server's database."""
        return Database(self.settings.sqlalchemy_url)

    async def launch(self, database: Database) -> tuple[str, str]:
        """Submit a job and claim it as the dispatcher does; id and token of the attempt."""
        request = {
            "model": {"kind": "folder", "path": "tiny"},
            "data": {"kind": "text", "path": "text.txt"},
        }
        job_id, token = self.server.submit(request), new_token()
        async with database.write() as session:
            job = await load_job(session, job_id, lock=True)
            job.attempt, job.attempts_left, job.started_at = 1, 0, utcnow()
            attempt = Attempt(
                id=new_id("att"), job_id=job_id, number=1, launch_id=new_id("lnc"),
                token_hash=hash_token(token), gpus=[], created_at=utcnow(),
            )  # fmt: skip
            session.add(attempt)
            await session.flush()
            move(session, job, JobEvent.CLAIM)
        return attempt.id, token


@contextmanager
def pinned_server(folder: Path, kind: str) -> Iterator[Pinned]:
    """Run a server on the first core; this process and a PostgreSQL keep to the others."""
    for name in ("models/tiny", "data"):
        (folder / name).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "models/tiny" / name).write_text("{}")
    (folder / "data/text.txt").write_text("text")
    cores = sorted(os.sched_getaffinity(0))
    first, others = cores[:1], cores[1:] or cores
    os.sched_setaffinity(0, others)
    try:
        with database_url(kind) as url:
            more = {} if url is None else {"database_url": url}
            server = Server(folder, worker="false", **more)
            server.start()
            try:
                assert server.process is not None
                process = psutil.Process(server.process.pid)
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, first)
                settings = Settings(
                    state_dir=server.state_dir,
                    database_url=None if url is None else SecretStr(url),
                )
                yield Pinned(server, settings, process)
            finally:
                server.stop()
    finally:
        os.sched_setaffinity(0, cores)


def start_s(folder: Path, url: str | None) -> tuple[float, int]:
    """Seconds from starting a server to `/readyz`, and its resident bytes then."""
    more = {} if url is None else {"database_url": url}
    folder.mkdir()
    server = Server(folder, **more)
    began = time.monotonic()
    server.start()
    took_s = time.monotonic() - began
    assert server.process is not None
    resident_bytes = psutil.Process(server.process.pid).memory_info().rss
    server.stop()
    return took_s, resident_bytes
