"""How fast nodes were: measured by a run, kept by the server, given to the next run."""

from typing import Annotated

from pydantic import Field

from evaluator.contract.base import Contract, Digest, Name, PositiveCount


class LengthSpeed(Contract):
    """Time per token of windows of one length."""

    num_inputs: PositiveCount
    """A power of two: windows of at most so many inputs, and of more than half of it."""
    seconds_per_token: Annotated[float, Field(gt=0)]
    """Of input tokens, recent batches weighing most."""


class NodeSpeed(Contract):
    """What one node was seen to do with one model."""

    host: Name
    model_digest: Digest
    speeds: Annotated[tuple[LengthSpeed, ...], Field(min_length=1, max_length=32)]
