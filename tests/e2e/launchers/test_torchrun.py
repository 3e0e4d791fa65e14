"""The same with the real torchrun, on ranks that use no collectives."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from app.launchers.torchrun import torchrun_commands
from tests.e2e.launchers.conftest import Run

NewRun = Callable[..., Run]

RANK = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("pids").mkdir(exist_ok=True)
pathlib.Path(f"pids/rank-{os.getpid()}").touch()
if os.environ["RANK"] == "1" and "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "die" not in sys.argv:
    time.sleep(60)
"""


def torchrun_of_a_script(tmp_path: Path, *arguments: str) -> tuple[str, ...]:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    (argv,) = torchrun_commands(sys.executable, 1, 2, tmp_path / "spec.json")
    assert argv[-3:] == ("-m", "evaluator", str(tmp_path / "spec.json"))
    return (*argv[:-3], str(script), *arguments)


async def test_ranks_that_ignore_sigterm_are_gone_after_the_grace(
    new_run: NewRun, tmp_path: Path
) -> None:
    run = new_run(argv=torchrun_of_a_script(tmp_path), grace_s=1, env=environment(tmp_path))
    await run.start()
    await run.ready(2)
    started_at = time.monotonic()
    await run.stop()
    ended = await run.end()
    assert time.monotonic() - started_at < 1 + 5
    assert ended.stopped


async def test_root_cause_names_the_rank(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run(argv=torchrun_of_a_script(tmp_path, "die"), env=environment(tmp_path))
    await run.start()
    ended = await run.end()
    assert (ended.exit_code, ended.stopped) == (1, False)
    assert ended.root_cause == "rank 1 was killed by signal 9 (SIGKILL)"
    assert not list(tmp_path.glob("tmp/torchelastic_*"))


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp"), "OMP_NUM_THREADS": "1"}
