"""A stop ends everything of its launch, whatever it does, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from app.launchers.base import Alive
from tests.e2e.launchers.conftest import Run, is_running

NewRun = Callable[..., Run]

CASES = [
    pytest.param(("--ranks=2",), 3, id="ranks-in-their-own-sessions"),
    pytest.param(("--ranks=1", "--depth=3"), 5, id="three-generations"),
    pytest.param(("--ranks=2", "--daemon"), 5, id="orphans"),
    pytest.param(("--ranks=1", "--scrubbed"), 3, id="orphan-without-marker"),
]


@pytest.mark.parametrize(("options", "num_processes"), CASES)
async def test_polite_launch_ends_by_sigterm(
    new_run: NewRun, options: tuple[str, ...], num_processes: int
) -> None:
    run = new_run(*options, grace_s=20)
    await run.start()
    await run.ready(num_processes)
    started_at = time.monotonic()
    await run.stop()
    ended = await run.end()
    assert time.monotonic() - started_at < 10
    assert (ended.exit_code, ended.signal, ended.stopped) == (1, None, True)
    assert ended.log_tail == ("last words",)


@pytest.mark.parametrize(("options", "num_processes"), CASES)
async def test_launch_that_ignores_sigterm_is_killed_after_its_grace(
    new_run: NewRun, options: tuple[str, ...], num_processes: int
) -> None:
    run = new_run(*options, "--ignore-term", grace_s=1)
    await run.start()
    await run.ready(num_processes)
    started_at = time.monotonic()
    await run.stop()
    await run.stop()
    ended = await run.end()
    assert 1 <= time.monotonic() - started_at < 1 + 5
    assert (ended.exit_code, ended.signal, ended.stopped) == (None, signal.SIGKILL, True)
    await run.stop()
    assert await run.look() == ended


async def test_line_of_processes_that_start_another_and_end(new_run: NewRun) -> None:
    code = """
import os, time
end = time.monotonic() + 20
for _ in range(3):
    if os.fork() == 0:
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.001)
        os._exit(0)
print("ready", flush=True)
time.sleep(20)
"""
    run = new_run(argv=(sys.executable, "-S", "-c", code), grace_s=0.1)
    await run.start()
    await run.until(lambda: run.log == b"ready\n")
    await run.stop()
    started_at = time.monotonic()
    await run.end()
    assert time.monotonic() - started_at < 5
    assert run.leftovers() == []


async def test_stop_before_the_start(new_run: NewRun) -> None:
    run = new_run("--ranks=1")
    await run.stop()
    await run.start()
    ended = await run.end()
    assert (ended.exit_code, ended.signal, ended.stopped) == (None, None, True)
    assert not (run.run_dir / "pids").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_to_the_supervisor_is_a_stop(new_run: NewRun, number: signal.Signals) -> None:
    run = new_run("--ranks=1")
    await run.start()
    await run.ready(2)
    os.kill(run.supervisor_pid, number)
    ended = await run.end()
    assert (ended.exit_code, ended.stopped) == (1, True)


async def test_hang_up_does_not_end_the_supervisor(new_run: NewRun) -> None:
    run = new_run("--ranks=1")
    await run.start()
    await run.ready(2)
    os.kill(run.supervisor_pid, signal.SIGHUP)
    await run.stop()
    assert (await run.end()).exit_code == 1


async def test_others_stay_alive(new_run: NewRun) -> None:
    other = new_run("--ranks=1")
    await other.start()
    run = new_run("--ranks=1", "--ignore-term", grace_s=0.2)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        await run.start()
        others = await other.ready(2)
        await run.ready(2)
        await run.stop()
        await run.end()
        assert await run.launcher.sweep(run.ref) == 0
        assert stranger.poll() is None
        assert all(is_running(process) for process in others)
        assert await other.look() == Alive()
        stranger.kill()
    await other.stop()
    await other.end()


async def test_no_child_of_the_server_is_left(new_run: NewRun) -> None:
    children = {child.pid for child in psutil.Process().children()}
    run = new_run("--ranks=1")
    await run.start()
    await run.ready(2)
    assert {child.pid for child in psutil.Process().children()} <= children
    await run.stop()
    await run.end()
    assert {child.pid for child in psutil.Process().children()} <= children
