"""The demonstration: its server first, then all of it on the real model."""

import socket
from pathlib import Path

import pytest

from app.cli import demo_server
from app.cli.demo_inputs import DemoError


def test_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"exit code 2; the end of .*\nASSAY_CPU_SLOTS: "):
        demo_server.start(tmp_path, port=0, settings={"CPU_SLOTS": "many"})


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoError, match=f"port {port} is taken"):
            demo_server.start(tmp_path, port=port, settings={})
