"""The audit: what is asked of it, and what it found."""

from typing import Annotated

from pydantic import Field

from evaluator.contract.base import Contract, Count, Nats, PositiveCount


class Audit(Contract):
    """Windows that are scored again on another rank, so that a wrong node is found."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Of each rank's windows; 0 switches the audit off."""
    windows_per_rank: PositiveCount = 2
    """Fewest, where a rank has so many."""
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest relative difference of a window's nll; null takes 0 in float32 on CPUs, 1e-6 in
    float32 on GPUs, and 2e-3 in 16 bits."""


class Suspect(Contract):
    """A rank whose numbers were not those of others. All that it had scored was scored again."""

    rank: Count | None
    """Null where earlier attempts scored the batches."""
    node_rank: Count | None
    host: str | None
    document: Count
    """Of a window that differed."""
    begin: Count
    """First scored token of that window."""
    nll_nats: Nats
    """Of that window, by the rank."""
    nll_nats_by_others: Nats
    num_batches: Count
    """That were dropped and scored again."""


class AuditResult(Contract):
    """What the audit of a run came to."""

    num_windows: Count
    """That were scored again by another rank."""
    tolerance: Annotated[float, Field(ge=0)]
    largest_difference: Annotated[float, Field(ge=0)]
    """Relative, of the windows that count in the end."""
    quarantined: tuple[Suspect, ...]
    why_none: str | None
    """Why no window was scored again; null where some were."""
