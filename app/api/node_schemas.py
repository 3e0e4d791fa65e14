"""What the API answers with of nodes and ranks."""

from typing import Literal

from app.api.view import DurationSeconds, Number, Time, View
from evaluator.contract.efficiency import Limits, Work
from evaluator.contract.reports import Traffic


class RankTimes(View):
    """Where a rank's time went so far, and what it did in it."""

    rank: Number
    local_rank: Number
    load_seconds: DurationSeconds
    """Reading or converting the weights and the tokenizer."""
    tokenise_seconds: DurationSeconds
    """Reading the text, tokenising it and deriving the plan."""
    warm_up_seconds: DurationSeconds
    """The first forward, whose result is thrown away."""
    compute_seconds: DurationSeconds
    """Forwards and losses that count."""
    processor_seconds: DurationSeconds
    """CPU time that the process had during `compute_seconds`, of all its threads."""
    audit_seconds: DurationSeconds
    """Scoring windows of others again, and waiting for their answers."""
    wait_seconds: DurationSeconds
    """Blocked until other ranks got to the same point."""
    communicate_seconds: DurationSeconds
    """Leases and exchange between ranks, without waiting."""
    wall_seconds: DurationSeconds
    """Since the process started."""
    num_leases: Number
    """Times that the rank took batches."""
    expected_seconds: DurationSeconds
    """What it expected of itself, batch by batch, once it had a figure to go by."""
    measured_seconds: DurationSeconds
    """What the same batches took."""
    num_out_of_memory: Number
    """Forwards that did not fit and were tried again in smaller parts."""
    traffic: Traffic
    """What the rank sent."""
    work: Work
    limits: Limits | None
    """Measured at the end; null before, and of ranks that share a model."""
    num_batches: Number
    num_input_tokens: Number
    """Tokens fed to the model."""
    num_scored_tokens: Number
    peak_memory_bytes: Number
    """Peak resident memory on CPU, peak allocated memory on a GPU."""


class RankView(RankTimes):
    """A process of the current attempt, as it last reported."""

    device: str
    stage: str | None
    last_seen_at: Time


class NodeView(View):
    """A machine of the current attempt."""

    node_rank: Number
    host: str
    ranks: list[RankView]


class SpeedsView(View):
    """Seconds of compute for each token fed, over ranks that have fed any."""

    least_seconds: float
    most_seconds: float
    ratio: float
    coefficient_of_variation: float


class SlowestView(View):
    """The rank that lost most against the others, and the largest part of what it lost."""

    rank: Number
    node_rank: Number
    reason: Literal["slow_compute", "slow_load", "waiting"]
    load_excess_seconds: DurationSeconds
    compute_excess_seconds: DurationSeconds
    waiting_seconds: DurationSeconds


class NodesView(View):
    """Where the time of the current attempt goes. docs/metrics.md defines speeds and slowest."""

    nodes: list[NodeView]
    speeds: SpeedsView | None
    """Null with fewer than two ranks that have scored."""
    slowest: SlowestView | None
    """Null with fewer than two ranks."""


class NodeTimingView(View):
    """Data of a `timing` event: final times of one node."""

    node_rank: Number
    host: str
    ranks: list[RankTimes]
