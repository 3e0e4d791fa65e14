"""How a launch ends by itself, and what is told about it."""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.launchers.base import Alive, NotStarted
from tests.e2e.launchers.conftest import Run
from tests.support import fake_agent

NewRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("option", "exit_code", "signal_number"),
    [
        pytest.param("--exit-code=0", 0, None, id="success"),
        pytest.param("--exit-code=1", 1, None, id="failure"),
        pytest.param("--exit-code=137", 137, None, id="a-code-that-looks-like-a-signal"),
        pytest.param("--die-by=9", None, signal.SIGKILL, id="killed"),
        pytest.param("--die-by=11", None, signal.SIGSEGV, id="crashed"),
    ],
)
async def test_reason_of_the_end(
    new_run: NewRun, option: str, exit_code: int | None, signal_number: int | None
) -> None:
    run = new_run("--num-lines=3", option)
    assert await run.look() == NotStarted()
    await run.start()
    ended = await run.end()
    assert (ended.exit_code, ended.signal, ended.stopped) == (exit_code, signal_number, False)
    assert ended.log_tail == ("line 0", "line 1", "line 2")
    assert timedelta(0) <= datetime.now(UTC) - ended.ended_at < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("program", "exit_code", "reason"),
    [
        pytest.param("/nowhere/python", 127, "No such file or directory", id="absent"),
        pytest.param("/", 126, "Permission denied", id="not-executable"),
        pytest.param("nul\0", 126, "Invalid argument", id="no-name"),
    ],
)
async def test_program_that_cannot_be_started(
    new_run: NewRun, program: str, exit_code: int, reason: str
) -> None:
    run = new_run(argv=(program, "-m", "evaluator"))
    await run.start()
    ended = await run.end()
    assert ended.exit_code == exit_code
    assert ended.root_cause == f"cannot start {program!r}: {reason}"


async def test_environment_is_complete_and_carries_the_launch(new_run: NewRun) -> None:
    run = new_run(argv=("/usr/bin/env",), env={"ONLY": "this"})
    await run.start()
    ended = await run.end()
    assert set(ended.log_tail) == {"ONLY=this", f"ASSAY_LAUNCH_ID={run.ref.launch_id}"}


async def test_leftovers_of_an_agent_that_ends_are_killed(new_run: NewRun) -> None:
    # They hold the pipe of the log open, ignore SIGTERM, and two of them left their parents.
    run = new_run("--ranks=2", "--depth=1", "--daemon", "--scrubbed", "--ignore-term",
                  "--exit-code=3")  # fmt: skip
    await run.start()
    started_at = time.monotonic()
    ended = await run.end()
    assert (ended.exit_code, ended.stopped) == (3, False)
    assert len(list(run.run_dir.glob("pids/*"))) == 9
    assert time.monotonic() - started_at < 10


async def test_last_of_many_lines_is_kept(new_run: NewRun) -> None:
    run = new_run("--num-lines=10000", "--exit-code=0")
    await run.start()
    ended = await run.end()
    assert ended.log_tail == tuple(f"line {number}" for number in range(9950, 10_000))
    assert run.log == b"".join(b"line %d\n" % number for number in range(10_000))


async def test_output_of_any_kind_becomes_text(new_run: NewRun) -> None:
    run = new_run("--garbage", "--exit-code=1")
    await run.start()
    tail = (await run.end()).log_tail
    assert tail == (
        "x" * 1999 + "…",
        "\ufffd\ufffd not UTF-8 \ufffd(",
        "nul  and  bell",
        "red text",
        "100%",
        "Größe 漢字",
    )
    assert run.log == fake_agent.GARBAGE


async def test_full_disk_for_the_log_does_not_hurt_the_launch(new_run: NewRun) -> None:
    run = new_run("--num-lines=1000", "--exit-code=0")
    run.run_dir.mkdir()
    (run.run_dir / "log.txt").symlink_to("/dev/full")
    await run.start()
    ended = await run.end()
    assert ended.exit_code == 0
    assert ended.log_tail[-1] == "line 999"


async def test_exit_record_waits_for_the_disk(new_run: NewRun) -> None:
    run = new_run("--exit-code=0")
    obstacle = run.run_dir / "exit.json.tmp"
    obstacle.mkdir(parents=True)
    await run.start()
    await run.until(lambda: run.leftovers() == [run.supervisor_pid])
    assert await run.look() == Alive()
    obstacle.rmdir()
    assert (await run.end()).exit_code == 0


async def test_files_are_for_the_owner_only(new_run: NewRun) -> None:
    run = new_run("--num-lines=1", "--exit-code=0", env={"SECRET": "value"})
    await run.start()
    await run.end()
    for name in ("launch.json", "supervisor.json", "log.txt", "exit.json"):
        assert (run.run_dir / name).stat().st_mode & 0o777 == 0o600, name
    assert not list(run.run_dir.glob("*.tmp"))


async def test_flood_is_capped_and_costs_little(new_run: NewRun) -> None:
    run = new_run("--flood", log_max_bytes=2_000_000)
    await run.start()
    await run.until(lambda: (run.run_dir / "log-latest.txt").exists())
    before = cpu_s(run.supervisor_pid)
    started_at = time.monotonic()
    await asyncio.sleep(2)  # a load is measured over a time
    share = (cpu_s(run.supervisor_pid) - before) / (time.monotonic() - started_at)
    assert share < 0.25
    assert rss_bytes(run.supervisor_pid) < 20e6
    assert (run.run_dir / "log-latest.txt").stat().st_size <= 1_000_000
    await run.stop()
    ended = await run.end()
    assert ended.log_tail[-2:] == ("y", "last words")
    log = run.log
    assert 1_400_000 < len(log) <= 2_000_000
    head, marker, tail = log.partition(b" bytes of the log are left out here]\n")
    assert head.startswith(b"y\ny\n")
    assert marker
    assert tail.startswith(b"y\n")
    assert tail.endswith(b"last words\n")
    assert int(head.rpartition(b"[")[2]) > 1_000_000
    assert not (run.run_dir / "log-latest.txt").exists()
    assert json.loads((run.run_dir / "exit.json").read_text())["stopped"] is True


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
