"""The demonstration's server: a real one, in a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from app.cli.client import Client
from app.cli.demo_inputs import DemoError

_HOST = "127.0.0.1"
_READY_WITHIN_S = 60.0
_STOPPED_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.05
_CLOCK_TOLERANCE_S = 2.0
_NUM_LOG_LINES = 20


@dataclass(frozen=True)
class DemoServer:
    """A running server. Pid and start time together name one process for ever."""

    pid: int
    create_time: float
    url: str

    @property
    def stop_command(self) -> str:
        """What a shell needs to stop it."""
        return f"kill {self.pid}"

    def process(self) -> psutil.Process | None:
        """Return the process while it runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) < _CLOCK_TOLERANCE_S
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        return process if same and alive else None

    def stop(self) -> None:
        """Ask it to stop, and make it where it doesn't."""
        process = self.process()
        if process is None:
            return
        try:
            process.terminate()
            try:
                process.wait(_STOPPED_WITHIN_S)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(_STOPPED_WITHIN_S)
        except psutil.NoSuchProcess:
            return


def find_running(state_dir: Path) -> DemoServer | None:
    """Return the server that an earlier demonstration left running on this state."""
    try:
        written = json.loads((state_dir / "server.json").read_text(encoding="utf-8"))
        server = DemoServer(**written)
    except (OSError, ValueError, TypeError):
        return None
    return server if server.process() is not None else None


def start(state_dir: Path, *, port: int, settings: Mapping[str, str]) -> DemoServer:
    """Start `python -m app` and return once it is ready.

    Args:
        state_dir: its state; `server.log` and `server.json` are written there too.
        port: where to listen; 0 takes a free port.
        settings: more settings by name, without their prefix.

    Raises:
        DemoError: the port is taken, the server ended, or it did not get ready in time.
    """
    port = _reserve(port)
    log_path = state_dir / "server.log"
    ours = {"HOST": _HOST, "PORT": str(port), "STATE_DIR": str(state_dir), **settings}
    environment = {k: v for k, v in os.environ.items() if not k.upper().startswith("ASSAY_")}
    environment |= {f"ASSAY_{name}": value for name, value in ours.items()}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "app",
            ],  # -P: the installed app, not a folder named so here
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal reaches us alone: the job is cancelled before the server ends.
            start_new_session=True,
        )
    server = DemoServer(
        process.pid, psutil.Process(process.pid).create_time(), f"http://{_HOST}:{port}"
    )
    try:
        (state_dir / "server.json").write_text(json.dumps(asdict(server)), encoding="utf-8")
        _await_ready(process, server, log_path)
    except BaseException:
        server.stop()
        raise
    return server


def _reserve(port: int) -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            msg = f"port {port} is taken ({error.strerror}): leave out --port to take a free one"
            raise DemoError(msg) from error
        return int(probe.getsockname()[1])


def _await_ready(process: subprocess.Popen[bytes], server: DemoServer, log_path: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    with Client(server.url) as client:
        while not client.is_ready():
            if process.poll() is not None:
                msg = f"the server ended with exit code {process.returncode}"
                raise DemoError(_with_log(msg, log_path))
            if time.monotonic() > deadline:
                msg = f"the server was not ready within {_READY_WITHIN_S:.0f} s"
                raise DemoError(_with_log(msg, log_path))
            time.sleep(_LOOK_EVERY_S)


def _with_log(message: str, log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join((f"{message}; the end of {log_path}:", *lines[-_NUM_LOG_LINES:]))
