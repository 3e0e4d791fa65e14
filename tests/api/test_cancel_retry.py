"""POST cancel and retry: which states take them, and conditions on the version."""

import asyncio

import httpx
import pytest

from app.api.deps import Parts
from evaluator.contract.states import JobState
from tests.api.factories import claim, hello, make_job, post_reports, submit

ACTIVE = ("starting", "running", "finishing")


@pytest.mark.parametrize(
    ("state", "status", "after"),
    [
        ("queued", 200, "cancelled"),
        *((state, 202, "cancelling") for state in ACTIVE),
        ("cancelling", 202, "cancelling"),
        ("cancelled", 200, "cancelled"),
        *((state, 409, state) for state in ("succeeded", "failed", "timed_out", "lost")),
    ],
)
async def test_cancel(
    client: httpx.AsyncClient, parts: Parts, state: str, status: int, after: str
) -> None:
    job_id = await make_job(client, parts, state)
    answer = await client.post(f"/v1/jobs/{job_id}/cancel")
    assert answer.status_code == status
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert shown["state"] == after
    if status == 409:
        assert answer.json()["code"] == "transition_not_allowed"
    else:
        assert answer.json() == shown
    assert ("location" in answer.headers) == (status == 202)
    again = await client.post(f"/v1/jobs/{job_id}/cancel")
    assert again.status_code == status
    assert again.headers.get("etag") == answer.headers.get("etag")


@pytest.mark.parametrize("state", [state.value for state in JobState])
async def test_retry(client: httpx.AsyncClient, parts: Parts, state: str) -> None:
    job_id = await make_job(client, parts, state)
    before = (await client.get(f"/v1/jobs/{job_id}")).json()
    answer = await client.post(f"/v1/jobs/{job_id}/retry")
    if state not in ("failed", "cancelled", "timed_out", "lost"):
        assert (answer.status_code, answer.json()["code"]) == (409, "transition_not_allowed")
        assert (await client.get(f"/v1/jobs/{job_id}")).json() == before
        return
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert (job["state"], job["is_terminal"], job["attempts_left"]) == ("queued", False, 3)
    assert (job["state_reason"], job["message"], job["ended_at"]) == (None, None, None)
    assert [a["number"] for a in job["attempts"]] == [a["number"] for a in before["attempts"]]
    await claim(parts, job_id)
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["attempt"] == before["attempt"] + 1


@pytest.mark.parametrize("action", ["cancel", "retry"])
@pytest.mark.parametrize(
    ("tags", "matches"),
    [
        ("{now}", True),
        ('"x", {now}', True),
        ("*", True),
        ('"v999"', False),
        ("W/{now}", False),
        ("v1", False),
        ("", False),
    ],
)
async def test_a_change_of_what_you_have_not_seen_is_412(
    client: httpx.AsyncClient, parts: Parts, action: str, tags: str, *, matches: bool
) -> None:
    state = "running" if action == "cancel" else "failed"
    job_id = await make_job(client, parts, state)
    now = (await client.get(f"/v1/jobs/{job_id}")).headers["etag"]
    answer = await client.post(
        f"/v1/jobs/{job_id}/{action}", headers={"If-Match": tags.format(now=now)}
    )
    if matches:
        assert answer.status_code == 202
        return
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    assert (await client.get(f"/v1/jobs/{job_id}")).headers["etag"] == now


async def test_many_cancels_at_once_are_one(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await submit(client)
    attempt = await claim(parts, job["id"])
    await post_reports(client, attempt, hello())
    answers = await asyncio.gather(*(client.post(job["links"]["cancel"]) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {202}
    events = await parts.jobs.events(job["id"], after=0)
    assert [e.data["state"] for e in events if e.type == "state"].count("cancelling") == 1
