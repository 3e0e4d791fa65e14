"""An agent that is ready before its job: `python -m evaluator.warm SERVER_PID SERVER_START_TICKS`.

It imports what every run imports, waits in its working directory for one order, forks the ranks,
and stands to them as torchrun's agent does: it holds their store, ends the others when one fails,
and prints the same summary. It serves one job and ends, so nothing of a job reaches another.

A fork copies the calling thread alone. So nothing is computed before it, which would start torch's
threads, and the store, which has one, begins after it. (Libraries start idle threads of their own
at import, such as OpenBLAS's, and see to their forks themselves.)
"""

import importlib
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch.distributed as dist
import transformers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import evaluator.runner  # noqa: F401 - to have it, and torch and transformers, in memory
from evaluator import __main__ as entry
from evaluator.contract.warm import ORDER_FILE, READY_FILE, WarmOrder

FAMILIES = ("gemma3", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Architectures whose code is loaded ahead: 1.4 s for the first of them, 0.02 s for each other."""
LOOK_PERIOD_S = 0.005
SERVER_PERIOD_S = 1.0
"""How often an agent without a job looks whether the server is still there."""
TERM_GRACE_S = 30
"""Between SIGTERM and SIGKILL to ranks that are left when one has failed, as torchrun has it."""


def main() -> int:
    """Wait for an order and carry it out."""
    server_pid, start_ticks = int(sys.argv[1]), int(sys.argv[2])
    _import_ahead()
    Path(READY_FILE).touch()
    order = _wait_for_order(server_pid, start_ticks)
    return 0 if order is None else launch(order)


def _import_ahead() -> None:
    # Named once, so that the lazy module looks them up.
    _ = transformers.AutoConfig, transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    for family in FAMILIES:
        importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        # Compiles patterns for all architectures, once.
        get_checkpoint_conversion_mapping(family)


def _wait_for_order(server_pid: int, start_ticks: int) -> WarmOrder | None:
    """The order; None once there is no server that could give one."""
    path = Path(ORDER_FILE)
    look_at_server = 0.0
    while not path.exists():
        if time.monotonic() >= look_at_server:
            if _start_ticks(server_pid) != start_ticks:
                return None
            look_at_server = time.monotonic() + SERVER_PERIOD_S
        time.sleep(LOOK_PERIOD_S)
    return WarmOrder.model_validate_json(path.read_bytes())


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the name, which stands in parentheses and may hold any character; field 22 of proc(5).
    return int(stat.rpartition(b")")[2].split()[19])


def launch(order: WarmOrder) -> int:
    """Run all ranks to their end.

    Returns:
        0 where every rank ended well, else 1.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ranks = Ranks({_fork(order, rank, listener, port): rank for rank in range(order.num_ranks)})
        # The store takes the socket over; connections wait in its queue until now.
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=os.dup(listener.fileno()),
        )
    code = ranks.wait()
    del store
    return code


def _fork(order: WarmOrder, rank: int, listener: socket.socket, port: int) -> int:
    """Start a rank; returns its process id."""
    pid = os.fork()
    if pid == 0:
        _be_rank(order, rank, listener, port)
    return pid


def _be_rank(order: WarmOrder, rank: int, listener: socket.socket, port: int) -> NoReturn:
    """Run as `python -m evaluator` does; never returns into the agent's code."""
    started = time.monotonic()
    listener.close()
    os.environ.update(order.env)
    os.environ.update(_rank_environment(rank, order.num_ranks, port))
    try:
        code = entry.main([order.spec_path], started=started)
    except BaseException:  # noqa: BLE001 - the edge of the process
        sys.excepthook(*sys.exc_info())
        code = 1
    entry.end(code)


def _rank_environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets for a rank on a single node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "warm",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


class Ranks:
    """The ranks of a launch, by process id."""

    def __init__(self, rank_of_pid: dict[int, int]) -> None:
        self._running = rank_of_pid
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end(signal.SIGTERM))
        signal.signal(signal.SIGALRM, self._on_alarm)

    def wait(self) -> int:
        """Wait for all; when one fails the others are ended, and the first is named."""
        failed = False
        while self._running:
            pid, status = os.wait()
            rank = self._running.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            if rank is None or code == 0:
                continue
            if not failed:
                _print_root_cause(rank, code, pid)
                self._end(signal.SIGTERM)
                signal.alarm(TERM_GRACE_S)
            failed = True
        signal.alarm(0)
        return int(failed)

    def _end(self, number: signal.Signals) -> None:
        for pid in list(self._running):
            with suppress(ProcessLookupError):
                os.kill(pid, number)  # not waited for: nobody else has the pid

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        self._end(signal.SIGKILL)


def _print_root_cause(rank: int, code: int, pid: int) -> None:
    """In torchrun's words, which the server reads."""
    sys.stderr.write(
        f"Root Cause (first observed failure):\n[0]:\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {pid})\n"
    )


if __name__ == "__main__":
    entry.end(main())
