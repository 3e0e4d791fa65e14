"""A real server in a process of its own, and a look at the processes of its launches."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

READY_S = 30.0
POLL_S = 0.05


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(
    look: Callable[[], T | None], *, within_s: float, what: str, poll_s: float = POLL_S
) -> T:
    """Return what `look` gives once it gives something true.

    Raises:
        AssertionError: it did not in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            msg = f"not within {within_s} s: {what}"
            raise AssertionError(msg)
        time.sleep(poll_s)


def launch_processes(state_dir: Path, within: str = "") -> dict[int, str]:
    """Pid and command line of every process that belongs to a launch of this state directory.

    Found by the working directory as well as by the marker, so that a process without it counts.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            cwd = str((entry / "cwd").readlink())
            command = (entry / "cmdline").read_bytes()
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        runs = str(state_dir.resolve() / "runs" / within)
        is_ours = cwd.startswith(runs) or f"{runs}/".encode() in command
        marked = b"ASSAY_LAUNCH_ID=" in environ and cwd.startswith(str(state_dir.resolve()))
        if (is_ours or (marked and not within)) and stat.rpartition(")")[2].split()[0] not in "ZX":
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


class Server:
    """`python -m app` on a port and a state directory that stay the same over restarts."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """Take the folder for everything, and settings without their prefix."""
        self.port = free_port()
        self.state_dir = folder / "state"
        self.log = folder / "server.log"
        for name in ("models", "data"):
            (folder / name).mkdir(exist_ok=True)
        self.env = {
            **os.environ,
            "ASSAY_PORT": str(self.port),
            "ASSAY_STATE_DIR": str(self.state_dir),
            "ASSAY_MODEL_ROOTS": str(folder / "models"),
            "ASSAY_DATA_ROOTS": str(folder / "data"),
            "ASSAY_CPU_SLOTS": "4",
            **{f"ASSAY_{name.upper()}": value for name, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=20)

    def start(self) -> None:
        """Start and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app"], env=self.env, stdout=log, stderr=log
            )
        wait_for(self._is_ready, within_s=READY_S, what=f"server ready:\n{self.log_tail()}")

    def _is_ready(self) -> bool:
        process = self.process
        assert process is not None
        assert process.poll() is None, f"the server ended:\n{self.log_tail()}"
        try:
            return self.http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=10)

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=20)
        self.http.close()

    def log_tail(self) -> str:
        """The end of the server's log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def submit(self, request: dict[str, Any]) -> str:
        """Submit and return the job's id."""
        response = self.http.post("/v1/jobs", json=request)
        assert response.status_code == httpx.codes.ACCEPTED, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as it is now."""
        response = self.http.get(f"/v1/jobs/{job_id}")
        assert response.status_code == httpx.codes.OK, response.text
        body: dict[str, Any] = response.json()
        return body

    def wait_state(self, job_id: str, *states: str, within_s: float = 60) -> dict[str, Any]:
        """Wait until the job is in one of the states; an end in another one is an error."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            if job["state"] in states:
                return job
            assert not job["is_terminal"], f"{job}\n{self.attempt_log(job)}\n{self.log_tail()}"
            return None

        return wait_for(look, within_s=within_s, what=f"{states}; {self.job(job_id)}")

    def attempt_log(self, job: dict[str, Any]) -> str:
        """The end of the log of the job's current attempt."""
        path = self.state_dir / "runs" / job["id"] / str(job["attempt"]) / "log.txt"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def processes(self) -> dict[int, str]:
        """What runs of its jobs' launches."""
        waiting = set(launch_processes(self.state_dir, within=".warm"))
        every = launch_processes(self.state_dir)
        return {pid: command for pid, command in every.items() if pid not in waiting}
