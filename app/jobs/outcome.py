"""What an attempt came to, decided from the evidence. Pure."""

from dataclasses import dataclass

from app.jobs.transitions import JobEvent
from app.launchers.base import Ended, NotStarted, Vanished
from app.launchers.logfile import describe_signal
from evaluator.contract.reports import Failure
from evaluator.contract.states import FailureReason

RETRYABLE = frozenset(
    {
        FailureReason.RANK_DIED,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.AUDIT_UNDECIDED,
        FailureReason.COMMUNICATION,
        FailureReason.LAUNCH_FAILED,
        FailureReason.LAUNCH_LOST,
        FailureReason.START_TIMEOUT,
        FailureReason.STALLED,
        FailureReason.RESULT_MISSING,
    }
)
"""Reasons that another attempt can cure; all others come out the same again."""

_COMMAND_NOT_FOUND = 127


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of an attempt of which no process is left."""

    seen: Ended | Vanished | NotStarted
    stop_reason: FailureReason | None
    """Why we stopped it, if we did."""
    stop_message: str | None
    has_result: bool
    result_problem: str | None
    """What is wrong with the result, if something is."""
    failure: Failure | None
    attempts_left: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the job goes on, and why."""

    event: JobEvent
    reason: FailureReason | None
    message: str | None


def decide(evidence: Evidence) -> Outcome:
    """Return what the attempt came to.

    A valid result wins over any exit code: an engine's word is evidence, not a result. Only a stop
    that somebody asked for, or the time limit, wins over a result.
    """
    if evidence.stop_reason is FailureReason.CANCELLED:
        return Outcome(
            event=JobEvent.STOPPED, reason=FailureReason.CANCELLED, message="stopped on request"
        )
    if evidence.has_result and evidence.result_problem is None:
        return Outcome(event=JobEvent.SUCCEED, reason=None, message=None)
    reason, message = _cause(evidence)
    if reason is FailureReason.DEADLINE:
        return Outcome(event=JobEvent.TIME_OUT, reason=reason, message=message)
    if reason in RETRYABLE and evidence.attempts_left > 0:
        return Outcome(event=JobEvent.REQUEUE, reason=reason, message=message)
    lost = reason is FailureReason.LAUNCH_LOST
    return Outcome(event=JobEvent.LOSE if lost else JobEvent.FAIL, reason=reason, message=message)


def _cause(evidence: Evidence) -> tuple[FailureReason, str]:
    """Return the reason that explains most: ours, the rank's own, then what the engine saw."""
    if evidence.result_problem is not None:
        return FailureReason.RESULT_INVALID, evidence.result_problem
    if evidence.stop_reason is not None:
        return evidence.stop_reason, evidence.stop_message or f"stopped: {evidence.stop_reason}"
    failure = evidence.failure
    if failure is not None and failure.reason is not FailureReason.COMMUNICATION:
        return failure.reason, f"rank {failure.rank}: {failure.message}"
    return _engine_cause(evidence.seen, failure)


def _engine_cause(
    seen: Ended | Vanished | NotStarted, failure: Failure | None
) -> tuple[FailureReason, str]:
    match seen:
        case NotStarted():
            return (
                FailureReason.LAUNCH_FAILED,
                "the launch's supervisor did not come up in time: see the server's log",
            )
        case Vanished():
            return (
                FailureReason.LAUNCH_LOST,
                "the processes of the launch vanished without an exit record: was the machine "
                "restarted, or were they killed?",
            )
    if seen.exit_code == _COMMAND_NOT_FOUND:
        return FailureReason.LAUNCH_FAILED, seen.root_cause or "the launch could not be started"
    if seen.exit_code == 0:
        return (
            FailureReason.RESULT_MISSING,
            "the launch ended without an error and without a result: see the log",
        )
    if seen.root_cause is None and failure is not None:
        return failure.reason, f"rank {failure.rank}: {failure.message}"
    return FailureReason.RANK_DIED, seen.root_cause or _exit_words(seen)


def _exit_words(seen: Ended) -> str:
    if seen.signal is not None:
        return (
            f"torchrun itself was killed by {describe_signal(seen.signal)}, and its ranks with it: "
            "did somebody end it, or did the machine run out of memory?"
        )
    return f"the launch ended with exit code {seen.exit_code} and no rank said why: see the log"
