"""Stands in for torchrun and its ranks, with the bad manners that a launcher must cope with.

Like torchrun, it starts its ranks in sessions of their own, forwards SIGTERM to them and waits for
them. Every process writes a file `pids/<role>-<pid>` in its working directory when it is ready, and
ends by itself after a minute.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LIFETIME_S = 60.0
GARBAGE = (
    b"x" * 1_000_000 + b"\n"
    b"\xff\xfe not UTF-8 \xc3(\n"
    b"nul \x00 and \x07 bell\n"
    b"\x1b[31mred\x1b[0m \x1b]0;title\x07text\n"
    b"  1%\r 50%\r100%\n" + "Größe 漢字\n".encode()
)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", default="agent")
    parser.add_argument("--ranks", type=int, default=0, help="children in sessions of their own")
    parser.add_argument("--depth", type=int, default=0, help="a line of descendants of each rank")
    parser.add_argument("--daemon", action="store_true", help="each rank starts an orphan")
    parser.add_argument("--scrubbed", action="store_true", help="... and one without environment")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--num-lines", type=int, default=0)
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--flood", action="store_true", help="write without end")
    parser.add_argument("--exit-code", type=int, help="end with it once the ranks are ready")
    parser.add_argument("--die-by", type=int, help="end by this signal once the ranks are ready")
    return parser.parse_args(arguments)


def start(role: str, options: argparse.Namespace, *, depth: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, f"--role={role}", f"--depth={depth}"]
    command += ["--ignore-term"] * options.ignore_term
    if role == "rank":
        command += ["--daemon"] * options.daemon + ["--scrubbed"] * options.scrubbed
    env: dict[str, str] | None = {} if role == "scrubbed" else None
    return subprocess.Popen(command, env=env, start_new_session=True)


def start_orphan(role: str, options: argparse.Namespace) -> None:
    """Start a process whose parent is gone at once."""
    if (pid := os.fork()) == 0:
        start(role, options)
        os._exit(0)
    os.waitpid(pid, 0)


def write_output(options: argparse.Namespace) -> None:
    output = sys.stdout.buffer
    for number in range(options.num_lines):
        output.write(b"line %d\n" % number)
    if options.garbage:
        output.write(GARBAGE)
    output.flush()
    while options.flood:
        output.write(b"y\n" * 4096)


def num_ready() -> int:
    return sum(1 for _ in Path("pids").iterdir())


def end_children(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        child.wait(timeout=30)
    os.write(1, b"last words\n")


def run(options: argparse.Namespace) -> None:
    children = []
    if options.depth > 0 and options.role != "agent":
        children.append(start("chain", options, depth=options.depth - 1))
    for _ in range(options.ranks):
        children.append(start("rank", options, depth=options.depth))
    for role in ("daemon", "scrubbed"):
        if options.role == "rank" and getattr(options, role):
            start_orphan(role, options)
    if options.role != "agent":
        time.sleep(LIFETIME_S)
        return
    try:
        write_output(options)
        per_rank = 1 + options.depth + options.daemon + options.scrubbed
        while num_ready() < 1 + options.ranks * per_rank:
            time.sleep(0.01)
        if options.die_by is not None:
            os.kill(os.getpid(), options.die_by)
        if options.exit_code is not None:
            sys.stdout.flush()
            os._exit(options.exit_code)
        time.sleep(LIFETIME_S)
    except SystemExit:
        end_children(children)
        raise


def main() -> None:
    options = parse(sys.argv[1:])
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif options.role == "agent":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    Path("pids").mkdir(exist_ok=True)
    Path(f"pids/{options.role}-{os.getpid()}").touch()
    run(options)


if __name__ == "__main__":
    main()
