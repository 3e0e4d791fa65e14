import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from app.launchers import processes
from app.launchers.processes import Process, descendants


def process(pid: int, parent_pid: int, start_ticks: int) -> Process:
    return Process(pid, parent_pid, "S", 1, start_ticks)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-S", "-c", "input()"]
    env = {"ASSAY_LAUNCH_ID": "abc", "OTHER": "ASSAY_LAUNCH_ID=def"}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_own_process_is_read_as_psutil_reads_it() -> None:
    me = processes.read_process(os.getpid())
    assert me is not None
    assert me.parent_pid == psutil.Process().ppid()
    assert me.num_threads == psutil.Process().num_threads()
    seconds = me.start_ticks / os.sysconf("SC_CLK_TCK")
    assert abs(psutil.boot_time() + seconds - psutil.Process().create_time()) < 2
    assert me.runs


def test_name_with_spaces_and_parentheses() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R 1 (b'); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes.read_process(child.pid)
        child.kill()
    assert found is not None
    assert (found.parent_pid, found.num_threads) == (os.getpid(), 1)


def test_zombie_does_not_run() -> None:
    # A zombie stays until it is waited for, which only this process can do.
    pid = os.posix_spawn("/bin/true", ["true"], {})
    deadline = time.monotonic() + 10
    identity = processes.identify(pid)
    while (found := processes.read_process(pid)) and found.runs:
        assert time.monotonic() < deadline
    assert found is not None
    assert not processes.still_runs(identity)
    os.waitpid(pid, 0)
    assert processes.read_process(pid) is None


def test_process_whose_first_thread_ended_runs() -> None:
    assert Process(1, 0, "Z", 2, 0).runs
    assert not Process(1, 0, "Z", 1, 0).runs


def test_identity_has_pid_start_and_boot(child: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(child.pid)
    assert processes.still_runs(identity)
    assert not processes.still_runs(identity._replace(start_ticks=identity.start_ticks + 1))
    assert not processes.still_runs(identity._replace(boot_id="another"))
    child.kill()
    child.wait()
    assert not processes.still_runs(identity)
    with pytest.raises(ProcessLookupError):
        processes.identify(child.pid)


def test_marker_is_a_whole_variable(child: subprocess.Popen[bytes]) -> None:
    assert processes.carries_marker(child.pid, "abc")
    assert not processes.carries_marker(child.pid, "ab")
    assert not processes.carries_marker(child.pid, "abcd")
    assert not processes.carries_marker(child.pid, "def")
    assert not processes.carries_marker(os.getpid(), "abc")


def test_members_and_their_end(child: subprocess.Popen[bytes]) -> None:
    assert [each.pid for each in processes.launch_members("abc")] == [child.pid]
    assert processes.launch_members("def") == []
    by_parent = processes.launch_members("def", supervisor_pid=os.getpid())
    assert child.pid in [each.pid for each in by_parent]
    assert os.getpid() not in [each.pid for each in by_parent]
    assert [each.pid for each in processes.kill_members("abc", spared=set())] == [child.pid]
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert processes.kill_members("abc", spared=set()) == []


def test_spared_process_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    spared = set(processes.launch_members("abc"))
    assert processes.kill_members("abc", spared=spared) == []
    assert child.poll() is None


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_signal_reaches_no_other_process_with_the_pid(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    found = processes.read_process(child.pid)
    assert found is not None
    assert not processes.send_signal(found._replace(start_ticks=found.start_ticks - 1))
    assert child.poll() is None
    assert processes.send_signal(found, signal.SIGTERM)
    assert child.wait(timeout=10) == -signal.SIGTERM
    assert not processes.send_signal(found)


def test_descendants_at_any_depth() -> None:
    tree = [
        process(1, 0, 0),
        process(2, 1, 5),
        process(3, 2, 5),
        process(4, 3, 9),
        process(5, 1, 9),
    ]
    assert descendants(tree, {2}) == {3, 4}
    assert descendants(tree, {3, 5}) == {4}
    assert descendants(tree, {9}) == set()


def test_nobody_descends_from_a_younger_process() -> None:
    # While the list was made, pid 7, parent of 8, ended and was given to a process of a launch.
    assert descendants([process(8, 7, 100), process(7, 1, 200)], {7}) == set()


def test_rings_of_parents_end() -> None:
    assert descendants([process(2, 3, 5), process(3, 2, 5)], {2}) == {3}
