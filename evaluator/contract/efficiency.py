"""How well a run used its machines: counts of what was computed, beside what a rank could do."""

from typing import Annotated, Literal

from pydantic import Field

from evaluator.contract.base import Contract, Count

Rate = Annotated[float, Field(gt=0)]
"""Per second."""
Share = Annotated[float, Field(ge=0)]
"""Of a measured limit. Above 1 where the limit was measured while others disturbed it."""


class Work(Contract):
    """What a rank's forwards did, counted as they ran. Without the warm-up and the audit."""

    num_forwards: Count = 0
    num_fed_tokens: Count = 0
    """Tokens that went into these forwards, whatever the plan says."""
    num_head_positions: Count = 0
    """Positions for which logits were computed."""
    operations: Annotated[float, Field(ge=0)] | None = None
    """Floating point operations of the matrix products; null where they can't be counted."""
    weight_bytes: Annotated[float, Field(ge=0)] | None = None
    """Bytes of weights that had to be read; null as above."""


class Limits(Contract):
    """What a rank could do, measured after it had scored, at the same time as all others."""

    operations_per_second: Rate
    """In a product of two square matrices of the run's dtype, with the rank's threads."""
    bytes_per_second: Rate
    """Reading the largest weights of the model."""


Bound = Literal["compute", "memory", "waiting", "contention", "overhead"]
"""`waiting`: more time went into waiting and leases than into forwards. `contention`: others had a
third or more of the processor time that the ranks' threads could have had. `compute`, `memory`: of
the two limits the nearer one. `overhead`: both are far; time goes into what is no product."""


class Efficiency(Contract):
    """Over all ranks of the last attempt. Definitions: docs/metrics.md."""

    num_forwards: Count
    num_fed_tokens: Count
    num_head_positions: Count
    padding_share: Annotated[float, Field(ge=0, le=1)] | None
    """Of the fed tokens, those that are in no window; null where nothing was fed."""
    fed_tokens_per_scored_token: Annotated[float, Field(ge=0)] | None
    """What overlap and context cost; 1 at best. Null where nothing was scored."""
    waiting_share: Annotated[float, Field(ge=0, le=1)] | None
    """Waiting and leases, of all time in which ranks computed or waited."""
    processor_share: Share | None
    """CPU time that ranks had while they computed, of what their threads could have had; null on a
    GPU, and where nothing was computed."""
    operations_per_second: Rate | None
    """Of one rank, while it computes, as are the next three; the mean by time."""
    peak_operations_per_second: Rate | None
    bytes_per_second: Rate | None
    peak_bytes_per_second: Rate | None
    peak_share: Share | None
    """Operations, of those that fit into the same seconds at the measured peak."""
    bandwidth_share: Share | None
    bound: Bound | None
    why_unknown: str | None
    """Why there are no rates; null where there are."""
