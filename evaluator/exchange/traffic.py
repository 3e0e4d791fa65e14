"""Counts what a rank sends to others: messages and bytes, inside its node and between nodes.

Must not import torch.
"""

from dataclasses import dataclass, field

from evaluator.contract.reports import Traffic
from evaluator.exchange.hierarchy import Message, NodeLayout


@dataclass
class TrafficCounter:
    """Of one rank; payloads as they are handed over, without what the transport adds."""

    layout: NodeLayout = field(default_factory=lambda: NodeLayout((0,)))
    num_inside: int = 0
    bytes_inside: int = 0
    num_between: int = 0
    bytes_between: int = 0
    num_store: int = 0

    def count(self, message: Message, num_bytes: int) -> None:
        """Count one message that this rank sends."""
        if self.layout.crosses(message):
            self.num_between += 1
            self.bytes_between += num_bytes
        else:
            self.num_inside += 1
            self.bytes_inside += num_bytes

    def snapshot(self) -> Traffic:
        """Everything so far."""
        return Traffic(
            num_inside=self.num_inside,
            bytes_inside=self.bytes_inside,
            num_between=self.num_between,
            bytes_between=self.bytes_between,
            num_store=self.num_store,
        )
