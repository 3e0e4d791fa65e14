"""When messages are tried again, and what is sent, both by hand."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from app.notify.messages import EventType, event_of, job_body
from app.notify.schedule import DELAYS_SECONDS, NUM_TRIES, next_due
from evaluator.contract.states import JobState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_the_schedule_is_the_one_of_the_docs_and_takes_three_days() -> None:
    minute, hour = 60, 3600
    assert (
        *(0, 5, 5 * minute, 30 * minute),
        *(2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour),
    ) == DELAYS_SECONDS
    assert 72 * hour <= sum(DELAYS_SECONDS) <= 76 * hour


@pytest.mark.parametrize(
    ("tries_left", "retry_after_s", "chance", "expected"),
    [
        (NUM_TRIES - 1, None, 0.0, timedelta(seconds=5)),
        (NUM_TRIES - 1, None, 1.0, timedelta(seconds=5.5)),
        (NUM_TRIES - 1, 90.0, 1.0, timedelta(seconds=90)),
        (NUM_TRIES - 2, 90.0, 0.0, timedelta(minutes=5)),
        (NUM_TRIES - 1, 1e9, 0.0, timedelta(days=1)),
        (1, None, 0.5, timedelta(hours=25.2)),
    ],
)
def test_next_try(
    tries_left: int, retry_after_s: float | None, chance: float, expected: timedelta
) -> None:
    due = next_due(NOW, tries_left, retry_after_s=retry_after_s, chance=chance)
    assert due - NOW == expected


def test_which_states_are_told() -> None:
    told = {state: event_of(state) for state in JobState}
    assert {state for state, event in told.items() if event} == {
        state for state in JobState if state.is_terminal
    } | {JobState.RUNNING}
    assert set(told.values()) - {None} == set(EventType)


def test_a_long_message_is_cut_and_nothing_else() -> None:
    body = job_body(
        EventType.JOB_FAILED,
        NOW,
        state_event={
            "state": JobState.FAILED,
            "state_reason": "rank_died",
            "message": "\u00fc" * 5000,
            "attempt": 3,
        },
        version=17,
        job_id="job_1",
        url="http://127.0.0.1:8321/v1/jobs/job_1",
        perplexity=None,
    )
    assert len(body.encode()) < 20_000
    assert json.loads(body) == {
        "type": "job.failed",
        "timestamp": "2026-03-01T12:00:00.000000Z",
        "data": {
            "job_id": "job_1",
            "url": "http://127.0.0.1:8321/v1/jobs/job_1",
            "state": "failed",
            "state_reason": "rank_died",
            "message": "\u00fc" * 400,
            "attempt": 3,
            "version": 17,
            "perplexity": None,
        },
    }
