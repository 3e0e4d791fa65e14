"""GET /v1/jobs/{id} and its result: conditions, waiting, what is shown when."""

import asyncio
import time

import httpx
import pytest

from app.api.deps import Parts
from app.jobs.transitions import JobEvent
from evaluator.contract.states import JobState
from tests.api.factories import (
    claim,
    hello,
    make_job,
    plan,
    post_reports,
    progress,
    result,
    run_to_the_end,
    settle,
    submit,
    timing,
)


@pytest.mark.parametrize(
    "job_id", ["job_00000000000000000000000000", "nope", "job_%00", "%ff", "job_" + "0" * 300]
)
async def test_an_unknown_job_is_404(client: httpx.AsyncClient, job_id: str) -> None:
    for path in ("", "/events", "/logs", "/nodes", "/result", "/windows", "/tokens"):
        answer = await client.get(f"/v1/jobs/{job_id}{path}")
        assert answer.status_code == 404, path
    for path in ("/cancel", "/retry"):
        answer = await client.post(f"/v1/jobs/{job_id}{path}")
        assert answer.status_code == 404, path


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ('"v1"', 304),
        ('W/"v1"', 304),
        ('"x", "v1"', 304),
        ("*", 304),
        ('"v2"', 200),
        ("v1", 200),
        ("", 200),
    ],
)
async def test_a_known_version_is_not_sent_again(
    client: httpx.AsyncClient, known: str, status: int
) -> None:
    job = await submit(client)
    answer = await client.get(job["links"]["self"], headers={"If-None-Match": known})
    assert answer.status_code == status
    assert answer.headers["etag"] == '"v1"'
    assert answer.headers["cache-control"] == "private, no-cache"
    assert (answer.content == b"") == (status == 304)


async def test_a_change_gives_another_version(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    await client.post(job["links"]["cancel"])
    answer = await client.get(job["links"]["self"], headers={"If-None-Match": '"v1"'})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"v2"')


async def test_a_wait_ends_when_the_job_does(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    waiting = asyncio.create_task(
        client.get(job["links"]["self"], headers={"Prefer": "respond-async, wait=30"})
    )
    await asyncio.sleep(0)
    started_at = time.monotonic()
    await client.post(job["links"]["cancel"])
    answer = await asyncio.wait_for(waiting, 10)
    assert answer.json()["state"] == "cancelled"
    assert answer.headers["preference-applied"] == "wait=30"
    assert time.monotonic() - started_at < 5


async def test_a_wait_that_is_over_shows_the_job_as_it_is(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    started_at = time.monotonic()
    answer = await client.get(job["links"]["self"], headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert 0.9 < time.monotonic() - started_at < 5


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        ("wait=999", "wait=60"),
        ("Wait = 5", "wait=5"),
        ('wait="7"', "wait=7"),
        ("wait=0", "wait=0"),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait=soon", None),
        ("await=5", None),
        ("respond-async", None),
        ("", None),
    ],
)
async def test_a_preference_is_capped_or_ignored(
    client: httpx.AsyncClient, prefer: str, applied: str | None
) -> None:
    job = await submit(client)
    await client.post(job["links"]["cancel"])
    answer = await client.get(job["links"]["self"], headers={"Prefer": prefer})
    assert answer.status_code == 200
    assert answer.headers.get("preference-applied") == applied


async def test_a_long_wait_ends_when_the_server_does(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    waiting = asyncio.create_task(client.get(job["links"]["self"], headers={"Prefer": "wait=60"}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    parts.streams.close()
    answer = await asyncio.wait_for(waiting, 5)
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")


async def test_progress_and_ranks_of_a_running_job(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await submit(client)
    attempt = await claim(parts, job["id"])
    await post_reports(client, attempt, hello(1), plan(2), progress(3, 0), hello(1, rank=1))
    shown = (await client.get(job["links"]["self"])).json()
    assert shown["state"] == "running"
    assert shown["progress"] == {
        "stage": "score",
        "fraction": 0.5,
        "num_batches_done": 1,
        "num_batches": 2,
        "num_scored_tokens_done": 10,
        "num_scored_tokens": 20,
        "tokens_per_second": 20.0,  # 10 tokens in 0.25 + 0.125 + 0.125 seconds
        "eta_seconds": 0.5,
    }
    assert shown["attempts"][0]["number"] == 1
    assert shown["attempts"][0]["ended_at"] is None
    (node,) = shown["nodes"]
    assert (node["node_rank"], node["host"]) == (0, "node-a")
    first, second = node["ranks"]
    assert (first["rank"], first["device"], first["stage"]) == (0, "cpu", "score")
    assert first["load_seconds"] == timing()["load_s"]
    assert first["num_scored_tokens"] == 10
    assert (second["rank"], second["compute_seconds"], second["stage"]) == (1, 0.0, None)


async def test_all_scored_is_not_yet_succeeded(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await submit(client)
    attempt = await claim(parts, job["id"])
    reports = (hello(1), plan(2), progress(3, 0), progress(4, 1), result(5))
    await post_reports(client, attempt, *reports)
    shown = (await client.get(job["links"]["self"])).json()
    assert shown["state"] == "finishing"
    assert shown["progress"]["fraction"] < 1
    assert shown["result"] is None
    answer = await client.get(job["links"]["result"])
    assert (answer.status_code, answer.json()["code"]) == (404, "result_not_ready")
    await settle(parts, job["id"], JobEvent.SUCCEED)
    shown = (await client.get(job["links"]["self"])).json()
    assert shown["progress"]["fraction"] == 1.0
    assert shown["result"] is not None


async def test_the_result_of_a_job(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await submit(client)
    await run_to_the_end(client, parts, job["id"])
    answer = await client.get(job["links"]["result"])
    figures = answer.json()
    told = result(6)
    assert answer.status_code == 200
    assert figures["perplexity"] == told["perplexity"]
    assert figures["scoring"] == told["scoring"]
    assert figures["digests"]["model"] == told["model_digest"]
    assert figures["wall_seconds"] == told["wall_s"]
    assert "seq" not in figures
    shown = (await client.get(job["links"]["self"])).json()
    assert shown["result"] == figures
    assert shown["ended_at"] is not None
    (listed,) = (await client.get("/v1/jobs")).json()["items"]
    assert listed["result"] == {
        name: told["perplexity"][name]
        for name in (
            "token_perplexity",
            "token_perplexity_standard_error",
            "bits_per_byte",
            "num_scored_tokens",
        )
    }


@pytest.mark.parametrize("state", [state.value for state in JobState])
async def test_every_state_can_be_shown(
    client: httpx.AsyncClient, parts: Parts, state: str
) -> None:
    job_id = await make_job(client, parts, state)
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert shown["is_terminal"] == JobState(state).is_terminal
    assert (shown["ended_at"] is not None) == shown["is_terminal"]
    has_result = (await client.get(f"/v1/jobs/{job_id}/result")).status_code == 200
    assert has_result == (state == "succeeded") == (shown["result"] is not None)


async def test_a_failed_job_tells_why(client: httpx.AsyncClient, parts: Parts) -> None:
    job_id = await make_job(client, parts, "failed")
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["state_reason"], shown["message"]) == ("rank_died", "rank 0 died of signal 9")
    assert shown["attempts"][0]["reason"] == "rank_died"
    assert shown["attempts"][0]["exit_code"] == 1


async def test_every_change_that_shows_gives_another_version(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    attempt = await claim(parts, job["id"])
    seen = set()
    for report in (hello(1), plan(2), progress(3, 0), progress(4, 1), hello(1, rank=1)):
        await post_reports(client, attempt, report)
        answer = await client.get(job["links"]["self"])
        seen.add(answer.headers["etag"])
    assert len(seen) == 5
    before = await client.get(job["links"]["self"])
    await post_reports(client, attempt, progress(4, 1))  # said before
    after = await client.get(job["links"]["self"])
    assert (after.headers["etag"], after.json()) == (before.headers["etag"], before.json())


async def test_nodes_tell_who_is_slow(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await submit(client)
    before = (await client.get(f"/v1/jobs/{job['id']}/nodes")).json()
    assert before == {"nodes": [], "speeds": None, "slowest": None}
    attempt = await claim(parts, job["id"])
    reports = []
    for rank, compute in enumerate((10.0, 30.0)):
        times = timing() | {"rank": rank, "compute_s": compute, "num_input_tokens": 1000}
        reports.append(hello(1) | {"rank": rank})
        reports.append(progress(2, rank) | {"rank": rank, "timing": times})
    answer = await post_reports(client, attempt, *reports)
    assert answer.status_code == 204, answer.text
    found = (await client.get(job["links"]["nodes"])).json()
    assert [rank["compute_seconds"] for rank in found["nodes"][0]["ranks"]] == [10.0, 30.0]
    assert found["speeds"]["ratio"] == pytest.approx(3)
    assert (found["slowest"]["rank"], found["slowest"]["reason"]) == (1, "slow_compute")
    assert found["slowest"]["compute_excess_seconds"] == pytest.approx(20)
