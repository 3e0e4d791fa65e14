"""One process per local launch: `python -m app.launchers.supervisor DIR`. It outlives the server.

It starts the agents that `launch.json` in the run directory orders, one a node, keeps their logs,
ends everything when the file `stop` appears or an agent fails, and writes `exit.json` when no
process of the launch is left. It is the parent that every orphan of the launch is handed to, and
torchrun dies with it.

Standard library only and a single thread: it starts in milliseconds, stays small for the whole
life of a launch, and may fork.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from app.launchers import processes, rundir
from app.launchers.logfile import NUM_TAIL_LINES, CappedLog, find_root_cause

TICK_S = 0.2
"""How often the stop file is looked for."""
LATEST_LOG_PERIOD_S = 1.0
READ_BYTES = 65_536
PUMP_BYTES = 4 * READ_BYTES
PUMP_PAUSE_S = 0.01
"""After output was read, so that many lines are one piece of work and a flood costs little."""
DRAIN_BYTES = 2**21
"""More than a pipe can hold: read at the end even if a stranger goes on writing."""
KILL_DELAY_S = (0.005, 1.0)
"""First and longest wait before those that did not die are killed again."""
NUM_KILL_ROUNDS = 20
"""How often our own children are killed between two looks at all processes."""
WRITE_EXIT_FOR_S = 60.0
"""How long a full disk is waited for."""
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
"""What shells report for a program that cannot be started."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Agent:
    """The first process of a node, and its log."""

    def __init__(self, command: rundir.Command, log: CappedLog) -> None:
        self._command = command
        self.log = log
        self.output_fd = -1
        self.output_is_open = False
        self.pid = 0
        self.exit_status: int | None = None  # negative: the signal that ended it
        self.start_problem: str | None = None
        """Why it could not be started."""

    def start(self) -> None:
        """Start it; where that fails it has ended, as a shell would report it."""
        self.output_fd, write_fd = os.pipe()
        os.set_blocking(self.output_fd, False)
        try:
            self.pid = spawn(self._command.argv, self._command.env, write_fd)
        except OSError as error:
            not_found = isinstance(error, FileNotFoundError)
            self.exit_status = EXIT_NOT_FOUND if not_found else EXIT_NOT_EXECUTABLE
            self.start_problem = f"cannot start {self._command.argv[0]!r}: {error.strerror}"
        else:
            self.output_is_open = True
        finally:
            os.close(write_fd)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self.pid != 0 and self.exit_status is None

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than well."""
        return self.exit_status not in (None, 0)

    def pump(self, max_bytes: int) -> int:
        """Move output into the log; returns the number of bytes."""
        num_read = 0
        while self.output_is_open and num_read < max_bytes:
            try:
                chunk = os.read(self.output_fd, READ_BYTES)
            except BlockingIOError:
                break
            self.output_is_open = bool(chunk)
            self.log.write(chunk)
            num_read += len(chunk)
        return num_read


class Supervisor:
    """Life of one launch, from its start to its exit record."""

    def __init__(self, run_dir: Path, order: rundir.Order, wake_fd: int) -> None:
        self._run_dir = run_dir
        self._order = order
        self._agents = [
            Agent(command, CappedLog(run_dir / rundir.log_name(node), order.log_max_bytes))
            for node, command in enumerate(order.agents)
        ]
        self._first_failed: Agent | None = None
        self._wake_fd = wake_fd
        self._stopped = False
        self._kill_at: float | None = None
        self._latest_log_at = 0.0
        self._stop_signalled = False

    def run(self) -> rundir.ExitRecord:
        """Start the launch, unless it was stopped before, and see it to its end."""
        if self._stop_is_asked():
            self._stopped = True
            return self._record(self._agents[0])
        try:
            for agent in self._agents:
                agent.start()
            self._watch()
        finally:
            self._kill_all()
        for agent in self._agents:
            agent.pump(DRAIN_BYTES)
        return self._record(self._first_failed or self._agents[0])

    def listen(self) -> None:
        """Take over the signals and leave the terminal and the files of the caller."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # wakes us up; inherited handlers end at exec
        null_fd = os.open(os.devnull, os.O_RDWR)
        os.dup2(null_fd, 0)
        os.dup2(null_fd, 1)
        os.dup2(self._agents[0].log.fd, 2)  # a defect of the supervisor shows in the log
        os.close(null_fd)

    def _on_stop_signal(self, *_: object) -> None:
        self._stop_signalled = True

    def _watch(self) -> None:
        """Wait until all agents have ended, or those that should have are over their grace."""
        self._note_failure()
        while any(agent.runs for agent in self._agents):
            if self._kill_at is None and self._stop_is_asked():
                self._stopped = True
            if self._kill_at is None and (self._stopped or self._first_failed):
                self._end_agents()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                return
            self._wait(TICK_S)
            self._note_failure()

    def _note_failure(self) -> None:
        """Remember which agent failed first: the others fail because of it."""
        if self._first_failed is None:
            self._first_failed = next((each for each in self._agents if each.has_failed), None)

    def _end_agents(self) -> None:
        for agent in self._agents:
            if agent.runs:
                os.kill(agent.pid, signal.SIGTERM)  # our child, not waited for: still its pid
        self._kill_at = time.monotonic() + self._order.grace_s

    def _kill_all(self) -> None:
        """Kill what is left, again and again until nothing is."""
        first_delay_s, longest_delay_s = KILL_DELAY_S
        delay_s = 0.0
        spared: set[processes.Process] = set()
        known: set[tuple[int, int]] = set()
        while True:
            killed = processes.kill_members(
                self._order.launch_id, spared=spared, supervisor_pid=os.getpid()
            )
            # A list of processes may miss one that starts another and ends. Children are exact:
            # orphans of the launch are handed to us at once.
            if not self._kill_children() and not killed:
                break
            if not killed and spared:
                break
            found = {(process.pid, process.start_ticks) for process in killed}
            # Those that start others faster than we look are caught only without a pause.
            delay_s = 0.0 if found - known else max(first_delay_s, 2 * delay_s)
            known = found
            self._wait(min(delay_s, longest_delay_s))
        for process in spared:
            line = f"[process {process.pid} belongs to another user and could not be ended]\n"
            self._agents[0].log.write(line.encode())

    def _kill_children(self) -> bool:
        """Kill our own children in quick succession; returns whether there are any left."""
        for _ in range(NUM_KILL_ROUNDS):
            if not self._reap():
                return False
            for pid in processes.children_of_this_process():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)  # not waited for: nobody else has the pid
        return True

    def _stop_is_asked(self) -> bool:
        return self._stop_signalled or rundir.stop_is_asked(self._run_dir)

    def _wait(self, timeout_s: float) -> None:
        """Sleep until there is output, a child ended, a signal came or the time is over."""
        outputs = [agent.output_fd for agent in self._agents if agent.output_is_open]
        select.select([self._wake_fd, *outputs], [], [], timeout_s)
        drain(self._wake_fd)
        if sum(agent.pump(PUMP_BYTES) for agent in self._agents):
            select.select([self._wake_fd], [], [], PUMP_PAUSE_S)
        self._reap()
        if (now := time.monotonic()) >= self._latest_log_at:
            for agent in self._agents:
                agent.log.write_latest()
            self._latest_log_at = now + LATEST_LOG_PERIOD_S

    def _reap(self) -> bool:
        """Take notice of children that ended, orphans handed to us included; are any left?"""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            for agent in self._agents:
                if pid == agent.pid:
                    agent.exit_status = os.waitstatus_to_exitcode(status)

    def _record(self, agent: Agent) -> rundir.ExitRecord:
        """What became of the launch, as this agent tells it."""
        lines = {each: each.log.close() for each in self._agents}[agent]
        code = agent.exit_status
        return rundir.ExitRecord(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stopped=self._stopped,
            ended_at=datetime.now(UTC),
            root_cause=agent.start_problem or find_root_cause(lines),
            log_tail=lines[-NUM_TAIL_LINES:],
        )


def spawn(argv: Sequence[str], env: Mapping[str, str], output_fd: int) -> int:
    """Start a program in a session of its own, which dies with this process; returns its pid.

    Args:
        argv: the program and its arguments.
        env: its complete environment.
        output_fd: takes its standard output and error.

    Raises:
        OSError: it cannot be executed.
    """
    parent_pid = os.getpid()
    error_fd, child_error_fd = os.pipe()  # closed by exec: nothing comes when it succeeds
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _die_with_parent(parent_pid)
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(each, signal.SIG_DFL)  # an ignored one stays ignored over exec
            os.execvpe(argv[0], list(argv), env)  # noqa: S606 - no shell is wanted
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
            os.write(child_error_fd, str(number).encode())
        finally:
            os._exit(EXIT_NOT_FOUND)
    os.close(child_error_fd)
    with open(error_fd, "rb") as pipe:  # noqa: PTH123 - a descriptor
        error_number = pipe.read()
    if error_number:
        os.waitpid(pid, 0)
        raise OSError(int(error_number), os.strerror(int(error_number)), argv[0])
    return pid


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; it may have ended just now."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_pid:
        os._exit(EXIT_NOT_FOUND)


def drain(fd: int) -> None:
    """Throw away what is in a non-blocking pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, READ_BYTES):
            pass


def store_exit(run_dir: Path, record: rundir.ExitRecord) -> None:
    """Write the exit record; a full disk is waited for, but not for ever."""
    deadline = time.monotonic() + WRITE_EXIT_FOR_S
    while True:
        try:
            return rundir.write_exit(run_dir, record)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(TICK_S)


def supervise(run_dir: Path, order: rundir.Order, ready_fd: int, parent_fd: int) -> None:
    """Claim the run directory and, if nobody did before, see its launch to the end.

    Args:
        run_dir: the run directory.
        order: what to start.
        ready_fd: gets a byte, and is closed, when the directory has a supervisor.
        parent_fd: comes to its end when the parent process is gone.
    """
    wake_fd, signal_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(signal_fd, False)
    signal.set_wakeup_fd(signal_fd, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    supervisor = Supervisor(run_dir, order, wake_fd)
    identity = processes.identify(os.getpid())
    is_first = rundir.claim(run_dir, rundir.Claim(order.launch_id, identity))
    if is_first:
        supervisor.listen()
    with contextlib.suppress(BrokenPipeError):  # a caller that waits no longer
        os.write(ready_fd, b"1")
    os.close(ready_fd)
    # The parent carries the launch id as well: a short launch must not take it along.
    os.read(parent_fd, 1)
    os.close(parent_fd)
    if is_first:
        store_exit(run_dir, supervisor.run())


def main() -> int:
    """Leave the caller: fork, let the child supervise, return when the launch has a supervisor."""
    run_dir = Path(sys.argv[1])
    order = rundir.read_order(run_dir)
    ready_fd, child_ready_fd = os.pipe()
    child_parent_fd, parent_fd = os.pipe()  # the second is held by this process alone
    if os.fork() == 0:
        os.close(ready_fd)
        os.close(parent_fd)
        supervise(run_dir, order, child_ready_fd, child_parent_fd)
        return 0
    os.close(child_ready_fd)
    return 0 if os.read(ready_fd, 1) else 1


if __name__ == "__main__":
    sys.exit(main())
