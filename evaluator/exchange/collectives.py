"""Exchange among all ranks on two levels: inside a node, then among the leaders of nodes.

Values are gathered by the leader of each node, and by rank 0 from leaders, so between nodes a
message goes per node, not per rank; what is summed on the way goes per node in bytes as well.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar

import torch.distributed as dist

from evaluator.exchange.hierarchy import Message, NodeLayout
from evaluator.exchange.traffic import TrafficCounter

T = TypeVar("T")


class Addable(Protocol):
    """What can be summed on the way."""

    def __add__(self, other: Self) -> Self: ...


A = TypeVar("A", bound=Addable)


@dataclass(frozen=True)
class Circle:
    """Ranks that exchange; the first of them collects."""

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None
    """None where it is all ranks, or one."""

    @property
    def leader(self) -> int:
        """The rank that collects."""
        return self.ranks[0]

    def gather(self, rank: int, payload: bytes) -> list[bytes] | None:
        """Payloads of all its ranks, on the leader; None elsewhere. All of them call it."""
        gathered: list[Any] | None = [None] * len(self.ranks) if rank == self.leader else None
        dist.gather_object(payload, gathered, dst=self.leader, group=self.group)
        return gathered

    def broadcast(self, payload: bytes) -> bytes:
        """The payload of the leader. All ranks call it."""
        box = [payload]
        dist.broadcast_object_list(box, src=self.leader, group=self.group)
        return box[0]


@dataclass(frozen=True)
class Collectives:
    """One rank's side of the exchange. All ranks call the same methods in the same order."""

    rank: int
    layout: NodeLayout
    inside: Circle
    """Ranks of this node."""
    between: Circle
    """Leaders of all nodes; this rank may not be one of them."""
    traffic: TrafficCounter

    def gather_node(self, value: T) -> list[T] | None:
        """Values of this node's ranks, on its leader; None elsewhere."""
        payloads = self._collect(self.inside, pickle.dumps(value))
        return None if payloads is None else [_load(payload) for payload in payloads]

    def gather_leaders(self, value: T) -> list[T] | None:
        """Values of leaders by node, on rank 0; None elsewhere. Only leaders call it."""
        payloads = self._collect(self.between, pickle.dumps(value))
        return None if payloads is None else [_load(payload) for payload in payloads]

    def gather(self, value: T) -> list[T] | None:
        """Values of all ranks by rank, on rank 0; None elsewhere."""
        node = self.gather_node(value)
        nodes = None if node is None else self.gather_leaders(node)
        return None if nodes is None else self.by_rank(nodes)

    def by_rank(self, nodes: Sequence[Sequence[T]]) -> list[T]:
        """Values that are sorted by node and rank, by rank."""
        pairs = [
            pair
            for ranks, values in zip(self.layout.nodes, nodes, strict=True)
            for pair in zip(ranks, values, strict=True)
        ]
        return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]

    def reduce(self, value: A) -> A | None:
        """The sum over all ranks, on rank 0; None elsewhere."""
        node = self.gather_node(value)
        nodes = None if node is None else self.gather_leaders(_sum(node))
        return None if nodes is None else _sum(nodes)

    def all_gather(self, value: T) -> list[T]:
        """Values of all ranks by rank, on all ranks."""
        payload = pickle.dumps(self.gather(value))
        if self.rank in self.between.ranks:
            payload = self._spread(self.between, payload)
        found: list[T] = _load(self._spread(self.inside, payload))
        return found

    def _collect(self, circle: Circle, payload: bytes) -> list[bytes] | None:
        if len(circle.ranks) == 1:
            return [payload]
        if self.rank != circle.leader:
            self.traffic.count(Message(self.rank, circle.leader), len(payload))
        return circle.gather(self.rank, payload)

    def _spread(self, circle: Circle, payload: bytes) -> bytes:
        """The payload of the circle's first rank."""
        if len(circle.ranks) == 1:
            return payload
        spread = circle.broadcast(payload)
        if self.rank == circle.leader:
            for rank in circle.ranks[1:]:
                self.traffic.count(Message(circle.leader, rank), len(spread))
        return spread


def form_circles(
    rank: int, layout: NodeLayout, traffic: TrafficCounter, timeout: timedelta
) -> Collectives:
    """Make the groups; all ranks call it together, once the group of all ranks stands."""
    circles = [_circle(ranks, layout, timeout) for ranks in [*layout.nodes, layout.leaders]]
    inside = next(circle for circle in circles[:-1] if rank in circle.ranks)
    return Collectives(rank, layout, inside, circles[-1], traffic)


def _circle(ranks: tuple[int, ...], layout: NodeLayout, timeout: timedelta) -> Circle:
    if len(ranks) in (1, len(layout.node_by_rank)):
        return Circle(ranks, None)
    # Objects travel by Gloo on any device.
    return Circle(ranks, dist.new_group(list(ranks), timeout=timeout, backend="gloo"))


def _load(payload: bytes) -> Any:
    # From the other ranks of this launch, which run the same code on the same spec.
    return pickle.loads(payload)  # noqa: S301


def _sum(values: Sequence[A]) -> A:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
