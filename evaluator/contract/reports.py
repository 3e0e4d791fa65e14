"""What a run sends back. Every report is also appended to the spool, in the same order.

Numbering: each rank numbers its reports 1, 2, 3, ... (`seq`) and delivers them in that order, so
the server ignores what it has seen and reads the rest from the spool after the launch has ended.
"""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from evaluator.contract.audit import AuditResult, Author, Suspect
from evaluator.contract.base import (
    Contract,
    Count,
    Digest,
    Name,
    Nats,
    PositiveCount,
    Seconds,
)
from evaluator.contract.efficiency import Efficiency, Limits, Work
from evaluator.contract.parallelism import GroupShape, ParallelismUsed
from evaluator.contract.speeds import LengthSpeed
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
    round: Count = 0
    """Grows by one each time the audit has batches scored again; the highest counts."""
    nll_by_context: tuple[Nats, ...]
    """Over all windows, by powers of two of the context: 1, 2-3, 4-7, ... inputs before a token."""

    @model_validator(mode="after")
    def _same_length(self) -> "LedgerEntry":
        lengths = len(self.nll_nats), len(self.nll_squares), len(self.num_scored)
        if len(set(lengths)) != 1:
            msg = f"batch {self.batch}: nll, squares and counts of {lengths} windows"
            raise ValueError(msg)
        return self


class FinishedEntry(Contract):
    """A batch that an earlier attempt finished, and who did; the next attempt audits each rank."""

    author: Author
    entry: LedgerEntry


class Traffic(Contract):
    """What ranks sent to each other, without what the transport adds."""

    num_inside: Count = 0
    """Messages to ranks of the same node."""
    bytes_inside: Count = 0
    num_between: Count = 0
    """Messages to ranks of other nodes."""
    bytes_between: Count = 0
    num_store: Count = 0
    """Requests to the store that has leases and steps; a few dozen bytes each."""

    def __add__(self, other: "Traffic") -> "Traffic":
        """Of both."""
        ours, theirs = self.model_dump(), other.model_dump()
        return Traffic(**{name: ours[name] + theirs[name] for name in ours})


class PackedTraffic(Contract):
    """The nll of tokens on their way to rank 0."""

    bytes_before: Count
    """As float32."""
    bytes_after: Count
    """As they travelled, which is as they are stored."""
    largest_error_nats: Annotated[float, Field(ge=0)]
    """Of any token, its own rank's among them."""


class Step(Contract):
    """Something that a rank began to do."""

    at: AwareDatetime
    what: str


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
    processor_s: Seconds = 0.0
    """CPU time that the process had during `compute_s`, of all its threads."""
    audit_s: Seconds = 0.0
    """Scoring windows of others again, and waiting for their answers."""
    wait_s: Seconds = 0.0
    """Blocked until other ranks got to the same point."""
    communicate_s: Seconds = 0.0
    """Leases and exchange between ranks, without waiting."""
    wall_s: Seconds = 0.0
    """Since the process started."""
    num_leases: Count = 0
    """Times that the rank took batches."""
    expected_s: Seconds = 0.0
    """What it expected of itself, batch by batch, once it had a figure to go by."""
    measured_s: Seconds = 0.0
    """What the same batches took."""
    speeds: tuple[LengthSpeed, ...] = ()
    """Measured, by the length of windows."""
    num_out_of_memory: Count = 0
    """Forwards that did not fit and were tried again in smaller parts."""
    traffic: Traffic = Traffic()
    """What the rank sent."""
    work: Work = Work()
    limits: Limits | None = None
    """Measured at the end; null before, and of ranks that share a model."""
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


Stage = Literal["load", "tokenise", "warm_up", "score", "audit", "reduce"]
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


class Quarantine(ReportBase):
    """A rank was found to be wrong; its batches are scored again by others (sent by rank 0)."""

    type: Literal["quarantine"] = "quarantine"
    suspect: Suspect


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
    tail: Literal["drop", "keep"] | None
    """What became of a last window that was not full; null where it is an ordinary one."""
    definition: str
    """One sentence: which tokens are scored, and given what."""


class Perplexity(Contract):
    """The figure and everything needed to check it. Definitions: docs/metrics.md."""

    token_perplexity: Annotated[float, Field(gt=0)] | None
    """exp(nll_sum_nats / num_scored_tokens); null where that exceeds float64."""
    token_perplexity_standard_error: Annotated[float, Field(ge=0)] | None
    token_perplexity_interval_95: tuple[float, float] | None
    """Through the logarithm: exp(mean -+ t standard errors), Student's t of num_clusters - 1."""
    mean_nll_nats: Nats
    mean_nll_standard_error: Annotated[float, Field(ge=0)] | None
    """Clustered; null with fewer than two clusters."""
    standard_error_clusters: Literal["documents", "blocks"]
    """`blocks` of consecutive windows where there is one document only."""
    num_clusters: Count
    windows_per_block: PositiveCount | None
    """The last block may have fewer; null where clusters are documents."""
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


class ContextNll(Contract):
    """The scored tokens that had about as much before them in their window."""

    first_context: PositiveCount
    """Fewest inputs before a token, a prefix token counted."""
    last_context: PositiveCount
    """Most."""
    num_scored_tokens: PositiveCount
    nll_sum_nats: Nats
    mean_nll_nats: Nats


class Result(ReportBase):
    """The end of a run that went well (sent by rank 0)."""

    type: Literal["result"] = "result"
    perplexity: Perplexity
    nll_by_context: tuple[ContextNll, ...]
    """In order, buckets without a scored token left out; together they are all scored tokens."""
    scoring: ScoringUsed
    plan: PlanFacts
    model_digest: Digest
    data_digest: Digest
    windows_digest: Digest
    """Of the per-window records (`windows.jsonl.gz` in the run directory), uncompressed."""
    tokens_digest: Digest | None
    """Of `tokens.npz` in the run directory; null where `outputs.token_nll` is `none`."""
    tokenizer_digest: Digest
    device: Name
    dtype: Name
    threads_per_rank: PositiveCount
    world_size: PositiveCount
    parallelism: ParallelismUsed
    num_batches_resumed: Count
    """Batches taken over from earlier attempts."""
    audit: AuditResult
    sync_error: Annotated[float, Field(ge=0)]
    """Relative difference between the total that ranks reduced among themselves, exactly, and the
    sum of the ledger: 0 unless something is broken."""
    traffic: Traffic
    """Of all ranks, but for their very last words: this account itself."""
    packed: PackedTraffic | None
    """Null where `outputs.token_nll` is `none`."""
    efficiency: Efficiency
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
    steps: tuple[Step, ...] = ()
    """The last things that the rank began, oldest first."""


Report = Annotated[
    Hello | PlanReady | Progress | Quarantine | NodeTiming | Result | Failure,
    Field(discriminator="type"),
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
