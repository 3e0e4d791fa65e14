"""What a launcher is: how the server starts an attempt, sees it, and ends it.

A launcher knows processes and files, nothing of jobs or of their results. Errors:

    LaunchError
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


class LaunchError(Exception):
    """The launcher could not do what was asked."""


@dataclass(frozen=True, kw_only=True)
class LaunchRef:
    """Names a launch for ever."""

    launch_id: str
    """Random; every process of the launch has it as ASSAY_LAUNCH_ID in its environment."""
    run_dir: Path
    """Absolute path of the folder of its files."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The complete environment: nothing is inherited from the server."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start."""

    ref: LaunchRef
    agents: tuple[Command, ...]
    """One a node, in the order of the nodes."""
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL."""
    log_max_bytes: int = 5_000_000
    """Most bytes of output that are kept of each agent."""

    def __post_init__(self) -> None:
        """Refuse what would fail later, out of sight."""
        if not self.ref.run_dir.is_absolute():
            msg = f"run_dir {self.ref.run_dir} must be absolute"
            raise ValueError(msg)
        if not self.agents or not all(agent.argv for agent in self.agents):
            msg = "there must be an agent, and each must name a program"
            raise ValueError(msg)
        if not 0 <= self.grace_s < float("inf"):
            msg = f"grace_s {self.grace_s} must be finite and not negative"
            raise ValueError(msg)
        if self.log_max_bytes < 1000:
            msg = f"log_max_bytes {self.log_max_bytes} must be at least 1000"
            raise ValueError(msg)


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """Nothing took the launch up yet."""


@dataclass(frozen=True, kw_only=True)
class Alive:
    """The launch is supervised; its processes run, or are being ended."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """No process of the launch is left, and how it ended is known."""

    exit_code: int | None
    """Of the agent that failed first, else of node 0's; None when a signal ended it or it never
    started."""
    signal: int | None
    """The signal that ended that agent."""
    stopped: bool
    """Whether it ended because a stop was requested."""
    ended_at: datetime
    root_cause: str | None
    """One sentence, for example `rank 1 was killed by signal 9 (SIGKILL)`."""
    log_tail: tuple[str, ...]
    """The last lines of that agent's log, free of control characters."""


@dataclass(frozen=True, kw_only=True)
class Vanished:
    """The supervisor is gone and left no record; processes may be left: sweep."""


Seen = NotStarted | Alive | Ended | Vanished
"""What can be seen of a launch."""


class Launcher(Protocol):
    """One way of running an attempt."""

    kind: str
    """Its name in settings and in the database."""

    async def start(self, launch: Launch) -> None:
        """Start the launch; harmless when it was started before.

        Raises:
            LaunchError: it could not be started, and will not start later either.
        """

    async def look(self, ref: LaunchRef) -> Seen:
        """See what became of a launch.

        Raises:
            OSError: nothing can be said now, for example because too many files are open.
        """

    async def request_stop(self, ref: LaunchRef) -> None:
        """Ask for the end of a launch, also of one that did not start yet. Does not wait."""

    async def sweep(self, ref: LaunchRef) -> int:
        """Kill at once whatever is left of a launch; returns how many processes.

        Raises:
            LaunchError: some did not die.
        """
