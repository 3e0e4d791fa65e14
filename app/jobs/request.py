"""What somebody asks for: the one model of a job request."""

from typing import Annotated

from pydantic import Field

from evaluator.contract.audit import Audit
from evaluator.contract.base import Contract
from evaluator.contract.data import DataSource
from evaluator.contract.launch import Layout, ModelSource
from evaluator.contract.scoring import LmEvalScoring, Outputs, Scoring

LabelKey = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w./-]*$")]
LabelValue = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Limits(Contract):
    """How long and how often to try."""

    time_seconds: Annotated[int, Field(strict=True, ge=1, le=30 * 86_400)] = 86_400
    """Most seconds from the first launch to the end, all attempts together."""
    attempts: Annotated[int, Field(strict=True, ge=1, le=20)] = 3
    """Most launches; another one is made only where trying again can help."""


class JobRequest(Contract):
    """One evaluation: this model, this text, scored like this, on so many ranks."""

    model: ModelSource
    data: DataSource
    scoring: Scoring = LmEvalScoring()
    outputs: Outputs = Outputs()
    launch: Layout = Layout()
    audit: Audit = Audit()
    limits: Limits = Limits()
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32, default_factory=dict)]
    """Words to find the job by."""
    priority: Annotated[int, Field(strict=True, ge=-100, le=100)] = 0
    """Higher goes first."""
