"""What a commit is told of a job. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from app.cli.numbers import with_error
from app.gates.verdict import Verdict
from app.statuses.target import Forge
from evaluator.contract.states import FailureReason, JobState

DESCRIPTION_MAX_CHARS = 140
"""Source: GitHub's REST API, "Create a commit status"; GitLab takes 255."""

Inconclusive = Literal["failure", "success"]
"""What a gate that can't tell is reported as."""


class CommitState(StrEnum):
    """A status of a commit; forges have words of their own for it."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


WORDS: Final[dict[Forge, dict[CommitState, str]]] = {
    Forge.GITHUB: {
        CommitState.PENDING: "pending",
        CommitState.RUNNING: "pending",
        CommitState.SUCCESS: "success",
        CommitState.FAILURE: "failure",
        CommitState.CANCELLED: "error",
    },
    Forge.GITLAB: {
        CommitState.PENDING: "pending",
        CommitState.RUNNING: "running",
        CommitState.SUCCESS: "success",
        CommitState.FAILURE: "failed",
        CommitState.CANCELLED: "canceled",
    },
}
_OPEN = (CommitState.PENDING, CommitState.RUNNING)


@dataclass(frozen=True)
class Told:
    """A status of a job."""

    job_id: str
    state: CommitState
    description: str
    """At most 140 characters."""


def figure(perplexity: dict[str, Any]) -> str:
    """Return the perplexity with its standard error, of a contract `Perplexity`."""
    value, error = perplexity["token_perplexity"], perplexity["token_perplexity_standard_error"]
    return with_error(value, error)


def tell_job(
    job_id: str,
    state: JobState,
    *,
    reason: FailureReason | None,
    result: dict[str, Any] | None,
    awaits_verdict: bool,
) -> Told:
    """Return what a job in this state is told as.

    A failure's message stays with the job: it may name paths, and a status may be public.

    Args:
        job_id: of the job.
        state: of the job.
        reason: why it has failed.
        result: a contract `Result`, of a job that has succeeded.
        awaits_verdict: success is not told before a gate has judged it.
    """
    match state:
        case JobState.QUEUED | JobState.STARTING:
            return Told(job_id, CommitState.PENDING, "queued")
        case JobState.RUNNING | JobState.FINISHING:
            return Told(job_id, CommitState.RUNNING, "running")
        case JobState.CANCELLING:
            return Told(job_id, CommitState.RUNNING, "being cancelled")
        case JobState.CANCELLED:
            return Told(job_id, CommitState.CANCELLED, "cancelled")
        case JobState.SUCCEEDED:
            assert result is not None, "a job succeeds by its result"
            sentence = f"perplexity {figure(result['perplexity'])}"
            if awaits_verdict:
                return Told(job_id, CommitState.RUNNING, f"{sentence}, waits for its gate")
            return Told(job_id, CommitState.SUCCESS, sentence)
        case JobState.FAILED | JobState.TIMED_OUT | JobState.LOST:
            why = "" if reason is None else f": {reason}"
            return Told(job_id, CommitState.FAILURE, f"{state.replace('_', ' ')}{why}")


def tell_verdict(job_id: str, verdict: Verdict, sentence: str, inconclusive: Inconclusive) -> Told:
    """Return what a verdict is told as; a missing baseline counts as inconclusive."""
    state = {"pass": CommitState.SUCCESS, "regression": CommitState.FAILURE}.get(
        verdict, CommitState(inconclusive)
    )
    return Told(job_id, state, shorten(f"{verdict.replace('_', ' ')}: {sentence}"))


def shorten(text: str) -> str:
    """Return one line of at most 140 characters."""
    line = " ".join(text.split())
    if len(line) <= DESCRIPTION_MAX_CHARS:
        return line
    return line[: DESCRIPTION_MAX_CHARS - 1].rstrip() + "\u2026"


def is_news(forge: Forge, sent: CommitState | None, state: CommitState) -> bool:
    """Whether a forge may be sent `state` after it has taken `sent`.

    GitLab answers 400 to a state that it has already, and to `pending` of what runs.
    """
    if forge is Forge.GITHUB or sent is None:
        return True
    return state is not sent and not (state is CommitState.PENDING and sent is CommitState.RUNNING)


def is_open(state: CommitState | None) -> bool:
    """Whether a terminal state has to follow."""
    return state in _OPEN
