"""What a run sends back. Every report is also appended to the spool, in the same order.

Numbering: each rank numbers its reports 1, 2, 3, ... (`seq`) and delivers them in that order, so
the server ignores what it has seen and reads the rest from the spool after the launch has ended.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evaluator.contract.base import (
    Contract,
    Count,
    Digest,
    Name,
    Nats,
    PositiveCount,
    Seconds,
)
from evaluator.contract.parallelism import GroupShape, ParallelismUsed
from evaluator.contract.states import FailureReason


class LedgerEntry(Contract):
    """A finished batch. The same batch twice must carry the same numbers."""

    batch: Count
    nll_nats: tuple[Nats, ...]
    """Per window, in the order of the plan; float64, written so that it reads back exactly."""
    nll_squares: tuple[Annotated[float, Field(ge=0)], ...]
    """Per window, the sum of the squares of its tokens' nll; float64."""
    num_scored: tuple[Count, ...]
    """Per window, scored tokens."""

    @model_validator(mode="after")
    def _same_length(self) -> "LedgerEntry":
        lengths = len(self.nll_nats), len(self.nll_squares), len(self.num_scored)
        if len(set(lengths)) != 1:
            msg = f"batch {self.batch}: nll, squares and counts of {lengths} windows"
            raise ValueError(msg)
        return self


class RankTiming(Contract):
    """Where one rank's time went so far, and what it did in it."""

    rank: Count
    local_rank: Count
    node_rank: Count
    load_s: Seconds = 0.0
    """Reading or converting the weights and the tokenizer."""
    tokenise_s: Seconds = 0.0
    """Reading the text, tokenising it and deriving the plan."""
    warm_up_s: Seconds = 0.0
    """The first forward, whose result is thrown away."""
    compute_s: Seconds = 0.0
    """Forwards and losses that count."""
    wait_s: Seconds = 0.0
    """Blocked until other ranks got to the same point."""
    communicate_s: Seconds = 0.0
    """Leases and exchange between ranks, without waiting."""
    wall_s: Seconds = 0.0
    """Since the process started."""
    num_batches: Count = 0
    num_input_tokens: Count = 0
    """Tokens fed to the model."""
    num_scored_tokens: Count = 0
    peak_memory_bytes: Count = 0
    """Peak resident memory on CPU, peak allocated memory on a GPU."""


class ReportBase(Contract):
    """What every report has."""

    rank: Count
    seq: PositiveCount


class Hello(ReportBase):
    """The first word of a rank, before it loads anything large."""

    type: Literal["hello"] = "hello"
    local_rank: Count
    node_rank: Count
    world_size: PositiveCount
    host: Name
    pid: PositiveCount
    device: Name
    versions: dict[str, str]
    """Of python, torch, transformers and the evaluator."""


Stage = Literal["load", "tokenise", "warm_up", "score", "reduce"]
"""What a rank is at, in this order."""


class PlanFacts(Contract):
    """The size of the work; the same on every rank."""

    digest: Digest
    num_documents: Count
    num_windows: Count
    num_batches: Count
    num_input_tokens: Count
    num_scored_tokens: Count


class PlanReady(ReportBase):
    """The plan stands (sent by rank 0)."""

    type: Literal["plan"] = "plan"
    plan: PlanFacts
    model_digest: Digest | None = None
    """Of the weights; a later attempt gets it back as `finished_model`."""
    group: GroupShape = GroupShape()
    """Of the scoring groups; a later attempt gets it back as `finished_group`."""


class Progress(ReportBase):
    """What is new since the last report of this rank."""

    type: Literal["progress"] = "progress"
    stage: Stage
    timing: RankTiming
    entries: tuple[LedgerEntry, ...] = ()


class NodeTiming(ReportBase):
    """Final timings of one node (sent by its local rank 0)."""

    type: Literal["node_timing"] = "node_timing"
    node_rank: Count
    host: Name
    ranks: Annotated[tuple[RankTiming, ...], Field(min_length=1)]


class ScoringUsed(Contract):
    """The convention as it was really applied, nothing left to `auto`."""

    convention: Name
    window: PositiveCount
    stride: PositiveCount
    batch_tokens: PositiveCount
    prefix: Literal["bos", "eos", "none"]
    prefix_token_id: Count | None
    prefix_place: Literal["none", "first", "every", "replaces"]
    """In front of the first window, of every window, or in place of every window's first token."""
    special_tokens: Literal["text", "parse"]
    join: str | None
    """Text between the documents of a stream; null where documents are apart."""
    definition: str
    """One sentence: which tokens are scored, and given what."""


class Perplexity(Contract):
    """The figure and everything needed to check it. Definitions: docs/metrics.md."""

    token_perplexity: Annotated[float, Field(gt=0)] | None
    """exp(nll_sum_nats / num_scored_tokens); null where that exceeds float64."""
    token_perplexity_standard_error: Annotated[float, Field(ge=0)] | None
    token_perplexity_interval_95: tuple[float, float] | None
    """Through the logarithm: exp(mean -+ 1.96 standard errors)."""
    mean_nll_nats: Nats
    mean_nll_standard_error: Annotated[float, Field(ge=0)] | None
    """Clustered; null with fewer than two clusters."""
    standard_error_clusters: Literal["documents", "windows"]
    num_clusters: Count
    naive_standard_error: Annotated[float, Field(ge=0)] | None
    """Of the mean nll, as if tokens were independent of each other; too small."""
    bits_per_byte: float
    byte_perplexity: Annotated[float, Field(gt=0)] | None
    word_perplexity: Annotated[float, Field(gt=0)] | None
    """exp(nll_sum_nats / num_words); null where that exceeds float64 or there is no word."""
    word_rule: str
    """How words are counted."""
    num_words: Count
    nll_sum_nats: Nats
    num_scored_tokens: PositiveCount
    num_tokens: PositiveCount
    """Tokens of the scored documents, special tokens not counted."""
    num_bytes: PositiveCount
    """UTF-8 bytes of the scored documents, as they were before detokenising."""
    num_documents: PositiveCount
    num_windows: PositiveCount
    excluded_documents: dict[str, int]
    """Documents left out, by reason."""
    excluded_tokens: dict[str, int]
    """Tokens of scored documents that were not scored, by reason."""
    num_replaced: Count
    """Invalid UTF-8 sequences that were replaced, where `data.errors` is `replace`."""


class Result(ReportBase):
    """The end of a run that went well (sent by rank 0)."""

    type: Literal["result"] = "result"
    perplexity: Perplexity
    scoring: ScoringUsed
    plan: PlanFacts
    model_digest: Digest
    data_digest: Digest
    windows_digest: Digest
    """Of the per-window records (`windows.jsonl.gz` in the run directory), uncompressed."""
    tokenizer_digest: Digest
    device: Name
    dtype: Name
    threads_per_rank: PositiveCount
    world_size: PositiveCount
    parallelism: ParallelismUsed
    num_batches_resumed: Count
    """Batches taken over from earlier attempts."""
    wall_s: Seconds
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()


class Failure(ReportBase):
    """The end of a rank that went wrong."""

    type: Literal["failure"] = "failure"
    reason: FailureReason
    message: str
    """One sentence that names place, value and remedy."""
    traceback_tail: str = ""


Report = Annotated[
    Hello | PlanReady | Progress | NodeTiming | Result | Failure, Field(discriminator="type")
]


class ReportBatch(Contract):
    """The body of one POST: reports of one rank, in order."""

    contract_version: int
    reports: Annotated[tuple[Report, ...], Field(min_length=1, max_length=1000)]


class WindowRecord(Contract):
    """One line of the per-window records."""

    document: Count
    """Index in the data set, excluded documents counted."""
    begin: Count
    """First scored token of the document (or stream)."""
    num_scored: Count
    nll_nats: Nats
    num_bytes: Count
    """UTF-8 bytes of the document on the first record of each document, else 0; so that bits per
    byte can be compared by document."""
