"""Which process is which, from /proc: identity, descendants, the marker of a launch.

A pid alone names nobody: it is given to a stranger later. A process is known by its pid, the clock
tick it started in and the boot of the machine, and is signalled only after these were compared.
Standard library only, because the supervisor imports it.
"""

import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from evaluator.contract.env import LAUNCH_ID

PROC = Path("/proc")
BOOT_ID_FILE = PROC / "sys/kernel/random/boot_id"


class ProcessId(NamedTuple):
    """Names one process for ever."""

    boot_id: str
    pid: int
    start_ticks: int
    """Clock ticks from the boot to the start of the process."""


class Process(NamedTuple):
    """What /proc/PID/stat said about a process."""

    pid: int
    parent_pid: int
    state: str
    num_threads: int
    start_ticks: int

    @property
    def runs(self) -> bool:
        """Whether a thread of it is left. A zombie waits only for its parent to take notice."""
        # The first thread may end before the others; the process then looks like a zombie.
        return self.state not in "ZXx" or self.num_threads > 1


def boot_id() -> str:
    """The random name of this boot of the machine."""
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def read_process(pid: int) -> Process | None:
    """Look one process up; None when there is none with this pid.

    Raises:
        OSError: /proc cannot be read for another reason, so nothing is known about the process.
    """
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold spaces and parentheses itself.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        state=fields[0].decode("ascii"),
        num_threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def identify(pid: int) -> ProcessId:
    """The identity of the process that has this pid now.

    Raises:
        ProcessLookupError: there is none.
    """
    process = read_process(pid)
    if process is None:
        raise ProcessLookupError(pid)
    return ProcessId(boot_id(), pid, process.start_ticks)


def still_runs(identity: ProcessId) -> bool:
    """Whether exactly this process runs, and not another one with its pid."""
    process = read_process(identity.pid)
    return (
        process is not None
        and process.runs
        and process.start_ticks == identity.start_ticks
        and identity.boot_id == boot_id()
    )


def all_processes() -> list[Process]:
    """Every process of this machine that can be seen, zombies included."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    return [process for pid in pids if (process := read_process(pid)) is not None]


def children_of_this_process() -> list[int]:
    """Pids of the children of a single-threaded process; empty where the kernel does not tell."""
    try:
        return [
            int(pid) for pid in (PROC / f"self/task/{os.getpid()}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def carries_marker(pid: int, launch_id: str) -> bool:
    """Whether the process was started with this launch id in its environment."""
    try:
        environ = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # gone, or of another user, who cannot be of the launch
    return f"{LAUNCH_ID}={launch_id}".encode() in environ.split(b"\0")


def descendants(processes: Iterable[Process], roots: Collection[int]) -> set[int]:
    """Pids of all that were started below the roots, the roots left out."""
    processes = list(processes)
    started = {process.pid: process.start_ticks for process in processes}
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent_pid, []).append(process)
    found: set[int] = set()
    to_visit = list(roots)
    while to_visit:
        parent = to_visit.pop()
        for child in children.get(parent, ()):
            # The list is not of one instant: a pid may change hands while it is made. Nobody is
            # older than the parent that started or adopted them.
            is_younger = child.start_ticks >= started.get(parent, child.start_ticks)
            if is_younger and child.pid not in found:
                found.add(child.pid)
                to_visit.append(child.pid)
    return found - set(roots)


def launch_members(launch_id: str, *, supervisor_pid: int | None = None) -> list[Process]:
    """Who belongs to a launch and runs: the marked, all below them, all below the supervisor.

    Neither the caller nor the supervisor are among them. A process that removed the marker, left
    its parents, and whose supervisor is dead cannot be found.
    """
    processes = all_processes()
    roots = {process.pid for process in processes if carries_marker(process.pid, launch_id)}
    pids = roots | descendants(processes, roots)
    if supervisor_pid is not None:
        pids |= descendants(processes, {supervisor_pid})
    pids -= {os.getpid(), supervisor_pid}
    return [process for process in processes if process.pid in pids and process.runs]


def kill_members(
    launch_id: str, *, spared: set[Process], supervisor_pid: int | None = None
) -> list[Process]:
    """Kill once every member of a launch; returns whom, so that none means that none is left.

    Args:
        launch_id: names the launch.
        spared: who is left alone; those of another user, whom we may not signal, are added.
        supervisor_pid: all below it belong to the launch too.
    """
    killed = []
    for process in launch_members(launch_id, supervisor_pid=supervisor_pid):
        if any(process.start_ticks == s.start_ticks and process.pid == s.pid for s in spared):
            continue
        try:
            send_signal(process)
        except PermissionError:
            spared.add(process)
        else:
            killed.append(process)
    return killed


def send_signal(process: Process, signal_number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process.

    Returns:
        False when it is gone, whoever has its pid now.

    Raises:
        PermissionError: it belongs to another user.
    """
    handle = _open_handle(process.pid)
    try:
        # The handle is bound to the process that had the pid when it was opened.
        now = read_process(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        if handle is None:
            os.kill(process.pid, signal_number)
        else:
            signal.pidfd_send_signal(handle, signal_number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _open_handle(pid: int) -> int | None:
    """A pidfd; None where the kernel, the sandbox or this Python offers none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # a process that is gone is noticed by its start
