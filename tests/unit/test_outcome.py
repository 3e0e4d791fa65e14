from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.jobs.outcome import RETRYABLE, Evidence, Outcome, decide
from app.jobs.transitions import JobEvent
from app.launchers.base import Ended, NotStarted, Vanished
from evaluator.contract.reports import Failure
from evaluator.contract.states import FailureReason


def ended(
    exit_code: int | None = 1, signal: int | None = None, root_cause: str | None = None
) -> Ended:
    return Ended(
        exit_code=exit_code,
        signal=signal,
        stopped=False,
        ended_at=datetime(2026, 1, 1, tzinfo=UTC),
        root_cause=root_cause,
        log_tail=(),
    )


def failure(reason: FailureReason, message: str = "what went wrong") -> Failure:
    return Failure(rank=1, seq=3, reason=reason, message=message)


BARE = Evidence(
    seen=ended(),
    stop_reason=None,
    stop_message=None,
    has_result=False,
    result_problem=None,
    failure=None,
    attempts_left=0,
)


@pytest.mark.parametrize(
    "seen", [ended(0), ended(1), ended(None, 9), Vanished()], ids=["0", "1", "killed", "vanished"]
)
def test_a_valid_result_wins_over_whatever_the_engine_saw(seen: Ended | Vanished) -> None:
    outcome = decide(replace(BARE, seen=seen, has_result=True))
    assert outcome == Outcome(event=JobEvent.SUCCEED, reason=None, message=None)


def test_a_valid_result_wins_over_the_time_limit() -> None:
    stopped = replace(BARE, has_result=True, stop_reason=FailureReason.DEADLINE)
    assert decide(stopped).event is JobEvent.SUCCEED


def test_a_cancel_wins_over_a_result() -> None:
    stopped = replace(BARE, has_result=True, stop_reason=FailureReason.CANCELLED, attempts_left=2)
    assert decide(stopped).event is JobEvent.STOPPED


def test_a_result_that_is_not_the_ledger_fails() -> None:
    outcome = decide(replace(BARE, has_result=True, result_problem="1.0 is not 2.0"))
    assert (outcome.event, outcome.reason) == (JobEvent.FAIL, FailureReason.RESULT_INVALID)


def test_exit_0_without_a_result_is_no_success() -> None:
    outcome = decide(replace(BARE, seen=ended(0)))
    assert (outcome.event, outcome.reason) == (JobEvent.FAIL, FailureReason.RESULT_MISSING)


@pytest.mark.parametrize(
    ("evidence", "reason", "words"),
    [
        (replace(BARE, seen=ended(1)), FailureReason.RANK_DIED, "exit code 1"),
        (
            replace(BARE, seen=ended(None, 9)),
            FailureReason.RANK_DIED,
            "torchrun itself was killed by signal 9 (SIGKILL)",
        ),
        (
            replace(BARE, seen=ended(1, root_cause="rank 1 was killed by signal 9 (SIGKILL)")),
            FailureReason.RANK_DIED,
            "rank 1 was killed by signal 9",
        ),
        (replace(BARE, seen=ended(127)), FailureReason.LAUNCH_FAILED, "could not be started"),
        (replace(BARE, seen=NotStarted()), FailureReason.LAUNCH_FAILED, "supervisor"),
        (
            replace(BARE, failure=failure(FailureReason.DATA_EMPTY, "no document")),
            FailureReason.DATA_EMPTY,
            "rank 1: no document",
        ),
        (
            replace(
                BARE,
                seen=ended(1, root_cause="rank 0 was killed by signal 9 (SIGKILL)"),
                failure=failure(FailureReason.COMMUNICATION),
            ),
            FailureReason.RANK_DIED,
            "rank 0 was killed",
        ),
        (
            replace(BARE, failure=failure(FailureReason.COMMUNICATION, "no peer")),
            FailureReason.COMMUNICATION,
            "no peer",
        ),
        (
            replace(BARE, stop_reason=FailureReason.STALLED, stop_message="rank 3 is silent"),
            FailureReason.STALLED,
            "rank 3 is silent",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if type(value) is str else "",
)
def test_the_reason_is_the_one_that_explains_most(
    evidence: Evidence, reason: FailureReason, words: str
) -> None:
    outcome = decide(evidence)
    assert (outcome.event, outcome.reason) == (JobEvent.FAIL, reason)
    assert words in (outcome.message or "")


def test_what_vanished_is_lost_and_not_failed() -> None:
    outcome = decide(replace(BARE, seen=Vanished()))
    assert (outcome.event, outcome.reason) == (JobEvent.LOSE, FailureReason.LAUNCH_LOST)


def test_the_time_limit_is_no_reason_to_try_again() -> None:
    outcome = decide(replace(BARE, stop_reason=FailureReason.DEADLINE, attempts_left=5))
    assert outcome.event is JobEvent.TIME_OUT


@pytest.mark.parametrize("reason", sorted(FailureReason))
def test_only_what_another_attempt_can_cure_is_tried_again(reason: FailureReason) -> None:
    if reason in (FailureReason.CANCELLED, FailureReason.DEADLINE):
        return
    outcome = decide(replace(BARE, stop_reason=reason, attempts_left=1))
    expected = JobEvent.REQUEUE if reason in RETRYABLE else JobEvent.FAIL
    assert (outcome.event, outcome.reason) == (expected, reason)
