import itertools

import pytest

from app.errors import TransitionNotAllowed
from app.jobs.transitions import TRANSITIONS, JobEvent, next_state
from evaluator.contract.states import TERMINAL_STATES, JobState


def test_the_life_of_a_job_that_goes_well() -> None:
    state = JobState.QUEUED
    seen = [state]
    for event in (JobEvent.CLAIM, JobEvent.REPORT, JobEvent.RESULT, JobEvent.SUCCEED):
        state = next_state(state, event)
        seen.append(state)
    assert [str(each) for each in seen] == [
        "queued",
        "starting",
        "running",
        "finishing",
        "succeeded",
    ]


def test_a_terminal_job_moves_by_retry_alone() -> None:
    moves = {event for (state, event) in TRANSITIONS if state in TERMINAL_STATES}
    assert moves == {JobEvent.RETRY}


def test_a_succeeded_job_never_moves() -> None:
    for event in JobEvent:
        with pytest.raises(TransitionNotAllowed):
            next_state(JobState.SUCCEEDED, event)


def test_a_cancelling_job_can_only_end_cancelled() -> None:
    moves = {(e, target) for (s, e), target in TRANSITIONS.items() if s is JobState.CANCELLING}
    assert moves == {(JobEvent.STOPPED, JobState.CANCELLED)}


def test_every_state_that_is_not_terminal_can_be_cancelled_but_the_one_that_is_being() -> None:
    cancellable = {state for (state, event) in TRANSITIONS if event is JobEvent.CANCEL}
    assert cancellable == set(JobState) - TERMINAL_STATES - {JobState.CANCELLING}


def test_every_state_is_reached_from_queued() -> None:
    reached = {JobState.QUEUED}
    while more := {t for (s, _), t in TRANSITIONS.items() if s in reached} - reached:
        reached |= more
    assert reached == set(JobState)


def test_what_the_table_lacks_is_refused_with_the_states_that_would_do() -> None:
    for state, event in itertools.product(JobState, JobEvent):
        if (state, event) not in TRANSITIONS:
            with pytest.raises(TransitionNotAllowed, match=f"is {state} does not take '{event}'"):
                next_state(state, event)
    with pytest.raises(TransitionNotAllowed, match="it needs to be queued"):
        next_state(JobState.RUNNING, JobEvent.CLAIM)
