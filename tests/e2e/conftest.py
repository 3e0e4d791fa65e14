"""A real server for each test; whatever it launched must be gone when the test ends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support import fake_python
from tests.support.server import Server, wait_for

ServerFactory = Callable[..., Server]


@pytest.fixture
def fake_interpreter(tmp_path: Path) -> Path:
    """An executable to launch with in place of python: runs without torch."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_python.__file__} "$@"\n')
    path.chmod(0o755)
    return path


def _is_idle(server: Server) -> bool:
    return not server.processes()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """Make servers that are stopped at the end, and check that nothing outlives them."""
    servers: list[Server] = []

    def make(**settings: str) -> Server:
        server = Server(tmp_path, stop_grace_seconds="2", **settings)
        servers.append(server)
        server.start()
        return server

    yield make
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        for server in servers:
            for job in server.http.get("/v1/jobs").json()["items"]:
                if not job["is_terminal"]:
                    server.http.post(f"/v1/jobs/{job['id']}/cancel")
            wait_for(partial(_is_idle, server), within_s=30, what="no process left")
