"""Ranks together: the store with leases and agreement, and the few collectives at the end.

Nothing here runs while batches are scored but one counter operation per lease and per batch. Alone,
the same code runs on a store in memory and a group of one.

The store is there from the start, the group only once models are loaded: transformers behaves
otherwise inside a group, where `save_pretrained` writes nothing on ranks other than 0.
"""

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from evaluator.contract.launch import LaunchSpec
from evaluator.errors import Communication, DeviceUnavailable, Stalled
from evaluator.ranks import RankInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT = timedelta(seconds=60)
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Of collectives; ranks enter them only once all of them are done with their batches."""
STALL_TIMEOUT_S = 1800.0
"""How long no rank may finish a batch, while one waits for the others."""
LOOKS_PER_STALL = 30
"""How often within that time a waiting rank looks whether the others move. What it waits for wakes
it at once; looking rarely keeps the store free, and torch logs a line each time."""


class Peers:
    """This rank's view of all ranks."""

    def __init__(
        self,
        rank: RankInfo,
        store: dist.Store,
        *,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._store = store
        self._stall_timeout_s = stall_timeout_s
        self._look_every = timedelta(seconds=stall_timeout_s / LOOKS_PER_STALL)
        self._monotonic = monotonic

    def next_ticket(self) -> int:
        """The next number that no rank has had: 0, 1, 2, ..."""
        return int(self._store.add("tickets", 1)) - 1

    def note_batch(self) -> None:
        """Tell whoever waits that this rank moves."""
        self._store.add("batches", 1)

    def publish(self, key: str, value: str) -> None:
        """Make a value known to all ranks."""
        self._store.set(key, value)

    def read(self, key: str, owner: int) -> str:
        """A value that rank `owner` publishes; waits for it.

        Raises:
            Stalled: It did not come.
        """
        self._await(key, lambda: [owner])
        return self._store.get(key).decode()

    def wait_for_all(self, point: str) -> None:
        """Wait until every rank has come to this point. No collective is pending meanwhile.

        Raises:
            Stalled: No batch was finished for too long; it names the ranks that are missing.
        """
        self._store.set(f"{point}/{self._rank.rank}", "1")
        if self._store.add(f"{point}/count", 1) == self._rank.world_size:
            self._store.set(f"{point}/all", "1")
        self._await(f"{point}/all", lambda: self._missing(point))

    def _missing(self, point: str) -> list[int]:
        ranks = range(self._rank.world_size)
        return [rank for rank in ranks if not self._store.check([f"{point}/{rank}"])]

    def _await(self, key: str, owners: Callable[[], list[int]]) -> None:
        moved, since = -1, self._monotonic()
        while True:
            try:
                self._store.wait([key], self._look_every)
            except dist.DistStoreError:
                now = self._store.add("batches", 0)
                if now != moved:
                    moved, since = now, self._monotonic()
                elif self._monotonic() - since > self._stall_timeout_s:
                    msg = (
                        f"no batch was finished for {self._stall_timeout_s:.0f} s while rank "
                        f"{self._rank.rank} waited for ranks {owners()[:10]}; look at their logs"
                    )
                    raise Stalled(msg) from None
            else:
                return

    def form_group(self, device: torch.device) -> None:
        """Meet the other ranks, once all of them are ready to; does nothing once they have met.

        Raises:
            Stalled: A rank did not come.
            Communication: A rank can't be reached.
            DeviceUnavailable: torch was built without the backend.
        """
        if dist.is_initialized():
            return
        if device.type == "cuda" and not dist.is_nccl_available():
            msg = "ranks on CUDA need NCCL, and this torch has none; take launch.device cpu"
            raise DeviceUnavailable(msg)
        self.wait_for_all("ready")
        try:
            dist.init_process_group(
                # Objects travel by Gloo on any device; NCCL is for tensors.
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=dist.PrefixStore("group", self._store),
                rank=self._rank.rank,
                world_size=self._rank.world_size,
                timeout=COLLECTIVE_TIMEOUT,
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            msg = f"rank {self._rank.rank} can't meet the other ranks: {error}"
            raise Communication(msg) from error

    def gather(self, value: T) -> list[T] | None:
        """Values of all ranks by rank, on rank 0; None elsewhere."""
        gathered: list[Any] | None = (
            [None] * self._rank.world_size if self._rank.rank == 0 else None
        )
        dist.gather_object(value, gathered, dst=0)
        return gathered

    def all_gather(self, value: T) -> list[T]:
        """Values of all ranks by rank."""
        gathered: list[Any] = [None] * self._rank.world_size
        dist.all_gather_object(gathered, value)
        return gathered


def connect(rank: RankInfo, spec: LaunchSpec) -> Peers:
    """Reach the store.

    Raises:
        Communication: It can't be reached.
    """
    # A prefix of its own per restart: ranks that torchrun restarts share the store with those that
    # ended, and would read their addresses.
    prefix = f"assay/{spec.job_id}/{spec.attempt}/{rank.restart}"
    try:
        return Peers(rank, dist.PrefixStore(prefix, _store(rank)))
    except (dist.DistError, ValueError) as error:
        msg = f"rank {rank.rank} can't reach the rendezvous store: {error}"
        raise Communication(msg) from error


def _store(rank: RankInfo) -> dist.Store:
    if "MASTER_ADDR" not in os.environ:
        if rank.world_size > 1:
            msg = f"MASTER_ADDR is not set, so {rank.world_size} ranks can't meet; use torchrun"
            raise Communication(msg)
        return dist.HashStore()
    # torchrun's agent holds the store. Other launchers leave it to rank 0.
    agent_holds_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank.rank == 0 and not agent_holds_store,
        wait_for_workers=False,
        timeout=CONNECT_TIMEOUT,
    )


def leave() -> None:
    """Take the group down; does nothing where there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()
