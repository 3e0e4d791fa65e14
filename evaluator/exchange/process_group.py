"""Ranks together: the store with leases and agreement, and the few collectives at the end.

While batches are scored only leases are drawn from a counter, and steps shown now and then. Alone,
the same code runs on a store in memory and a group of one.

The store is there from the start, the group only once models are loaded: transformers behaves
otherwise inside a group, where `save_pretrained` writes nothing on ranks other than 0.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from evaluator.contract.launch import LaunchSpec
from evaluator.errors import Communication, DeviceUnavailable, Stalled
from evaluator.exchange.collectives import Addable, Collectives, form_circles
from evaluator.exchange.hierarchy import NodeLayout
from evaluator.exchange.ranks import RankInfo
from evaluator.exchange.recorder import Recorder
from evaluator.exchange.traffic import TrafficCounter

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A", bound=Addable)

CONNECT_TIMEOUT = timedelta(seconds=60)
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Of collectives; ranks enter them only once all of them are done with their batches."""
STALL_TIMEOUT_S = 1800.0
"""How long no rank may begin anything, a batch for instance, while one waits for the others."""
MOST_NAMED = 10
"""Ranks in a message."""
LOOKS_PER_STALL = 30
"""How often within that time a waiting rank looks whether the others move. What it waits for wakes
it at once; looking rarely keeps the store free, and torch logs a line each time."""


class Gathered(NamedTuple, Generic[T]):
    """Values that ranks have sent, where they have come to."""

    node: list[T] | None
    """Of this node's ranks, on its leader."""
    all: list[T] | None
    """Of all ranks by rank, on rank 0."""


class Peers:
    """This rank's view of all ranks."""

    def __init__(
        self,
        rank: RankInfo,
        store: dist.Store,
        *,
        recorder: Recorder | None = None,
        while_waiting: Callable[[], None] = lambda: None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._store = store
        self._while_waiting = while_waiting
        self._stall_timeout_s = stall_timeout_s
        self._look_every = timedelta(seconds=stall_timeout_s / LOOKS_PER_STALL)
        self._monotonic = monotonic
        self._collectives: Collectives | None = None
        self.traffic = TrafficCounter()
        """What this rank has sent."""
        self.recorder = recorder or Recorder()
        self.recorder.publish = self._show

    def take(self, round_: int, amount: int) -> int:
        """Take so many batches of this round; answers how many were taken before."""
        self.traffic.num_store += 1
        return int(self._store.add(f"taken/{round_}", amount)) - amount

    def add_speed(self, change: int) -> int:
        """Change the shared speed; answers what it is then."""
        self.traffic.num_store += 1
        return int(self._store.add("speed", change))

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
            Stalled: No rank began anything for too long; it names the ranks that are missing.
        """
        self.recorder.note(f"wait for all at {point}", wait=True)
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
                self._while_waiting()
                now = self._store.add("steps", 0)
                if now != moved:
                    moved, since = now, self._monotonic()
                elif self._monotonic() - since > self._stall_timeout_s:
                    missing = owners()
                    msg = (
                        f"no rank moved for {self._stall_timeout_s:.0f} s while rank "
                        f"{self._rank.rank} waited for ranks {missing[:MOST_NAMED]}; "
                        f"{self.last_steps(missing)}; look at their logs"
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
        if self._collectives is not None:
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
        nodes: list[Any] = [None] * self._rank.world_size
        dist.all_gather_object(nodes, self._rank.node_rank)
        self.traffic.layout = NodeLayout(tuple(nodes))
        self._collectives = form_circles(
            self._rank.rank, self.traffic.layout, self.traffic, COLLECTIVE_TIMEOUT
        )

    def reduce(self, value: A) -> A | None:
        """The sum over all ranks, on rank 0; None elsewhere."""
        return self._together("reduce", lambda all_: all_.reduce(value))

    def gather(self, value: T) -> list[T] | None:
        """Values of all ranks by rank, on rank 0; None elsewhere."""
        return self._together("gather", lambda all_: all_.gather(value))

    def gather_by_node(self, value: T) -> Gathered[T]:
        """Values of all ranks on rank 0, and of each node on its leader."""

        def by_node(all_: Collectives) -> Gathered[T]:
            node = all_.gather_node(value)
            nodes = None if node is None else all_.gather_leaders(node)
            return Gathered(node, None if nodes is None else all_.by_rank(nodes))

        return self._together("gather", by_node)

    def all_gather(self, value: T) -> list[T]:
        """Values of all ranks by rank."""
        return self._together("all_gather", lambda all_: all_.all_gather(value))

    def _together(self, name: str, exchange: Callable[[Collectives], T]) -> T:
        """Do something that all ranks do.

        Raises:
            Communication: A rank is gone or does not come; it tells what each rank did last.
        """
        assert self._collectives is not None, "ranks exchange once they have met"
        self.recorder.note(f"{name} with all ranks", wait=True)
        try:
            return exchange(self._collectives)
        except (dist.DistError, RuntimeError) as error:
            others = [rank for rank in range(self._rank.world_size) if rank != self._rank.rank]
            msg = (
                f"rank {self._rank.rank} lost the others in {name}: {error}; "
                f"{self.last_steps(others)}"
            )
            raise Communication(msg) from error

    def last_steps(self, ranks: Sequence[int]) -> str:
        """What some ranks last said that they began, in words; the first ten of them."""
        try:
            steps = [(rank, self._last_step(rank)) for rank in ranks[:MOST_NAMED]]
        except (dist.DistError, RuntimeError) as error:
            return f"what they did last is lost with the store ({error})"
        return "; ".join(f"rank {rank} last began: {step}" for rank, step in steps)

    def _last_step(self, rank: int) -> str:
        key = f"step/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else "nothing"

    def _show(self, step: str) -> None:
        self.traffic.num_store += 2
        self._store.set(f"step/{self._rank.rank}", step)
        self._store.add("steps", 1)


def connect(
    rank: RankInfo, spec: LaunchSpec, recorder: Recorder, while_waiting: Callable[[], None]
) -> Peers:
    """Reach the store.

    Args:
        rank: This one.
        spec: Of the launch.
        recorder: Of this rank; the others see its newest step.
        while_waiting: Called now and then while this rank waits for others, which may take long.

    Raises:
        Communication: It can't be reached.
    """
    # A prefix of its own per restart: ranks that torchrun restarts share the store with those that
    # ended, and would read their addresses.
    prefix = f"assay/{spec.job_id}/{spec.attempt}/{rank.restart}"
    try:
        store = dist.PrefixStore(prefix, _store(rank))
        return Peers(rank, store, recorder=recorder, while_waiting=while_waiting)
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
