"""Webhooks by their routes; nothing is sent here."""

import asyncio
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

import httpx
import pytest

from app.api.deps import Parts
from app.errors import TransitionNotAllowed
from app.jobs.repository import load_job, move
from app.jobs.transitions import JobEvent
from app.notify.messages import EventType
from app.notify.outbox import Outbox
from app.notify.service import WEBHOOKS_MAX
from app.settings import Settings
from tests.api.factories import make_job, settle

URL = "https://ci.example.com/assay?team=7"
WEBHOOKS = "/v1/webhooks"


async def add(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    """A webhook as it is shown at first."""
    answer = await client.post(WEBHOOKS, json={"url": URL, **changes})
    assert answer.status_code == 201, answer.text
    webhook: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{WEBHOOKS}/{webhook['id']}"
    return webhook


async def deliveries(client: httpx.AsyncClient, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    """What was or is to be sent, oldest first."""
    page = (await client.get(webhook["links"]["deliveries"])).json()
    items: list[dict[str, Any]] = page["items"]
    return items[::-1]


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_the_secret_is_shown_once(client: httpx.AsyncClient) -> None:
    webhook = await add(client, description="the pipeline")
    secret = webhook.pop("secret")
    assert secret.startswith("whsec_")
    assert webhook["events"] == sorted(EventType)
    assert (webhook["enabled"], webhook["url"]) == (True, URL)
    shown = await client.get(webhook["links"]["self"])
    listed = await client.get(WEBHOOKS)
    assert shown.json() == webhook
    assert listed.json() == {"items": [webhook]}
    assert secret not in shown.text + listed.text


async def test_change_disable_enable_delete(client: httpx.AsyncClient) -> None:
    webhook = await add(client)
    path = webhook["links"]["self"]
    changes = {"url": "https://8.8.8.8/", "events": ["job.failed"], "description": "two"}
    changed = (await client.patch(path, json=changes)).json()
    assert {name: changed[name] for name in changes} == changes
    assert (await client.patch(path, json={})).json()["events"] == ["job.failed"]

    await client.post(webhook["links"]["test"])
    disabled = (await client.patch(path, json={"enabled": False})).json()
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "on request")
    [ended] = await deliveries(client, webhook)
    assert (ended["state"], ended["next_try_at"]) == ("failed", None)
    assert ended["error"] == "the endpoint is disabled: on request"
    assert code(await client.post(webhook["links"]["test"])) == (409, "webhook_disabled")
    again = await client.post(f"{webhook['links']['deliveries']}/{ended['id']}/resend")
    assert code(again) == (409, "webhook_disabled")

    assert (await client.patch(path, json={"enabled": True})).json()["enabled"] is True
    assert (await client.delete(path)).status_code == 204
    for answer in (await client.get(path), await client.delete(path)):
        assert code(answer) == (404, "webhook_not_found")


@pytest.mark.parametrize(
    "url",
    [
        "http://ci.example.com/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:127.0.0.1]/",
        "https://user:pw@ci.example.com/",
    ],
)
async def test_an_address_that_is_refused(client: httpx.AsyncClient, url: str) -> None:
    webhook = await add(client)
    for answer in (
        await client.post(WEBHOOKS, json={"url": url}),
        await client.patch(webhook["links"]["self"], json={"url": url}),
    ):
        assert code(answer) == (422, "address_refused")
        assert answer.json()["errors"][0]["pointer"] == "/url"
    assert (await client.get(webhook["links"]["self"])).json()["url"] == URL


@pytest.mark.parametrize(
    "changes",
    [{"url": "ci.example.com"}, {"events": []}, {"events": ["job.queued"]}, {"secret": "whsec_"}],
)
async def test_a_request_that_is_refused(
    client: httpx.AsyncClient, changes: dict[str, Any]
) -> None:
    answer = await client.post(WEBHOOKS, json={"url": URL, **changes})
    assert code(answer) == (422, "invalid_request")


async def test_there_is_a_most(client: httpx.AsyncClient) -> None:
    for _ in range(WEBHOOKS_MAX):
        await add(client)
    answer = await client.post(WEBHOOKS, json={"url": URL})
    assert code(answer) == (409, "too_many_webhooks")


ENDS = {
    "succeeded": "job.succeeded",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
    "timed_out": "job.timed_out",
    "lost": "job.lost",
}


async def test_each_end_of_a_job_is_one_message(client: httpx.AsyncClient, parts: Parts) -> None:
    everything = await add(client)
    ends_badly = await add(client, events=["job.failed", "job.lost"])
    disabled = await add(client)
    await client.patch(disabled["links"]["self"], json={"enabled": False})
    jobs = {state: await make_job(client, parts, state) for state in ENDS}
    sent = await deliveries(client, everything)
    ended = {item["job_id"]: item["event"] for item in sent if item["event"] != "job.running"}
    assert ended == {jobs[state]: event for state, event in ENDS.items()}
    assert [item["job_id"] for item in sent if item["event"] == "job.running"] == [
        jobs["succeeded"]
    ]
    assert len(sent) == len(ENDS) + 1
    assert {(item["state"], item["num_tries"]) for item in sent} == {("pending", 0)}
    assert [item["event"] for item in await deliveries(client, ends_badly)] == [
        "job.failed",
        "job.lost",
    ]
    assert await deliveries(client, disabled) == []


async def test_a_success_carries_the_figure_and_its_error(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    webhook = await add(client, events=["job.succeeded"])
    job_id = await make_job(client, parts, "succeeded")
    answer = await client.get(f"/v1/jobs/{job_id}")
    version = int(answer.headers["etag"].strip('"v'))
    [item] = await deliveries(client, webhook)
    message = httpx.Response(200, content=item["body"]).json()
    assert message["type"] == "job.succeeded"
    assert message["timestamp"] == answer.json()["updated_at"]
    assert message["data"] == {
        "job_id": job_id,
        "url": f"{parts.settings.base_url}/v1/jobs/{job_id}",
        "state": "succeeded",
        "state_reason": None,
        "message": None,
        "attempt": 1,
        "version": version,
        "perplexity": {
            "token_perplexity": 3.4903429574618414,  # exp(1.25)
            "token_perplexity_standard_error": None,
            "token_perplexity_interval_95": None,
            "bits_per_byte": 2.7743,
            "num_scored_tokens": 20,
        },
    }


async def test_what_is_not_committed_is_not_told(client: httpx.AsyncClient, parts: Parts) -> None:
    webhook = await add(client)
    job_id = await make_job(client, parts, "queued")
    with suppress(InterruptedError):
        async with parts.database.write() as session:
            move(session, await load_job(session, job_id, lock=True), JobEvent.CANCEL)
            await Outbox("http://127.0.0.1")(session)
            raise InterruptedError
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["state"] == "queued"
    assert await deliveries(client, webhook) == []


async def test_a_cancel_that_meets_the_end_is_one_message(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    webhook = await add(client, events=[each for each in EventType if each != "job.running"])

    async def end(job_id: str) -> None:
        try:
            await settle(parts, job_id, JobEvent.FAIL)
        except TransitionNotAllowed:  # the cancel was first
            await settle(parts, job_id, JobEvent.STOPPED)

    for number in range(1, 11):
        job_id = await make_job(client, parts, "running")
        await asyncio.gather(end(job_id), client.post(f"/v1/jobs/{job_id}/cancel"))
        state = (await client.get(f"/v1/jobs/{job_id}")).json()["state"]
        sent = await deliveries(client, webhook)
        assert len(sent) == number
        assert (sent[-1]["job_id"], sent[-1]["event"]) == (job_id, f"job.{state}")


async def test_deliveries_by_pages_and_state(client: httpx.AsyncClient) -> None:
    webhook, other = await add(client), await add(client)
    path = webhook["links"]["deliveries"]
    queued = [(await client.post(webhook["links"]["test"])).json()["id"] for _ in range(5)]
    await client.post(other["links"]["test"])
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get(path, params={"limit": 2, **cursor})).json()
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == sorted(queued, reverse=True)
    states = (await client.get(path, params={"state": ["delivered", "failed"]})).json()
    assert states["items"] == []
    resent = await client.post(f"{path}/{queued[0]}/resend")
    assert code(resent) == (409, "delivery_pending")
    of_other = await client.post(f"{other['links']['deliveries']}/{queued[0]}/resend")
    assert code(of_other) == (404, "delivery_not_found")
    assert code(await client.post(f"{path}/nothing/resend")) == (404, "delivery_not_found")
    assert (await client.get(path, params={"cursor": "x"})).status_code == 422


async def test_a_deleted_webhook_is_told_nothing(client: httpx.AsyncClient, parts: Parts) -> None:
    webhook, other = await add(client), await add(client)
    await make_job(client, parts, "cancelled")
    await client.delete(other["links"]["self"])
    [item] = await deliveries(client, webhook)
    assert item["event"] == "job.cancelled"


def test_networks_are_read_from_one_setting() -> None:
    settings = Settings.model_validate({"webhook_allow_networks": "10.0.0.0/8, fd00::/8"})
    assert settings.webhook_allow_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
