"""What a server hands to an agent that was started before its job."""

from evaluator.contract.base import Contract, PathText, PositiveCount

READY_FILE = "warm"
"""In the agent's folder once it is ready to take a job."""
ORDER_FILE = "warm.json"
"""The job, a `WarmOrder`; it appears whole, and the agent takes it at once."""


class WarmOrder(Contract):
    """One launch on this node."""

    num_ranks: PositiveCount
    spec_path: PathText
    env: dict[str, str]
    """Added to the environment of the ranks."""
