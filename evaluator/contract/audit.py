"""The audit: what is asked of it, and what it found."""

from typing import Annotated, Literal

from pydantic import Field

from evaluator.contract.base import Contract, Count, Nats, PositiveCount


class Audit(Contract):
    """Windows that are scored again on another rank, so that a wrong node is found."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Of each rank's windows; 0 switches the audit off."""
    windows_per_rank: PositiveCount = 2
    """Fewest, where a rank has so many."""
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest relative difference of a window's nll; null takes 0 in float32 on equal CPUs, 1e-6
    in float32 otherwise, and 2e-3 in 16 bits."""


class Author(Contract):
    """Who scored a batch: a rank of an attempt."""

    attempt: PositiveCount
    rank: Count
    node_rank: Count
    host: str


class WindowInDispute(Contract):
    """A window, and what its two sides say that it is worth."""

    document: Count
    begin: Count
    """First scored token."""
    nll_nats: Nats | None
    """By the rank that is wrong; null where it came to no finite number."""
    nll_nats_by_others: Nats | None
    """Likewise."""


class Suspect(Contract):
    """A rank whose numbers are wrong. All that it had scored was scored again."""

    author: Author
    reason: Literal["outvoted", "not_repeatable", "weights_changed"]
    """Most ranks contradict it; it contradicts itself when asked again; its weights in memory are
    no longer those that all ranks began with."""
    window: WindowInDispute | None
    """Null where the weights alone told."""
    num_batches: Count
    """That were dropped and scored again."""


class AuditResult(Contract):
    """What the audit of a run came to."""

    num_windows: Count
    """That were scored again by another rank."""
    num_unchecked_batches: Count
    """Of ranks whose windows nobody could score again; 0 where the audit is whole."""
    tolerance: Annotated[float, Field(ge=0)]
    """Between ranks of this attempt."""
    largest_difference: Annotated[float, Field(ge=0)]
    """Relative, of the windows that count in the end."""
    quarantined: tuple[Suspect, ...]
    why_none: str | None
    """Why no window was scored again; null where some were."""
