"""`assay verify`: score some windows of a finished job again, where its run directory is at hand.

The scoring happens in a process of its own, because the command line never loads torch.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from app.cli.options import (
    EXIT_JOB,
    EXIT_OK,
    JobArgument,
    make_console,
    refuse,
    write_json,
)
from app.cli.render_checks import print_verdict
from evaluator.contract.env import SPEC_FILE, WINDOWS_FILE

_ANSWERS = frozenset({0, 1})
"""Exit codes of `evaluator.verify` that come with a verdict."""


def verify(
    job: JobArgument,
    state_dir: Annotated[
        Path,
        typer.Option(envvar="ASSAY_STATE_DIR", metavar="DIR", help="The server's state directory."),
    ] = Path(".assay"),
    windows: Annotated[int, typer.Option(min=1, help="Most windows to score again.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the windows.")] = 0,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    python: Annotated[
        str,
        typer.Option(
            envvar="ASSAY_PYTHON", metavar="PATH", help="The interpreter that has the evaluator."
        ),
    ] = sys.executable,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict's JSON, nothing else.")
    ] = False,
) -> None:
    """Score a sample of a finished job's windows again, the plain way.

    Prints the largest difference; exit code 1 where it is too large, or where the job can't be
    verified.
    """
    run_dir = find_run(state_dir, job)
    command = [python, "-m", "evaluator.verify", str(run_dir / SPEC_FILE)]
    command += ["--run-dir", str(run_dir), "--windows", str(windows), "--seed", str(seed)]
    try:
        done = subprocess.run(
            [*command, "--device", device], capture_output=True, text=True, check=False
        )
    except OSError as error:
        refuse(f"{python} can't be started: {error.strerror}", option="--python")
    if done.returncode not in _ANSWERS or not done.stdout:
        why = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        _give_up(job, why[-1])
    verdict: dict[str, Any] = json.loads(done.stdout)
    if as_json:
        write_json(done.stdout)
    else:
        print_verdict(make_console(), verdict)
    raise typer.Exit(EXIT_OK if verdict["ok"] else EXIT_JOB)


def _give_up(job: str, why: str) -> NoReturn:
    make_console(to_stderr=True).print(f"Error: {job}: {why}", soft_wrap=True)
    raise typer.Exit(EXIT_JOB)


def find_run(state_dir: Path, job: str) -> Path:
    """Return the run directory of the attempt that succeeded, or end with exit code 2 or 1."""
    if not re.fullmatch(r"\w+", job):
        refuse(f"{job!r} is not the id of a job", option="JOB")
    folder = (state_dir / "runs" / job).absolute()
    if not folder.is_dir():
        refuse(
            f"there is no job {job} in {state_dir.absolute()}: name the server's state directory",
            option="--state-dir",
        )
    found = [path.parent for path in folder.glob(f"*/{WINDOWS_FILE}") if path.parent.name.isdigit()]
    if not found:
        _give_up(
            job,
            f"{folder} has no {WINDOWS_FILE}: the job did not succeed, or its records were deleted",
        )
    return max(found, key=lambda path: int(path.name))
