"""When messages are tried again, and what is sent, both by hand."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.notify.messages import EventType, JobMessage, event_of, job_body
from app.notify.schedule import DELAYS_SECONDS, NUM_TRIES, next_due
from app.notify.signing import new_secret, signed_headers
from evaluator.contract.states import JobState

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()

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


def test_a_long_message_is_cut_and_what_is_no_text_replaced() -> None:
    body = job_body(
        EventType.JOB_FAILED,
        NOW,
        state_event={
            "state": JobState.FAILED,
            "state_reason": "rank_died",
            "message": "\ud800\x00" + "\u00fc" * 5000,
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
            "message": "?\x00" + "\u00fc" * 398,
            "attempt": 3,
            "version": 17,
            "perplexity": None,
        },
    }


def blocks(language: str) -> list[str]:
    """The blocks of code in the manual."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_check_in_the_manual_takes_our_messages_and_no_others() -> None:
    [code] = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the manual's own code
    is_ours = names["is_ours"]
    assert callable(is_ours)
    old, new, body = new_secret(), new_secret(), b'{"a": 1}'
    now = int(time.time())
    headers = signed_headers((new, old), "msg_1", now, body)
    assert is_ours(new, headers, body)
    assert is_ours(old, headers, body)
    assert not is_ours(new_secret(), headers, body)
    assert not is_ours(new, headers, b'{"a":1}')
    assert not is_ours(new, headers | {"webhook-id": "msg_2"}, body)
    for stamp in (now - 360, now + 360):
        assert not is_ours(new, signed_headers((new,), "msg_1", stamp, body), body)


def test_the_example_in_the_manual_is_a_message() -> None:
    [example] = blocks("json")
    assert json.loads(JobMessage.model_validate_json(example).model_dump_json()) == json.loads(
        example
    )


def test_the_manual_names_every_type() -> None:
    assert set(re.findall(r"`(job\.\w+)`", PAGE)) == set(EventType)
