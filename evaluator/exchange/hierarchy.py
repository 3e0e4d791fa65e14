"""Ranks by node, and how values travel on two levels: inside a node, then among node leaders.

Pure; must not import torch. `process_group` moves the values, and a simulation can.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Message(NamedTuple):
    """One value on its way to rank 0."""

    source: int
    destination: int


@dataclass(frozen=True)
class NodeLayout:
    """Which ranks are on which node."""

    node_by_rank: tuple[int, ...]

    @classmethod
    def even(cls, num_nodes: int, ranks_per_node: int) -> "NodeLayout":
        """As torchrun numbers ranks."""
        return cls(tuple(node for node in range(num_nodes) for _ in range(ranks_per_node)))

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each node, its leader first; the node of rank 0 is the first one."""
        by_node: dict[int, list[int]] = {}
        for rank, node in enumerate(self.node_by_rank):
            by_node.setdefault(node, []).append(rank)
        return tuple(tuple(ranks) for ranks in by_node.values())

    @property
    def leaders(self) -> tuple[int, ...]:
        """The lowest rank of each node; rank 0 is among them."""
        return tuple(ranks[0] for ranks in self.nodes)

    def crosses(self, message: Message) -> bool:
        """True where a message leaves its node."""
        return self.node_by_rank[message.source] != self.node_by_rank[message.destination]

    def inside(self) -> list[Message]:
        """First level: from ranks to the leader of their node."""
        return [Message(rank, ranks[0]) for ranks in self.nodes for rank in ranks[1:]]

    def between(self) -> list[Message]:
        """Second level: from leaders to rank 0."""
        return [Message(leader, 0) for leader in self.leaders if leader != 0]

    def flat(self) -> list[Message]:
        """The one level that this takes the place of: from every rank to rank 0."""
        return [Message(rank, 0) for rank in range(1, len(self.node_by_rank))]


@dataclass(frozen=True)
class ExactTotal:
    """A sum of float64 without any rounding, so the order and grouping of ranks can't show in it.

    Source: every float64 is a whole number of 2^-1074, the smallest one.
    """

    units: int = 0
    """Whole numbers of 2^-1074 nats."""

    UNIT_BITS = 1074

    @classmethod
    def of(cls, values: Iterable[float]) -> "ExactTotal":
        """The sum of finite float64 values."""
        units = 0
        for value in values:
            numerator, denominator = value.as_integer_ratio()
            # The denominator is a power of two, at most 2^1074.
            units += numerator << (cls.UNIT_BITS + 1 - denominator.bit_length())
        return cls(units)

    def __add__(self, other: "ExactTotal") -> "ExactTotal":
        return ExactTotal(self.units + other.units)

    @property
    def nll_nats(self) -> float:
        """Rounded once, to the nearest float64: what `math.fsum` gives over all values."""
        return self.units / (1 << self.UNIT_BITS)
