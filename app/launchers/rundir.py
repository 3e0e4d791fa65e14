"""The files of a run directory: their names, and how each is written whole or not at all.

Two sides meet here that share nothing else: the server, which asks, and the supervisor, which
acts. Standard library only, because the supervisor imports it.
"""

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from app.launchers.processes import ProcessId

ORDER_FILE = "launch.json"
CLAIM_FILE = "supervisor.json"
STOP_FILE = "stop"
EXIT_FILE = "exit.json"


def log_name(node: int) -> str:
    """File with the output of a node's agent; only ever grows. Of too much the middle is left out.

    Args:
        node: its rank among the nodes.
    """
    return f"log-node-{node}.txt" if node else "log.txt"


def latest_log(path: Path) -> Path:
    """The newest output while the log at `path` is full; it moves there when the launch ends."""
    return path.with_name(f"{path.stem}-latest{path.suffix}")


class Command(NamedTuple):
    """A program to start."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """The complete environment."""


class Order(NamedTuple):
    """What the server asks the supervisor to start (`launch.json`)."""

    launch_id: str
    agents: tuple[Command, ...]
    """One a node, in the order of the nodes."""
    grace_s: float
    """From SIGTERM to SIGKILL."""
    log_max_bytes: int
    """Of each agent."""


class Claim(NamedTuple):
    """Who supervises the launch (`supervisor.json`)."""

    launch_id: str
    process: ProcessId


class ExitRecord(NamedTuple):
    """How the launch ended (`exit.json`); written after its last process was gone."""

    exit_code: int | None
    """Of the agent that failed first, else of node 0's; None when a signal ended it or it never
    started."""
    signal: int | None
    """The signal that ended that agent."""
    stopped: bool
    """Whether the supervisor ended it because it was asked to."""
    ended_at: datetime
    root_cause: str | None
    """One sentence, when the log or the operating system gave the reason."""
    log_tail: tuple[str, ...]
    """The last lines of that agent's log, free of control characters."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Build the record from what `to_json` gave."""
        return cls(
            exit_code=value["exit_code"],
            signal=value["signal"],
            stopped=value["stopped"],
            ended_at=datetime.fromisoformat(value["ended_at"]).astimezone(UTC),
            root_cause=value["root_cause"],
            log_tail=tuple(value["log_tail"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The record in JSON's types."""
        return self._asdict() | {"ended_at": self.ended_at.isoformat()}


def write_order(run_dir: Path, order: Order) -> None:
    """Write the order, once for this run directory; the same launch may be ordered again.

    Raises:
        FileExistsError: the directory belongs to another launch.
    """
    if _write_new(run_dir / ORDER_FILE, order._asdict()):
        return
    if read_order(run_dir).launch_id != order.launch_id:
        msg = f"{run_dir} belongs to another launch"
        raise FileExistsError(msg)


def read_order(run_dir: Path) -> Order:
    """Read the order.

    Raises:
        OSError: there is none.
        ValueError: the file is damaged.
    """
    text = (run_dir / ORDER_FILE).read_text(encoding="utf-8")
    try:
        order = Order(**json.loads(text))
        agents = tuple(Command(tuple(argv), env) for argv, env in order.agents)
    except TypeError as error:
        msg = f"{run_dir / ORDER_FILE} is not an order: {error}"
        raise ValueError(msg) from error
    return order._replace(agents=agents)


def claim(run_dir: Path, claim: Claim) -> bool:
    """Become the supervisor of the run directory; False when it has had one already."""
    value = {"launch_id": claim.launch_id, **claim.process._asdict()}
    return _write_new(run_dir / CLAIM_FILE, value)


def is_claimed(run_dir: Path) -> bool:
    """Whether the run directory has had a supervisor."""
    return (run_dir / CLAIM_FILE).exists()


def read_claim(run_dir: Path) -> Claim | None:
    """Who supervises; None when there is no claim or it is damaged."""
    value = _read_object(run_dir / CLAIM_FILE)
    try:
        return None if value is None else Claim(value.pop("launch_id"), ProcessId(**value))
    except (KeyError, TypeError):
        return None


def ask_stop(run_dir: Path) -> None:
    """Ask the supervisor to end the launch, also one that is yet to come."""
    (run_dir / STOP_FILE).touch(mode=0o600)


def stop_is_asked(run_dir: Path) -> bool:
    """Whether the launch is to end."""
    return (run_dir / STOP_FILE).exists()


def write_exit(run_dir: Path, record: ExitRecord) -> None:
    """Store how the launch ended, so that it outlives a power failure."""
    path = run_dir / EXIT_FILE
    temporary = path.with_suffix(".json.tmp")
    _write_synced(temporary, record.to_json())
    temporary.replace(path)
    _sync_folder(run_dir)


def read_exit(run_dir: Path) -> ExitRecord | None:
    """How the launch ended; None when it is not known."""
    value = _read_object(run_dir / EXIT_FILE)
    try:
        return None if value is None else ExitRecord.from_json(value)
    except (KeyError, TypeError, ValueError):
        return None


def read_latest_log(run_dir: Path, max_bytes: int = 65_536) -> bytes:
    """The newest output of node 0's agent; empty when there is none."""
    log = run_dir / log_name(0)
    for path in (latest_log(log), log):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            return file.read(max_bytes)
    return b""


def _read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object. Other trouble than an absent or damaged file is the caller's."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _write_new(path: Path, value: dict[str, Any]) -> bool:
    """Create a file with its whole content; False when there is one. One writer wins."""
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        _write_synced(temporary, value)
        # Unlike a rename, a link does not replace what is there.
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def _write_synced(path: Path, value: dict[str, Any]) -> None:
    """Write a file for its owner only, and wait until the disk has it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in the folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
