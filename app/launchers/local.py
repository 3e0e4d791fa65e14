"""Launches on this machine, each under a supervisor process that outlives the server.

All that is known about a launch is in its run directory and in /proc, so a server that was
started again sees the same as the one before.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from app.launchers import processes, rundir
from app.launchers.base import (
    Alive,
    Ended,
    Launch,
    LaunchError,
    LaunchRef,
    NotStarted,
    Seen,
    Vanished,
)
from evaluator.contract.env import LAUNCH_ID

START_DEADLINE_S = 30.0
"""For the supervisor to come up; it takes milliseconds on an idle machine."""
SWEEP_DEADLINE_S = 30.0
"""For killed processes to be gone; only one that hangs inside the kernel takes long."""
SWEEP_DELAY_S = 0.02
SWEEP_EMPTY_LOOKS = 3
"""A look may miss a process that starts another and ends meanwhile."""

_CODE_ROOT = Path(__file__).resolve().parents[2]
"""Where the supervisor finds `app` and `evaluator`."""


class LocalLauncher:
    """Starts, sees and ends launches on this machine."""

    kind = "local"

    async def start(self, launch: Launch) -> None:
        """Order the launch and bring its supervisor up; harmless when it was started before."""
        await asyncio.to_thread(_start, launch)

    async def look(self, ref: LaunchRef) -> Seen:
        """See what became of a launch."""
        return await asyncio.to_thread(_look, ref)

    async def request_stop(self, ref: LaunchRef) -> None:
        """Ask the supervisor to end the launch, also one that is yet to come."""
        await asyncio.to_thread(_request_stop, ref)

    async def sweep(self, ref: LaunchRef) -> int:
        """Kill whatever is left of a launch, a supervisor that hangs included."""
        return await asyncio.to_thread(_sweep, ref)


def _start(launch: Launch) -> None:
    ref = launch.ref
    order = rundir.Order(
        launch_id=ref.launch_id,
        agents=tuple(
            rundir.Command(agent.argv, {**agent.env, LAUNCH_ID: ref.launch_id})
            for agent in launch.agents
        ),
        grace_s=launch.grace_s,
        log_max_bytes=launch.log_max_bytes,
    )
    try:
        ref.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        rundir.write_order(ref.run_dir, order)
    except (OSError, ValueError) as error:
        msg = f"cannot write {ref.run_dir / rundir.ORDER_FILE}: {error}"
        raise LaunchError(msg) from error
    if rundir.is_claimed(ref.run_dir):
        return
    try:
        _spawn_supervisor(ref, order.agents[0].env)
    except LaunchError:
        if isinstance(_look(ref), Alive | Ended):
            return  # by another start of the same launch, or late
        with contextlib.suppress(OSError):
            rundir.ask_stop(ref.run_dir)  # one that comes up still finds that it is not wanted
        raise


def _spawn_supervisor(ref: LaunchRef, env: dict[str, str]) -> None:
    """Start the supervisor and wait until it has the run directory in its hands."""
    # -S: no site-packages, which it does not use; -P: the run directory holds no code. What
    # starts the interpreter of the launch (library paths) starts this one.
    command = [sys.executable, "-S", "-P", "-X", "utf8", "-m", "app.launchers.supervisor"]
    try:
        done = subprocess.run(
            # By its working directory, which stays right when the directory gets another name.
            [*command, os.curdir],
            env={**env, "PYTHONPATH": str(_CODE_ROOT)},
            cwd=ref.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=START_DEADLINE_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        msg = f"cannot start the supervisor of {ref.run_dir}: {error}"
        raise LaunchError(msg) from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        msg = f"the supervisor of {ref.run_dir} ended with {done.returncode}: {reason}"
        raise LaunchError(msg)


def _look(ref: LaunchRef) -> Seen:
    claim = rundir.read_claim(ref.run_dir)
    if claim is None and not rundir.is_claimed(ref.run_dir):
        return NotStarted()
    is_ours = claim is not None and claim.launch_id == ref.launch_id
    if claim is not None and is_ours and processes.still_runs(claim.process):
        return Alive()
    if claim is not None:
        _reap_if_child(claim.process)
    # Read after the supervisor was seen to be gone: from now on the record cannot appear.
    record = rundir.read_exit(ref.run_dir) if is_ours else None
    return Vanished() if record is None else Ended(**record._asdict())


def _reap_if_child(supervisor: processes.ProcessId) -> None:
    """Take notice of a dead supervisor where no init does: as first process of a container."""
    process = processes.read_process(supervisor.pid)
    if process is not None and process.start_ticks == supervisor.start_ticks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(supervisor.pid, os.WNOHANG)


def _request_stop(ref: LaunchRef) -> None:
    try:
        ref.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        rundir.ask_stop(ref.run_dir)
    except OSError as error:
        msg = f"cannot ask for the end of {ref.run_dir}: {error}"
        raise LaunchError(msg) from error


def _sweep(ref: LaunchRef) -> int:
    killed: set[tuple[int, int]] = set()
    spared: set[processes.Process] = set()
    deadline = time.monotonic() + SWEEP_DEADLINE_S
    num_empty = 0
    while num_empty < SWEEP_EMPTY_LOOKS:
        members = processes.kill_members(ref.launch_id, spared=spared)
        num_empty = 0 if members else num_empty + 1
        killed |= {(process.pid, process.start_ticks) for process in members}
        if time.monotonic() > deadline:
            pids = sorted(process.pid for process in members)
            msg = f"processes of {ref.run_dir} do not die: {pids}"
            raise LaunchError(msg)
        time.sleep(SWEEP_DELAY_S)
    return len(killed)
