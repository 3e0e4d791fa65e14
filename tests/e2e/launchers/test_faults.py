"""Supervisors and servers that die, race or mistake others for themselves."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.launchers import processes, rundir
from app.launchers.base import Alive, LaunchError, LaunchRef, NotStarted, Vanished
from app.launchers.local import LocalLauncher
from tests.e2e.launchers.conftest import Run, is_running

NewRun = Callable[..., Run]


async def test_many_starts_give_one_supervisor(new_run: NewRun) -> None:
    run = new_run("--ranks=1")
    await asyncio.gather(*(run.start() for _ in range(5)))
    await run.ready(2)
    await run.start()
    names = [psutil.Process(pid).cmdline() for pid in run.leftovers()]
    assert sum("app.launchers.supervisor" in name for name in names) == 1
    assert len(list(run.run_dir.glob("pids/*"))) == 2
    await run.stop()
    await run.end()
    await run.start()
    assert run.leftovers() == []


async def test_run_directory_belongs_to_one_launch(new_run: NewRun) -> None:
    run = new_run("--exit-code=0")
    await run.start()
    ended = await run.end()
    other = replace(run.ref, launch_id=secrets.token_hex(16))
    with pytest.raises(LaunchError, match="belongs to another launch"):
        await run.launcher.start(replace(run.launch, ref=other))
    assert await run.launcher.look(other) == Vanished()
    assert await run.look() == ended


async def test_death_of_the_supervisor_is_seen_and_swept(new_run: NewRun) -> None:
    run = new_run("--ranks=2", "--depth=2", "--daemon", "--ignore-term")
    await run.start()
    members = await run.ready(9)
    agent = next(each for each in members if "--role" not in " ".join(each.cmdline()))
    os.kill(run.supervisor_pid, signal.SIGKILL)
    await run.until(lambda: run.supervisor_pid not in run.leftovers())
    assert await run.look() == Vanished()
    await run.until(lambda: not is_running(agent))  # the kernel does this
    assert await run.launcher.sweep(run.ref) == 8
    assert run.leftovers() == []
    assert await run.launcher.sweep(run.ref) == 0
    assert await run.look() == Vanished()


async def test_sweep_ends_a_supervisor_that_hangs(new_run: NewRun) -> None:
    run = new_run("--ranks=1", "--scrubbed", "--ignore-term")
    await run.start()
    await run.ready(3)
    os.kill(run.supervisor_pid, signal.SIGSTOP)
    await run.stop()
    assert await run.look() == Alive()
    assert await run.launcher.sweep(run.ref) == 4
    assert run.leftovers() == []
    assert await run.look() == Vanished()


@pytest.mark.parametrize(
    "disguise",
    [
        pytest.param(lambda it: it._replace(start_ticks=it.start_ticks - 1), id="reused-pid"),
        pytest.param(lambda it: it._replace(boot_id="another boot"), id="after-a-reboot"),
    ],
)
async def test_stranger_with_the_pid_of_a_supervisor(
    tmp_path: Path, disguise: Callable[[processes.ProcessId], processes.ProcessId]
) -> None:
    launcher = LocalLauncher()
    ref = LaunchRef(launch_id=secrets.token_hex(16), run_dir=tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        identity = processes.identify(stranger.pid)
        assert rundir.claim(tmp_path, rundir.Claim(ref.launch_id, identity))
        assert await launcher.look(ref) == Alive()
        (tmp_path / "supervisor.json").unlink()
        assert rundir.claim(tmp_path, rundir.Claim(ref.launch_id, disguise(identity)))
        assert await launcher.look(ref) == Vanished()
        await launcher.request_stop(ref)
        assert await launcher.sweep(ref) == 0
        assert stranger.poll() is None
        stranger.kill()


async def test_damaged_files_are_not_taken_for_news(new_run: NewRun) -> None:
    run = new_run("--exit-code=0")
    await run.start()
    await run.end()
    (run.run_dir / "exit.json").write_text("{")
    assert await run.look() == Vanished()
    (run.run_dir / "supervisor.json").write_text("")
    assert await run.look() == Vanished()
    (run.run_dir / "supervisor.json").unlink()
    assert await run.look() == NotStarted()


async def test_supervisor_that_cannot_start(new_run: NewRun) -> None:
    run = new_run("--exit-code=0")
    (run.run_dir / "log.txt").mkdir(parents=True)
    with pytest.raises(LaunchError, match="IsADirectoryError"):
        await run.start()
    assert run.leftovers() == []


async def test_launch_outlives_a_killed_server(new_run: NewRun) -> None:
    run = new_run("--ranks=1")
    code = """
asyncio.run(launcher.start(launch))
print("started", flush=True)
asyncio.run(asyncio.sleep(60))
"""
    with server_process(run, code) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"started\n"
        os.killpg(server.pid, signal.SIGKILL)
    await run.ready(2)
    assert await run.look() == Alive()
    await run.stop()
    assert (await run.end()).exit_code == 1


async def test_server_without_an_init_leaves_no_zombie(new_run: NewRun) -> None:
    run = new_run("--ranks=2", "--exit-code=0")
    code = """
import ctypes, time
# Like the first process of a container, it is handed the supervisor.
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
async def watch():
    await launcher.start(launch)
    while (seen := await launcher.look(ref)) == Alive():
        await asyncio.sleep(0.01)
    print(type(seen).__name__, flush=True)
asyncio.run(watch())
time.sleep(60)
"""
    with server_process(run, code) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"Ended\n"
        children = psutil.Process(server.pid).children()
        server.kill()
    assert children == []


def server_process(run: Run, code: str) -> subprocess.Popen[bytes]:
    """A process that imports the launcher, knows the launch, and runs the code."""
    preamble = f"""
import asyncio, pathlib
from app.launchers.base import Alive, Command, Launch, LaunchRef
from app.launchers.local import LocalLauncher
ref = LaunchRef(launch_id={run.ref.launch_id!r}, run_dir=pathlib.Path({str(run.run_dir)!r}))
launcher = LocalLauncher()
launch = Launch(ref=ref, agents=(Command(argv={run.launch.agents[0].argv!r}, env={{}}),))
"""
    command = [sys.executable, "-c", preamble + code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)


def test_supervisor_loads_the_standard_library_only() -> None:
    code = "import sys, app.launchers.supervisor; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True,
        cwd=Path(__file__).parents[3],
    ).stdout.split()  # fmt: skip
    assert "app.launchers.supervisor" in loaded
    assert not {"pydantic", "asyncio", "threading", "subprocess", "dataclasses"} & set(loaded)
