"""The worker that sends messages, against a receiver on a real socket; only its clock is moved."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.api.deps import Parts
from app.db import Database
from app.jobs.repository import utcnow
from app.models import WebhookDelivery
from app.notify.channel import MAX_AT_ONCE_PER_LANE, Try
from app.notify.schedule import DELAYS_SECONDS, NUM_TRIES
from app.notify.webhook_channel import WebhookChannel
from app.settings import Settings
from app.workers.deliver import (
    KEPT,
    LEASE_MARGIN_SECONDS,
)
from tests.api.factories import make_job
from tests.api.sending import Sending
from tests.support.receiver import Receiver, Reply, receiver

TIMEOUT_S = 1.0
Json = dict[str, Any]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The same, with messages to this machine allowed."""
    return settings.model_copy(
        update={
            "webhook_allow_networks": (ip_network("127.0.0.1/32"),),
            "webhook_timeout_seconds": TIMEOUT_S,
        }
    )


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """A receiver."""
    with receiver() as listening:
        yield listening


def worker_of(
    parts: Parts, *, database: Database | None = None, settings: Settings | None = None
) -> Sending[Try]:
    """One server's worker."""
    return Sending(database or parts.database, settings or parts.settings, WebhookChannel())


@pytest.fixture
async def sending(parts: Parts) -> AsyncIterator[Sending[Try]]:
    """A worker."""
    sending = worker_of(parts)
    yield sending
    await sending.worker.stop()


async def add(client: httpx.AsyncClient, url: str) -> Json:
    """A webhook, with its secret."""
    answer = await client.post("/v1/webhooks", json={"url": url})
    assert answer.status_code == 201, answer.text
    webhook: Json = answer.json()
    return webhook


async def queue_test(client: httpx.AsyncClient, webhook: Json) -> str:
    """The id of a test message."""
    answer = await client.post(webhook["links"]["test"])
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def last(client: httpx.AsyncClient, webhook: Json) -> Json:
    """The newest delivery."""
    page = (await client.get(webhook["links"]["deliveries"])).json()
    item: Json = page["items"][0]
    return item


def seconds_to_next(item: Json) -> float:
    """From the last try to the next one."""
    times = (datetime.fromisoformat(item[name]) for name in ("next_try_at", "last_try_at"))
    next_try, last_try = times
    return (next_try - last_try).total_seconds()


async def test_a_job_that_ends_is_told_signed(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(200, {"Content-Type": "text/plain"}, b"thanks")]
    job_id = await make_job(client, parts, "cancelled")
    await sending.turn()
    await sending.turn()
    [message] = hook.messages
    assert message.path == "/hook?team=7"
    assert message.headers["content-type"] == "application/json"
    assert message.is_signed_with(webhook["secret"])
    assert abs(int(message.headers["webhook-timestamp"]) - utcnow().timestamp()) < 60
    assert (message.json["type"], message.json["data"]["job_id"]) == ("job.cancelled", job_id)
    item = await last(client, webhook)
    assert item["id"] == message.id
    assert item["body"].encode() == message.body
    shown = ("state", "status_code", "response", "error", "num_tries", "next_try_at")
    assert tuple(item[name] for name in shown) == ("delivered", 200, "thanks", None, 1, None)
    assert 0 < item["latency_seconds"] < TIMEOUT_S


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (Reply(500, body=b"x" * 5000), 500, "answered 500"),
        (
            Reply(301, {"Location": "http://127.0.0.1:9/"}),
            301,
            "answered 301 to http://127.0.0.1:9/: redirects are not followed, change the URL",
        ),
        (Reply(drops=True), None, "RemoteProtocolError: Server disconnected"),
        (Reply(hangs=True), None, f"no answer within {TIMEOUT_S:g} s"),
        (Reply(drips=True), None, f"no answer within {TIMEOUT_S:g} s"),
        (Reply(429, {"Retry-After": "120"}), 429, "answered 429"),
    ],
)
async def test_what_does_not_count_is_seen_and_tried_again(
    client: httpx.AsyncClient,
    sending: Sending[Try],
    hook: Receiver,
    reply: Reply,
    status: int | None,
    words: str,
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [reply]
    await queue_test(client, webhook)
    await sending.turn()
    item = await last(client, webhook)
    assert (item["state"], item["status_code"]) == ("pending", status)
    assert item["error"].startswith(words)
    kept = None if status is None else reply.body[:2048].decode()
    assert item["response"] == kept
    wait_s = 120 if reply.status == 429 else DELAYS_SECONDS[1]
    assert wait_s <= seconds_to_next(item) <= wait_s * 1.1 + TIMEOUT_S + 5
    await sending.turn()
    assert len(hook.messages) == 1
    sending.now.move(seconds=wait_s * 1.1 + TIMEOUT_S + 5)
    await sending.turn()
    item = await last(client, webhook)
    assert (item["state"], item["num_tries"], item["error"]) == ("delivered", 2, None)


async def test_an_answer_that_ends_in_the_middle_counts_by_its_status(
    client: httpx.AsyncClient, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(200, {"Content-Length": "100"}, b"th")]
    await queue_test(client, webhook)
    await sending.turn()
    item = await last(client, webhook)
    assert (item["state"], item["status_code"]) == ("delivered", 200)
    assert item["response"].startswith("th (broken off")


async def test_an_endpoint_that_stays_away_is_given_up_after_three_days(
    client: httpx.AsyncClient, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(500)] * NUM_TRIES
    message_id = await queue_test(client, webhook)
    for number in range(1, NUM_TRIES + 1):
        await sending.turn()
        assert len(hook.messages) == number
        item = await last(client, webhook)
        if number < NUM_TRIES:
            delay_s = DELAYS_SECONDS[number]
            assert delay_s <= seconds_to_next(item) <= delay_s * 1.1 + 5
            sending.now.move(seconds=delay_s * 1.1 + 5)
    assert sending.now.ahead > timedelta(days=3)
    assert (item["state"], item["tries_left"], item["next_try_at"]) == ("failed", 0, None)
    sending.now.move(days=5)
    await sending.turn()
    assert len(hook.messages) == NUM_TRIES
    assert {message.id for message in hook.messages} == {message_id}
    assert len({message.body for message in hook.messages}) == 1
    stamps = [int(message.headers["webhook-timestamp"]) for message in hook.messages]
    assert stamps == sorted(set(stamps))
    assert all(message.is_signed_with(webhook["secret"]) for message in hook.messages)

    await client.post(f"{webhook['links']['deliveries']}/{message_id}/resend")
    await sending.turn()
    item = await last(client, webhook)
    assert (item["id"], item["state"]) == (message_id, "delivered")
    assert (item["num_tries"], hook.messages[-1].id) == (NUM_TRIES + 1, message_id)


async def test_410_disables_the_endpoint_and_ends_what_waits(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(500), Reply(410)]
    waiting = await queue_test(client, webhook)
    await sending.turn()
    await queue_test(client, webhook)
    await sending.turn()
    shown = (await client.get(webhook["links"]["self"])).json()
    assert (shown["enabled"], shown["disabled_reason"]) == (False, "it answered 410 (gone)")
    items = (await client.get(webhook["links"]["deliveries"])).json()["items"]
    gone, other = items
    assert (gone["state"], gone["status_code"], gone["error"]) == ("failed", 410, "answered 410")
    assert (other["id"], other["state"]) == (waiting, "failed")
    assert other["error"] == "the endpoint is disabled: it answered 410 (gone)"
    await make_job(client, parts, "cancelled")
    sending.now.move(days=1)
    await sending.turn()
    assert len(hook.messages) == 2


async def test_a_rotated_secret_signs_beside_the_new_one_for_a_day(
    client: httpx.AsyncClient, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    rotated = (await client.post(webhook["links"]["rotate"])).json()
    old, new = webhook["secret"], rotated["secret"]
    assert old != new
    for hours in (0, 23.9, 0.2):
        sending.now.move(hours=hours)
        await queue_test(client, webhook)
        await sending.turn()
    by_old = [message.is_signed_with(old) for message in hook.messages]
    assert by_old == [True, True, False]
    assert all(message.is_signed_with(new) for message in hook.messages)


async def test_a_name_that_leads_inside_is_refused_at_each_try(
    client: httpx.AsyncClient, parts: Parts, hook: Receiver
) -> None:
    webhook = await add(client, hook.url.replace("127.0.0.1", "localhost"))
    await queue_test(client, webhook)
    strict = worker_of(parts, settings=Settings())  # allows no network of its own
    await strict.turn()
    item = await last(client, webhook)
    assert "is not an address of the public internet" in item["error"]
    assert (item["state"], item["status_code"], item["response"]) == ("pending", None, None)
    assert hook.messages == []
    await strict.worker.stop()


async def test_a_proxy_of_the_environment_is_not_used(
    client: httpx.AsyncClient, parts: Parts, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await add(client, hook.url)
    await queue_test(client, webhook)
    with receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        sending = worker_of(parts)
        await sending.turn()
        await sending.worker.stop()
        assert (len(hook.messages), len(proxy.messages)) == (1, 0)


async def test_two_servers_send_once(
    client: httpx.AsyncClient, parts: Parts, hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    other = Database(parts.settings.sqlalchemy_url)
    servers = [worker_of(parts), worker_of(parts, database=other)]
    ids = {await queue_test(client, webhook) for _ in range(12)}
    for _ in range(12 // MAX_AT_ONCE_PER_LANE + 2):
        await asyncio.gather(*(server.turn() for server in servers))
    assert len(hook.messages) == len(ids)
    assert {message.id for message in hook.messages} == ids
    for server in servers:
        await server.worker.stop()
    await other.close()


async def test_a_try_that_was_cut_off_is_due_again_when_its_lease_is_over(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(hangs=True)]
    message_id = await queue_test(client, webhook)
    killed = worker_of(parts)
    await killed.worker.turn()
    await killed.worker.stop(grace_s=0)
    await sending.turn()
    assert (await last(client, webhook))["num_tries"] == 1
    sending.now.move(seconds=TIMEOUT_S + LEASE_MARGIN_SECONDS + 1)
    await sending.turn()
    item = await last(client, webhook)
    assert (item["state"], item["num_tries"]) == ("delivered", 2)
    assert hook.messages[-1].id == message_id


async def test_a_server_that_comes_back_late_changes_nothing(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(hangs=True)]
    await queue_test(client, webhook)
    late = worker_of(parts)
    await late.worker.turn()
    async with asyncio.timeout(TIMEOUT_S * 20):
        while not hook.messages:
            await asyncio.sleep(0.01)
    sending.now.move(seconds=TIMEOUT_S + LEASE_MARGIN_SECONDS + 1)
    await sending.turn()
    taken_over = await last(client, webhook)
    assert (taken_over["state"], taken_over["num_tries"]) == ("delivered", 2)
    await late.worker.idle()
    assert await last(client, webhook) == taken_over
    await late.worker.stop()


async def test_a_last_try_that_was_cut_off_is_the_end(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    hook.replies = [Reply(hangs=True)]
    await queue_test(client, webhook)
    async with parts.database.write() as session:
        await session.execute(update(WebhookDelivery).values(tries_left=1))
    killed = worker_of(parts)
    await killed.worker.turn()
    await killed.worker.stop(grace_s=0)
    sending.now.move(seconds=TIMEOUT_S + LEASE_MARGIN_SECONDS + 1)
    await sending.turn()
    item = await last(client, webhook)
    assert (item["state"], item["num_tries"], item["next_try_at"]) == ("failed", 1, None)
    assert item["error"] == "the server ended during the last try"
    assert len(hook.messages) <= 1


async def test_an_endpoint_that_hangs_does_not_hold_up_another(
    client: httpx.AsyncClient, sending: Sending[Try], hook: Receiver
) -> None:
    slow = await add(client, hook.url)
    hook.replies = [Reply(hangs=True)] * 40
    for _ in range(40):
        await queue_test(client, slow)
    with receiver() as other:
        quick = await add(client, other.url)
        await queue_test(client, quick)
        await sending.worker.turn()
        await sending.worker.turn()  # the first one had room for the oldest only
        async with asyncio.timeout(TIMEOUT_S * 20):
            while (await last(client, quick))["state"] != "delivered":
                await asyncio.sleep(0.01)
        assert len(hook.messages) <= MAX_AT_ONCE_PER_LANE
        await sending.worker.idle()


async def test_ended_deliveries_are_dropped_after_30_days(
    client: httpx.AsyncClient, sending: Sending[Try], hook: Receiver
) -> None:
    webhook = await add(client, hook.url)
    await queue_test(client, webhook)
    await sending.turn()
    sending.now.move(days=KEPT.days - 1)
    await sending.turn()
    assert (await last(client, webhook))["state"] == "delivered"
    sending.now.move(days=2)
    await sending.turn()
    assert (await client.get(webhook["links"]["deliveries"])).json()["items"] == []
