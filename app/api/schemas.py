"""What the API answers with. Times are RFC 3339 in UTC with microseconds, durations in seconds."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.node_schemas import NodeView
from app.api.view import DurationSeconds, Fraction, Number, Time, View
from app.jobs.request import JobRequest
from evaluator.contract.audit import AuditResult
from evaluator.contract.efficiency import Efficiency
from evaluator.contract.parallelism import ParallelismUsed
from evaluator.contract.reports import (
    ContextNll,
    PackedTraffic,
    Perplexity,
    PlanFacts,
    ScoringUsed,
    Traffic,
)
from evaluator.contract.states import FailureReason, JobState


class Links(View):
    """Where to go from a job; paths on this server."""

    self: str
    cancel: str
    retry: str
    events: str
    logs: str
    nodes: str
    result: str
    windows: str


class ProgressView(View):
    """How far a job is."""

    stage: str | None
    """What the ranks were last heard doing: load, tokenise, warm_up, score or reduce."""
    fraction: Fraction | None
    """Scored tokens done of all; null before the plan is known, 1 only when succeeded."""
    num_batches_done: Number
    num_batches: Number | None
    num_scored_tokens_done: Number
    num_scored_tokens: Number | None
    tokens_per_second: Annotated[float, Field(ge=0)] | None
    """Scored tokens per second of compute, wait and communication, summed over ranks."""
    eta_seconds: DurationSeconds | None
    """Expected time left; null where nothing runs or no speed is known."""


class AttemptView(View):
    """One launch of a job."""

    number: Annotated[int, Field(ge=1)]
    created_at: Time
    started_at: Time | None
    """First report of a rank."""
    ended_at: Time | None
    """When no process was left."""
    reason: FailureReason | None
    """Why it ended without a result."""
    message: str | None
    exit_code: int | None
    signal: int | None
    """Number of the signal that ended the launch."""


class Digests(View):
    """SHA-256 of what was measured with what."""

    model: str
    data: str
    tokenizer: str
    windows: str
    """Of the per-window records, uncompressed."""
    tokens: str | None
    """Of the file with the nll of each token; null where that was not asked for."""


class ShareView(View):
    """What one node scored in one attempt."""

    attempt: Number
    node_rank: Number
    host: str
    num_batches: Number
    num_windows: Number
    num_scored_tokens: Number
    num_computed: Number
    """Batches that it computed, as it last reported. What another attempt had finished counts for
    that one, although `outputs.token_nll` has it computed again."""


class FindingView(View):
    """A batch that was scored twice, with different numbers.

    Those of the later attempt count, and of one attempt the first ones.
    """

    batch: Number
    first_attempt: Number | None = None
    first_rank: Number
    second_attempt: Number | None = None
    second_rank: Number


class AuditView(View):
    """What did not agree."""

    num_findings: Number
    findings: list[FindingView]
    """The first hundred."""
    sample: AuditResult
    """Windows that another rank scored again."""


class ResultView(View):
    """The result of a job that succeeded."""

    perplexity: Perplexity
    nll_by_context: list[ContextNll]
    """By how many inputs of its window a token had before it, in powers of two."""
    scoring: ScoringUsed
    plan: PlanFacts
    digests: Digests
    device: str
    dtype: str
    threads_per_rank: Number
    world_size: Number
    parallelism: ParallelismUsed
    num_batches_resumed: Number
    """Batches taken over from earlier attempts."""
    scored_by: list[ShareView]
    """All attempts and nodes; together they have scored the plan."""
    audit: AuditView
    sync_error: float
    """Relative difference between the total that ranks reduced, exactly, and the ledger's."""
    traffic: Traffic
    """What ranks sent to each other."""
    packed: PackedTraffic | None
    """The nll of tokens among it; null where `outputs.token_nll` is `none`."""
    efficiency: Efficiency
    """How near the run came to what its machines can do."""
    wall_seconds: DurationSeconds
    versions: dict[str, str]
    warnings: list[str]


class ResultSummary(View):
    """The figures that a list shows."""

    token_perplexity: float | None
    token_perplexity_standard_error: float | None
    bits_per_byte: float
    num_scored_tokens: Number


class JobBase(View):
    """What the list shows of a job, and the job itself too."""

    id: str
    project: str
    """Whose job it is. Jobs of another project are not there for a token of this one."""
    state: JobState
    is_terminal: bool
    """True where nothing but an explicit retry moves the job again. Rely on this, not on a list
    of states: states may be added."""
    state_reason: FailureReason | None
    message: str | None
    """One sentence that names place, value and remedy."""
    priority: int
    labels: dict[str, str]
    attempt: Number
    """Number of the current attempt; 0 before the first."""
    attempts_left: Number
    created_at: Time
    updated_at: Time
    started_at: Time | None
    deadline_at: Time | None
    ended_at: Time | None
    progress: ProgressView
    links: Links


class JobSummary(JobBase):
    """A job in a list."""

    result: ResultSummary | None


class JobView(JobBase):
    """A job."""

    request: JobRequest
    """What was asked for, defaults filled in."""
    attempts: list[AttemptView]
    nodes: list[NodeView]
    """Of the current attempt."""
    result: ResultView | None
    """Null until the job has succeeded."""


class JobPage(View):
    """A page of jobs, newest first."""

    items: list[JobSummary]
    next_cursor: str | None
    """Give it as `cursor` to get the next page; null at the end."""


class ComparedJob(View):
    """One side of a comparison."""

    job: str
    value: float
    """Mean nll over what was compared, in the measure's unit."""


class DifferenceView(View):
    """Something that the jobs do not share, and that does not keep them from being compared."""

    name: str
    baseline: str
    candidate: str


class SignTestView(View):
    """Clusters by the direction they moved in; a win is a lower nll of the candidate."""

    wins: Number
    losses: Number
    ties: Number
    """Left out of the test."""
    p_value: Fraction | None
    """Exact, two-sided; null where all are ties."""


class ComparisonView(View):
    """Two jobs side by side. Formulas: docs/metrics.md."""

    baseline: ComparedJob
    candidate: ComparedJob
    unit: Literal["window", "document"]
    """What is paired."""
    measure: Literal["nats_per_token", "bits_per_byte"]
    num_pairs: Number
    num_unpaired_documents: Number
    """Scored by one job only, and left out."""
    clusters: Literal["documents", "blocks"]
    """What the error takes as independent of each other: documents, or blocks of consecutive
    windows where there is one document only."""
    num_clusters: Number
    windows_per_block: Number | None
    """The last block may have fewer; null where clusters are documents."""
    denominator: Number
    """Scored tokens, or bytes, of all pairs."""
    difference: float
    """Candidate less baseline, in the measure's unit; below 0 the candidate is better."""
    standard_error: Annotated[float, Field(ge=0)] | None
    """Of the difference; null with fewer than two clusters."""
    interval_95: tuple[float, float] | None
    """Of the difference, by Student's t."""
    perplexity_ratio: float | None
    """Candidate to baseline, of token perplexities, or of byte perplexities where the measure is
    bits per byte; null where it exceeds float64."""
    perplexity_ratio_interval_95: tuple[float, float] | None
    wins: Number
    """Pairs in which the candidate has the lower nll."""
    losses: Number
    ties: Number
    sign_test: SignTestView
    differs: list[DifferenceView]
    sentence: str
    """What it comes to, in words."""


class Liveness(View):
    """The process answers."""

    status: Literal["ok"]


class Check(View):
    """One thing that has to be in order before the server can do its work."""

    name: str
    """`database`, `migrations`, or `worker:` and the name of a loop."""
    ok: bool
    detail: str | None
    """What is wrong."""


class Readiness(View):
    """The server can do its work."""

    status: Literal["ready"]
    checks: list[Check]


class ProblemPlace(BaseModel):
    """One thing that is wrong with the request."""

    model_config = ConfigDict(use_attribute_docstrings=True, populate_by_name=True)

    location: Annotated[Literal["body", "query", "path", "header"], Field(alias="in")]
    pointer: str
    """JSON pointer (RFC 6901) to the place: `/data/path` in the body, `/limit` in the query."""
    detail: str


class Problem(BaseModel):
    """Why a request was refused or failed (RFC 9457), as `application/problem+json`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """`urn:assay:problem:` and the code."""
    title: str
    """What kind of problem it is; the same for each occurrence."""
    status: int
    detail: str
    """What happened this time, and what to do about it."""
    instance: str
    """Path of the request."""
    code: str
    """Stable word for programs; docs/api.md lists them all."""
    request_id: str
    """Also in the header `X-Request-ID` and in the server's log."""
    errors: list[ProblemPlace]
    """Each thing that is wrong with the request, as far as it can be located."""
    checks: list[Check] | None = None
    """Only of `not_ready`: what was looked at."""
