"""What gates and baselines answer with. Formulas: docs/gates.md."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.schemas import DifferenceView
from app.api.view import Number, Time, View
from app.gates.rules import ChangeRule, LimitRule, SpeedRule
from app.gates.verdict import Verdict


class BaselineView(View):
    """A job that others are compared with."""

    name: str
    job: str
    """Its id."""
    promoted_at: Time


class NumbersView(View):
    """What a rule about a change was decided from, over the text that both jobs have scored."""

    baseline: float | None
    """Token perplexity, null where it exceeds float64; or bits per byte, null where the text has
    no bytes."""
    candidate: float | None
    change_percent: float | None
    """Of the candidate against the baseline; above 0 it is worse. Null where it exceeds float64."""
    lower_percent: float | None
    """The change is at least so large, but for a chance of the rule's level; null with fewer than
    two clusters."""
    upper_percent: float | None
    """The same: at most."""
    clusters: Literal["documents", "blocks"]
    """What the error takes as independent of each other."""
    num_clusters: Number
    num_tokens: Number
    """Scored by the candidate."""
    num_more_tokens: Annotated[int, Field(ge=1)] | None
    """So many more tokens of the kind would settle it; null where it is settled, or unknown."""


class ChangeOutcomeView(View):
    """What a rule about a change came to."""

    rule: ChangeRule
    verdict: Verdict
    numbers: NumbersView | None
    """Null without a baseline."""
    sentence: str
    """Why it is this verdict."""


class LimitOutcomeView(View):
    """What a limit came to."""

    rule: LimitRule
    verdict: Verdict
    value: float | None
    """The candidate's figure; null where it exceeds float64, or the text has no word."""
    sentence: str
    """Why it is this verdict."""


class SpeedNumbersView(View):
    """What a rule about speed was decided from."""

    baseline: float
    """Scored tokens a second over all ranks; the geometric mean of the runs."""
    candidate: float
    change_percent: float
    """Of the candidate against the baseline; below 0 it is slower."""
    lower_percent: float | None
    """The change is at least so much, but for a chance of the rule's level; null where there is one
    run each."""
    upper_percent: float | None
    """The same: at most."""
    num_baseline_runs: Number
    """The job and its repeats."""
    num_candidate_runs: Number
    num_more_runs: Number | None
    """So many more runs, of both in the proportion there is, would settle it; null where it is
    settled, or unknown."""


class SpeedOutcomeView(View):
    """What a rule about speed came to."""

    rule: SpeedRule
    verdict: Verdict
    numbers: SpeedNumbersView | None
    """Null without a baseline."""
    sentence: str
    """Why it is this verdict."""


class GateView(View):
    """Whether the candidate may go on."""

    verdict: Verdict
    """The worst of all rules: regression, missing_baseline, inconclusive, pass."""
    sentence: str
    """That of the first rule with this verdict."""
    candidate: str
    """Id of the job."""
    baseline: str | None
    """Id of the job that it was compared with; null where there is none, or no rule needs one."""
    outcomes: list[ChangeOutcomeView | LimitOutcomeView | SpeedOutcomeView]
    """In the order of the rules."""
    num_unpaired_documents: Number
    """Scored by one of the jobs only, and left out."""
    differs: list[DifferenceView]
    """What else is not the same in both jobs."""
