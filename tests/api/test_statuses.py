"""Jobs reported to commits, against a forge on a real socket; only the worker's clock is moved."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import delete, select

from app.api.deps import Parts
from app.db import Database
from app.gates.verdict import Verdict
from app.jobs.repository import load_job
from app.jobs.transitions import JobEvent
from app.models import CommitStatus, Job
from app.notify.schedule import DELAYS_SECONDS, NUM_TRIES
from app.settings import Settings
from app.statuses.channel import StatusChannel, StatusTry
from app.statuses.reporting import attach, report_verdict
from app.statuses.target import CommitTarget
from app.workers.deliver import KEPT, LEASE_MARGIN_SECONDS
from tests.api.factories import claim, hello, post_reports, run_to_the_end, settle, submit
from tests.api.sending import Sending
from tests.support.forge import GITHUB_TOKEN, GITLAB_TOKEN, SHA, Forge
from tests.support.receiver import Reply, listening

TIMEOUT_S = 1.0
Json = dict[str, Any]
GITHUB: Json = {"forge": "github", "repository": "acme/models", "sha": SHA, "context": "assay/ppl"}
GITLAB: Json = {"forge": "gitlab", "repository": "team/sub/models", "sha": SHA, "context": "ppl"}


@pytest.fixture
def forge() -> Iterator[Forge]:
    """Both forges."""
    with listening(Forge()) as server:
        yield server


@pytest.fixture
def settings(settings: Settings, forge: Forge) -> Settings:
    """The same, with both forges on this machine."""
    return settings.model_copy(
        update={
            "webhook_allow_networks": (ip_network("127.0.0.1/32"),),
            "webhook_timeout_seconds": TIMEOUT_S,
            "public_url": "https://assay.example.com",
            "github_api_url": forge.url,
            "github_token": SecretStr(GITHUB_TOKEN),
            "gitlab_api_url": forge.url,
            "gitlab_token": SecretStr(GITLAB_TOKEN),
        }
    )


def worker_of(
    parts: Parts, *, database: Database | None = None, **changes: Any
) -> Sending[StatusTry]:
    """One server's worker."""
    settings = parts.settings.model_copy(update=changes)
    return Sending(database or parts.database, settings, StatusChannel(settings))


@pytest.fixture
async def sending(parts: Parts) -> AsyncIterator[Sending[StatusTry]]:
    """A worker."""
    sending = worker_of(parts)
    yield sending
    await sending.worker.stop()


async def report(client: httpx.AsyncClient, job_id: str, target: Json) -> Json:
    """What the server says when it is to report a job to a commit."""
    answer = await client.put(f"/v1/jobs/{job_id}/commit", json=target)
    assert answer.status_code == 200, answer.text
    commit: Json = answer.json()
    return commit


async def commit_of(client: httpx.AsyncClient, job_id: str) -> Json:
    """The commit of a job."""
    commit: Json = (await client.get(f"/v1/jobs/{job_id}/commit")).json()
    return commit


async def status_of(client: httpx.AsyncClient, job_id: str) -> Json:
    """What the commit of a job is told."""
    status: Json = (await commit_of(client, job_id))["status"]
    return status


async def test_github_is_told_from_the_beginning_to_the_end(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    shown = await report(client, job_id, GITHUB)
    assert {name: shown[name] for name in GITHUB} == GITHUB
    await sending.turn()
    await sending.turn()
    await run_to_the_end(client, parts, job_id)
    await sending.turn()
    assert [(each.state, each.description) for each in forge.taken] == [
        ("pending", "queued"),
        ("success", "perplexity 3.49034"),  # what ran meanwhile was overtaken
    ]
    assert {each.place for each in forge.taken} == {("acme/models", SHA, "assay/ppl")}
    assert forge.taken[-1].target_url == f"https://assay.example.com/v1/jobs/{job_id}"
    headers = forge.messages[-1].headers
    assert headers["accept"] == "application/vnd.github+json"
    assert headers["x-github-api-version"] == "2022-11-28"
    status = await status_of(client, job_id)
    assert (status["state"], status["sent"], status["delivery"]) == (
        "success",
        "success",
        "delivered",
    )
    assert (status["num_tries"], status["error"], status["next_try_at"]) == (2, None, None)


async def test_gitlab_is_never_sent_a_state_twice(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITLAB)
    await sending.turn()
    for ending in (JobEvent.REQUEUE, JobEvent.FAIL, None):
        attempt = await claim(parts, job_id)
        await sending.turn()
        await post_reports(client, attempt, hello())
        await sending.turn()
        if ending is not None:
            await settle(parts, job_id, ending)
            await sending.turn()
        if ending is JobEvent.FAIL:
            await client.post(f"/v1/jobs/{job_id}/retry")
            await sending.turn()
    await client.post(f"/v1/jobs/{job_id}/cancel")
    await sending.turn()
    await settle(parts, job_id, JobEvent.STOPPED)
    await sending.turn()
    await report(client, job_id, GITLAB)
    await sending.turn()
    assert forge.states == ["pending", "running", "failed", "pending", "running", "canceled"]
    assert forge.taken[2].description == "failed: rank_died"
    assert forge.num_refused == 0
    assert len(forge.messages) == 6
    assert forge.taken[0].place == ("team/sub/models", SHA, "ppl")


async def test_what_gitlab_has_already_counts_as_sent(
    client: httpx.AsyncClient, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITLAB)
    forge.loses_answers = 1
    await sending.turn()
    assert (await status_of(client, job_id))["sent"] is None
    sending.now.move(seconds=DELAYS_SECONDS[1] * 2)
    await sending.turn()
    status = await status_of(client, job_id)
    assert (forge.num_refused, status["status_code"], status["error"]) == (1, 400, None)
    assert (status["sent"], status["delivery"]) == ("pending", "delivered")
    await client.post(f"/v1/jobs/{job_id}/cancel")
    await sending.turn()
    assert forge.states == ["pending", "canceled"]


def ahead(seconds: float) -> str:
    """A time that is so many seconds away, as GitHub writes it."""
    return str(int(time.time() + seconds))


@pytest.mark.parametrize(
    ("reply", "code", "wait_s"),
    [
        (Reply(401, body=b'{"message": "Bad credentials"}'), 401, 5),
        (Reply(403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "+900"}), 403, 895),
        (Reply(403, {"X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "+900"}), 403, 60),
        (Reply(403, {"Retry-After": "120"}), 403, 120),
        (Reply(429, {"Retry-After": "30"}), 429, 30),
        (Reply(422, body=b'{"message": "Validation Failed"}'), 422, 5),
        (Reply(502), 502, 5),
        (Reply(hangs=True), None, 5),
    ],
)
async def test_what_is_not_taken_is_seen_and_tried_again(
    client: httpx.AsyncClient,
    sending: Sending[StatusTry],
    forge: Forge,
    reply: Reply,
    code: int | None,
    wait_s: float,
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    if reply.headers.get("X-RateLimit-Reset"):
        reply.headers["X-RateLimit-Reset"] = ahead(900)
    forge.replies = [reply]
    await sending.turn()
    status = await status_of(client, job_id)
    assert (status["delivery"], status["status_code"], status["sent"]) == ("pending", code, None)
    assert status["error"].startswith("no answer" if code is None else f"answered {code}")
    assert status["response"] == (None if code is None else reply.body.decode())
    assert GITHUB_TOKEN not in str(await commit_of(client, job_id))
    next_try, last_try = (
        datetime.fromisoformat(status[name]) for name in ("next_try_at", "last_try_at")
    )
    assert wait_s <= (next_try - last_try).total_seconds() <= wait_s * 1.1 + TIMEOUT_S + 5
    await sending.turn()
    assert len(forge.messages) == 1
    sending.now.move(seconds=wait_s * 1.1 + TIMEOUT_S + 5)
    await sending.turn()
    assert forge.states == ["pending"]


async def test_a_forge_that_asks_to_wait_is_sent_nothing_meanwhile(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    limited, other, elsewhere = [(await submit(client))["id"] for _ in range(3)]
    await report(client, limited, GITHUB)
    forge.replies = [Reply(403, {"Retry-After": "600"})]
    await sending.turn()
    await client.post(f"/v1/jobs/{limited}/cancel")
    await report(client, other, GITHUB | {"context": "other"})
    await report(client, elsewhere, GITLAB)
    await sending.turn()
    assert [each.place[0] for each in forge.taken] == ["team/sub/models"]
    sending.now.move(seconds=605)
    await sending.turn()
    assert sorted(forge.states) == ["error", "pending", "pending"]


async def test_the_end_of_a_job_waits_for_the_try_under_way_and_follows_it(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    forge.replies = [Reply(hangs=True)]
    await sending.worker.turn()
    async with asyncio.timeout(20):
        while not forge.messages:
            await asyncio.sleep(0.01)
    await client.post(f"/v1/jobs/{job_id}/cancel")
    other = worker_of(parts)
    await other.turn()
    assert len(forge.messages) == 1
    await sending.worker.idle()
    await other.turn()
    assert len(forge.messages) == 1  # the forge may still be working on it
    for server in (sending, other):
        server.now.move(seconds=LEASE_MARGIN_SECONDS + TIMEOUT_S)
    await asyncio.gather(sending.turn(), other.turn())
    assert (forge.states, len(forge.messages)) == (["error"], 2)
    await other.worker.stop()


async def test_a_server_that_was_killed_leaves_the_end_to_the_next(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    forge.replies = [Reply(hangs=True)]
    killed = worker_of(parts)
    await killed.worker.turn()
    await killed.worker.stop(grace_s=0)
    await client.post(f"/v1/jobs/{job_id}/cancel")
    await sending.turn()
    assert forge.states == []
    sending.now.move(seconds=TIMEOUT_S + LEASE_MARGIN_SECONDS + 1)
    await sending.turn()
    assert forge.states == ["error"]
    assert (await status_of(client, job_id))["delivery"] == "delivered"


async def test_the_newest_job_of_a_commit_is_told(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    oldest, old, new = [(await submit(client))["id"] for _ in range(3)]
    await report(client, old, GITHUB)
    await sending.turn()
    # The same commit: GitHub does not tell upper from lower case here.
    shown = await report(client, new, GITHUB | {"repository": "Acme/Models", "sha": SHA.upper()})
    assert (shown["is_superseded"], shown["status"]["num_dropped"]) == (False, 0)
    await client.post(f"/v1/jobs/{old}/cancel")
    shown = await report(client, oldest, GITHUB)
    assert (shown["is_superseded"], shown["status"]) == (True, None)
    await client.post(f"/v1/jobs/{oldest}/cancel")
    await run_to_the_end(client, parts, new)
    await client.post(f"/v1/jobs/{old}/retry")
    await sending.turn()
    assert forge.states == ["pending", "success"]
    assert forge.taken[-1].target_url.endswith(new)
    # Cancelled and retried: 2 of the old one; attached late and cancelled: 2 of the oldest.
    assert (await status_of(client, new))["num_dropped"] == 4


async def test_two_servers_send_once(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    other_database = Database(parts.settings.sqlalchemy_url)
    other = worker_of(parts, database=other_database)
    for number in range(6):
        job_id = (await submit(client))["id"]
        await report(client, job_id, GITHUB | {"context": f"c{number}"})
    for _ in range(4):
        await asyncio.gather(sending.turn(), other.turn())
    assert sorted(each.place[2] for each in forge.taken) == [f"c{number}" for number in range(6)]
    assert len(forge.messages) == 6
    await other.worker.stop()
    await other_database.close()


async def test_a_status_that_was_given_up_can_be_asked_for_again(
    client: httpx.AsyncClient, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    forge.replies = [Reply(404)] * NUM_TRIES
    for delay_s in (*DELAYS_SECONDS[1:], 0):
        await sending.turn()
        sending.now.move(seconds=delay_s * 1.1 + 5)
    status = await status_of(client, job_id)
    assert (status["delivery"], status["tries_left"]) == ("failed", 0)
    sending.now.move(days=4)
    await sending.turn()
    assert len(forge.messages) == NUM_TRIES
    await report(client, job_id, GITHUB)
    await sending.turn()
    assert forge.states == ["pending"]


async def test_a_status_waits_for_a_token_of_its_forge(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    without = worker_of(parts, github_token=None)
    await without.turn()
    assert (await status_of(client, job_id))["num_tries"] == 0
    await sending.turn()
    assert forge.states == ["pending"]
    await without.worker.stop()


@pytest.mark.parametrize(
    ("verdict", "state"),
    [("pass", "success"), ("regression", "failed"), ("inconclusive", "failed")],
)
async def test_success_waits_for_the_verdict(
    client: httpx.AsyncClient,
    parts: Parts,
    sending: Sending[StatusTry],
    forge: Forge,
    verdict: Verdict,
    state: str,
) -> None:
    job_id = (await submit(client))["id"]
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        await attach(session, job, CommitTarget(**GITLAB), awaits_verdict=True)
    await run_to_the_end(client, parts, job_id)
    await sending.turn()
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        await report_verdict(session, job, verdict, "token perplexity " + "is higher " * 20)
    await sending.turn()
    assert forge.states == ["running", state]
    waiting, told = (each.description for each in forge.taken)
    assert waiting == "perplexity 3.49034, waits for its gate"
    assert told.startswith(f"{verdict}: token perplexity is higher")
    assert len(told) <= 140
    assert (await commit_of(client, job_id))["awaits_verdict"] is False


async def test_what_was_told_of_jobs_that_are_gone_is_dropped_after_30_days(
    client: httpx.AsyncClient, parts: Parts, sending: Sending[StatusTry], forge: Forge
) -> None:
    async def num_kept() -> int:
        async with parts.database.read() as session:
            return len((await session.scalars(select(CommitStatus))).all())

    job_id = (await submit(client))["id"]
    await report(client, job_id, GITHUB)
    await sending.turn()
    sending.now.move(days=KEPT.days + 1)
    await sending.turn()
    assert await num_kept() == 1
    async with parts.database.write() as session:
        await session.execute(delete(Job))
    sending.now.move(days=1)
    await sending.turn()
    assert await num_kept() == 0
