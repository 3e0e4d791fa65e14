"""What a gate is asked: the rules, and what to compare with. Meanings: docs/gates.md."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from app.jobs.request import LabelKey, LabelValue
from evaluator.contract.base import Contract, encodable

WrittenJobId = Annotated[
    str,
    BeforeValidator(encodable),
    Field(max_length=100, examples=["job_01jb6v8cw3f4m5n6p7q8r9s0t1"]),
]
BaselineName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", examples=["default"])
]
DEFAULT_BASELINE = "default"


class ChangeRule(Contract):
    """The candidate may not be worse than the baseline, by the paired difference and its error."""

    kind: Literal["perplexity", "bits_per_byte"]
    """`perplexity` of tokens; `bits_per_byte` also compares models with different tokenizers."""
    max_regression_percent: Annotated[float, Field(ge=0.001, le=100)] = 0.5
    """The minimal relevant change: a candidate that is worse by as much has to be found."""
    level: Annotated[float, Field(ge=0.001, le=0.2)] = 0.05
    """Chance of either error: to fail a candidate that is as good as the baseline, and to pass one
    that is worse by the minimal relevant change."""


class LimitRule(Contract):
    """A figure of the candidate on this very text may not exceed a limit; no baseline is needed."""

    kind: Literal["limit"]
    figure: Literal["token_perplexity", "byte_perplexity", "word_perplexity", "bits_per_byte"]
    at_most: Annotated[float, Field(gt=0)]


class SpeedRule(Contract):
    """The candidate may not be slower than the baseline, by the noise of repeated runs of both."""

    kind: Literal["tokens_per_second"]
    max_regression_percent: Annotated[float, Field(ge=0.1, le=90)] = 5.0
    """The minimal relevant loss of speed."""
    level: Annotated[float, Field(ge=0.001, le=0.2)] = 0.05
    """Chance of either error, as for a change."""


Rule = Annotated[ChangeRule | LimitRule | SpeedRule, Field(discriminator="kind")]


class JobBaseline(Contract):
    """A job by its id."""

    kind: Literal["job"]
    job: WrittenJobId


class NewestBaseline(Contract):
    """The newest job with these labels that succeeded, of those submitted before the candidate."""

    kind: Literal["newest"]
    labels: Annotated[
        dict[LabelKey, LabelValue],
        Field(
            min_length=1,
            max_length=32,
            # So it is, but pydantic does not write it where keys have a pattern.
            json_schema_extra={"additionalProperties": False},
        ),
    ]


class PromotedBaseline(Contract):
    """The job that was promoted under a name."""

    kind: Literal["promoted"]
    name: BaselineName = DEFAULT_BASELINE


BaselineSelector = Annotated[
    JobBaseline | NewestBaseline | PromotedBaseline, Field(discriminator="kind")
]


class GateRequest(Contract):
    """A candidate, what it is compared with, and the rules."""

    candidate: WrittenJobId
    """Id of the job in question; it must have succeeded."""
    baseline: BaselineSelector = PromotedBaseline(kind="promoted")
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=20)] = (
        ChangeRule(kind="perplexity"),
    )
