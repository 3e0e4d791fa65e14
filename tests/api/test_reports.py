"""POST /v1/attempts/{id}/reports: who may report, and what is refused before it is read."""

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from app.api.deps import Parts
from app.jobs.ingest import Absorber
from app.jobs.transitions import JobEvent
from app.launchers.base import Ended
from app.workers.settle import Settler
from tests.api.factories import (
    Json,
    claim,
    hello,
    plan,
    post_reports,
    progress,
    settle,
    submit,
)

Attempt = tuple[str, str]


@pytest.fixture
async def job(client: httpx.AsyncClient) -> Json:
    """A queued job."""
    return await submit(client)


@pytest.fixture
async def attempt(parts: Parts, job: Json) -> Attempt:
    """Its first attempt."""
    return await claim(parts, job["id"])


async def test_reports_are_stored_once(
    client: httpx.AsyncClient, job: Json, attempt: Attempt
) -> None:
    for _ in range(2):
        answer = await post_reports(client, attempt, hello(1), plan(2), progress(3, 0))
        assert (answer.status_code, answer.content) == (204, b"")
    shown = (await client.get(job["links"]["self"])).json()
    assert (shown["state"], shown["progress"]["num_batches_done"]) == ("running", 1)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic dTpw", "Bearer wrong", "Bearer \xff\xe9"]
)
async def test_who_has_not_the_token_is_401(
    client: httpx.AsyncClient, attempt: Attempt, header: str | None
) -> None:
    answer = await client.post(
        f"/v1/attempts/{attempt[0]}/reports",
        json={"contract_version": 1, "reports": [hello()]},
        headers=[] if header is None else [(b"Authorization", header.encode("latin-1"))],
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "token_invalid")
    assert answer.headers["www-authenticate"].startswith("Bearer ")


@pytest.mark.parametrize("attempt_id", ["att_0", "att_%00", "x", "%ff"])
async def test_an_unknown_attempt_is_401(
    client: httpx.AsyncClient, attempt: Attempt, attempt_id: str
) -> None:
    answer = await post_reports(client, (attempt_id, attempt[1]), hello())
    assert (answer.status_code, answer.json()["code"]) == (401, "token_invalid")


async def test_a_token_is_good_for_its_own_attempt_only(
    client: httpx.AsyncClient, parts: Parts, attempt: Attempt
) -> None:
    other = await claim(parts, (await submit(client))["id"])
    answer = await post_reports(client, (other[0], attempt[1]), hello())
    assert answer.status_code == 401


async def test_an_attempt_that_was_superseded_is_told(
    client: httpx.AsyncClient, parts: Parts, job: Json, attempt: Attempt
) -> None:
    await settle(parts, job["id"], JobEvent.REQUEUE)
    answer = await post_reports(client, attempt, hello())
    assert (answer.status_code, answer.json()["code"]) == (409, "attempt_not_current")
    await claim(parts, job["id"])
    answer = await post_reports(client, attempt, hello())
    assert (answer.status_code, answer.json()["code"]) == (409, "attempt_not_current")


@pytest.mark.parametrize(
    "body",
    [
        {"contract_version": 2, "reports": [{"type": "novelty"}]},
        {"contract_version": 0, "anything": "else"},
        {"contract_version": 2, "reports": [hello()]},
        {"contract_version": 10**30},
    ],
)
async def test_another_contract_is_named_before_the_rest_is_read(
    client: httpx.AsyncClient, attempt: Attempt, body: Json
) -> None:
    answer = await client.post(
        f"/v1/attempts/{attempt[0]}/reports",
        json=body,
        headers={"Authorization": f"Bearer {attempt[1]}"},
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "contract_mismatch")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"contract_version": 1}',
        b'{"contract_version": "1", "reports": []}',
        b'{"contract_version": 1, "reports": []}',
        b'{"contract_version": 1, "reports": [{"type": "hello"}]}',
        b'{"contract_version": 1, "reports": [{"type": "\\ud800"}]}',
        b'{"contract_version": 1, "reports": ' + b"[" * 100_000,
        b'{"contract_version": NaN}',
        b"\xff",
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
async def test_a_malformed_body_is_422(
    client: httpx.AsyncClient, attempt: Attempt, body: bytes
) -> None:
    answer = await client.post(
        f"/v1/attempts/{attempt[0]}/reports",
        content=body,
        headers={"Authorization": f"Bearer {attempt[1]}", "Content-Type": "application/json"},
    )
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request")
    assert problem["errors"]


async def test_a_loss_that_is_not_finite_is_422(
    client: httpx.AsyncClient, attempt: Attempt
) -> None:
    report = progress(1, 0) | {"entries": [{"batch": 0, "nll_nats": ["NaN"], "num_scored": [1]}]}
    answer = await post_reports(client, attempt, report)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/reports/0/entries/0")


async def test_a_message_that_no_database_can_hold_is_shown_without_what_is_wrong(
    client: httpx.AsyncClient, parts: Parts, job: Json, attempt: Attempt
) -> None:
    failure = {
        "type": "failure",
        "rank": 0,
        "seq": 2,
        "reason": "data_invalid",
        "message": "record 7: \x00 is no text",
    }
    answer = await post_reports(client, attempt, hello(1), failure)
    assert answer.status_code == 204
    ended = Ended(
        exit_code=1,
        signal=None,
        stopped=False,
        ended_at=datetime.now(UTC),
        root_cause=None,
        log_tail=(),
    )
    await Settler(parts.database, parts.settings, Absorber()).settle(attempt[0], ended)
    shown = (await client.get(job["links"]["self"])).json()
    assert (shown["state"], shown["state_reason"]) == ("failed", "data_invalid")
    assert shown["message"] == "rank 0: record 7: \ufffd is no text"


async def test_many_reporters_at_once(client: httpx.AsyncClient, parts: Parts) -> None:
    jobs = [await submit(client) for _ in range(8)]
    attempts = [await claim(parts, job["id"]) for job in jobs]
    for reports in ([hello(1), plan(2)], [progress(3, 0)], [progress(4, 1)]):
        answers = await asyncio.gather(*(post_reports(client, a, *reports) for a in attempts))
        assert {answer.status_code for answer in answers} == {204}
    for job in jobs:
        shown = (await client.get(job["links"]["self"])).json()
        assert shown["progress"]["num_batches_done"] == 2
