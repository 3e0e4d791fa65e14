"""Who this process is among the ranks, and its tie to the launcher. Must not import torch."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from evaluator.contract.env import RANKS_PER_NODE
from evaluator.errors import Communication

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Place of a process in the launch. `rank`, `local_rank` and `node_rank` are three things."""

    rank: int = 0
    """Among all processes."""
    local_rank: int = 0
    """Among the processes of this node."""
    node_rank: int = 0
    """Of this node among the nodes."""
    world_size: int = 1
    local_world_size: int = 1
    restart: int = 0
    """How often torchrun has restarted the ranks."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "RankInfo":
        """Read what torchrun sets; without `RANK` the process is alone.

        Raises:
            Communication: The variables are incomplete or no numbers.
        """
        if "RANK" not in environ:
            return cls()
        try:
            rank = int(environ["RANK"])
            local_world_size = int(environ.get("LOCAL_WORLD_SIZE", "1"))
            local_rank = int(environ["LOCAL_RANK"])
            node_rank = int(environ.get("GROUP_RANK", str(rank // local_world_size)))
            if RANKS_PER_NODE in environ:
                local_world_size = int(environ[RANKS_PER_NODE])
                node_rank, local_rank = divmod(rank, local_world_size)
            return cls(
                rank=rank,
                local_rank=local_rank,
                node_rank=node_rank,
                world_size=int(environ["WORLD_SIZE"]),
                local_world_size=local_world_size,
                restart=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            )
        except (KeyError, ValueError) as error:
            msg = f"RANK is set, but the launch's environment is broken at {error}; use torchrun"
            raise Communication(msg) from error

    @property
    def leads_node(self) -> bool:
        """True on the one rank of a node that does what is done once per node."""
        return self.local_rank == 0

    def log_context(self) -> dict[str, int]:
        """Fields of every log line."""
        return {"rank": self.rank, "node_rank": self.node_rank}


def under_torchrun(environ: Mapping[str, str]) -> bool:
    """True in a worker of torchrun."""
    return "TORCHELASTIC_RUN_ID" in environ


def die_with_launcher() -> None:
    """Have the kernel end this process when its parent ends.

    torchrun's workers live in sessions of their own and survive its SIGKILL otherwise. To be called
    before anything slow: a parent that ends earlier is noticed only by its changed process id.
    """
    if platform.system() != "Linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the launcher ended before this rank had started")
