"""Launches of the fake agent. No process of a test outlives it."""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.launchers import rundir
from app.launchers.base import Alive, Command, Ended, Launch, LaunchRef, Seen
from app.launchers.local import LocalLauncher
from tests.support import fake_agent

DEADLINE_S = 30.0


class Run:
    """One launch of a test, and what an observer without the launcher's knowledge sees of it."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.ref = launch.ref
        self.run_dir = launch.ref.run_dir
        self.launcher = LocalLauncher()

    async def start(self) -> None:
        await self.launcher.start(self.launch)

    async def look(self) -> Seen:
        return await self.launcher.look(self.ref)

    async def stop(self) -> None:
        await self.launcher.request_stop(self.ref)

    async def ready(self, num_processes: int) -> list[psutil.Process]:
        """Wait until so many processes of the agent's tree are up."""
        await self.until(lambda: len(list(self.run_dir.glob("pids/*"))) >= num_processes)
        return [psutil.Process(int(path.name.rpartition("-")[2])) for path in self._pid_files()]

    async def end(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Wait for the end; nothing may be left then."""
        await self.until(lambda: (self.run_dir / "exit.json").exists(), deadline_s)
        leftovers = self.leftovers()
        while isinstance(seen := await self.look(), Alive):
            await asyncio.sleep(0.01)
        assert [each for each in leftovers if each != self.supervisor_pid] == []
        assert isinstance(seen, Ended), seen
        return seen

    async def until(self, holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + deadline_s
        while not holds():
            if time.monotonic() > deadline:
                log = rundir.read_latest_log(self.run_dir).decode(errors="replace")
                pytest.fail(f"not within {deadline_s} s; left: {self.leftovers()}; log:\n{log}")
            await asyncio.sleep(0.02)

    @property
    def supervisor_pid(self) -> int:
        claim = rundir.read_claim(self.run_dir)
        assert claim is not None
        return claim.process.pid

    @property
    def log(self) -> bytes:
        return (self.run_dir / "log.txt").read_bytes()

    def leftovers(self) -> list[int]:
        """Pids of all that work in the run directory; the agent's processes never leave it."""
        return [
            process.pid
            for process in psutil.process_iter(["cwd"])
            if process.info["cwd"] == str(self.run_dir)
        ]

    def _pid_files(self) -> Iterator[Path]:
        return self.run_dir.glob("pids/*")


def is_running(process: psutil.Process) -> bool:
    """Whether this very process runs; a zombie does not."""
    try:
        is_there: bool = process.is_running()
        return is_there and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
async def new_run(tmp_path: Path) -> AsyncIterator[Callable[..., Run]]:
    """Make launches of the fake agent, or of another command."""
    runs: list[Run] = []

    def make(
        *options: str,
        argv: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        agents: int = 1,
        **settings: object,
    ) -> Run:
        agent = (sys.executable, fake_agent.__file__, *options)
        ref = LaunchRef(launch_id=secrets.token_hex(16), run_dir=tmp_path / f"run{len(runs)}")
        command = Command(argv=argv or agent, env=env or {})
        launch = Launch(ref=ref, agents=(command,) * agents, **settings)  # type: ignore[arg-type]
        runs.append(Run(launch))
        return runs[-1]

    yield make
    for run in runs:
        for pid in run.leftovers():
            psutil.Process(pid).kill()
        await run.until(lambda run=run: not run.leftovers())  # type: ignore[misc]
