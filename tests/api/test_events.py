"""GET /v1/jobs/{id}/events: order, resume, heartbeat, end, and what a stream holds."""

import asyncio
import time

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.pool import QueuePool

from app.api.deps import Parts
from tests.api.factories import (
    claim,
    hello,
    make_job,
    node_timing,
    plan,
    post_reports,
    progress,
    run_to_the_end,
    submit,
)
from tests.api.live import Frame, LiveRequest, parse_frames

DEADLINE_S = 10.0


async def read(client: httpx.AsyncClient, job_id: str, **headers: str) -> list[Frame]:
    """The whole stream of a job that has ended."""
    answer = await client.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 200
    return parse_frames(answer.text)


def states(frames: list[Frame]) -> list[str]:
    return [frame.data["state"] for frame in frames if frame.event == "state"]


async def test_a_job_is_told_from_its_beginning_to_its_end(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job_id = await make_job(client, parts, "succeeded")
    answer = await client.get(f"/v1/jobs/{job_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    first, *frames = parse_frames(answer.text)
    assert first == Frame(None, None, None, "3000", None)
    assert states(frames) == ["queued", "starting", "running", "finishing", "succeeded"]
    ids = [int(frame.id or 0) for frame in frames]
    assert ids == sorted(ids)
    assert len(set(ids[:-1])) == len(ids) - 1
    end = frames[-1]
    assert (end.event, end.id) == ("end", frames[-2].id)
    assert end.data == {
        "state": "succeeded",
        "state_reason": None,
        "message": None,
        "attempt": 1,
        "is_terminal": True,
    }
    (told,) = [frame.data for frame in frames if frame.event == "timing"]
    assert (told["node_rank"], told["host"]) == (0, "node-a")
    assert told["ranks"][0]["compute_seconds"] == 0.25
    (told,) = [frame.data for frame in frames if frame.event == "progress"]
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()["progress"]
    assert set(told) == {*shown, "state"}
    assert told["num_batches_done"] == 2


async def test_a_client_goes_on_where_it_was(client: httpx.AsyncClient, parts: Parts) -> None:
    job_id = await make_job(client, parts, "succeeded")
    _, *frames = await read(client, job_id)
    ids = [frame.id for frame in frames]
    for place, number in enumerate(ids[:-2], 1):
        assert number is not None
        _, *rest = await read(client, job_id, **{"Last-Event-ID": number})
        assert [frame.id for frame in rest] == ids[place:]
    answer = await client.get(
        f"/v1/jobs/{job_id}/events?after=1", headers={"Last-Event-ID": ids[1] or ""}
    )
    assert [frame.id for frame in parse_frames(answer.text)[1:]] == ids[2:]
    answer = await client.get(f"/v1/jobs/{job_id}/events?after={ids[0]}")
    assert [frame.id for frame in parse_frames(answer.text)[1:]] == ids[1:]


async def test_who_has_seen_everything_is_told_not_to_come_back(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job_id = await make_job(client, parts, "failed")
    end = (await read(client, job_id))[-1]
    for number in (f"?after={end.id}", ""):
        answer = await client.get(
            f"/v1/jobs/{job_id}/events{number}",
            headers={} if number else {"Last-Event-ID": end.id or ""},
        )
        assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("last", ["999", "-1", "x", "1.0", "9" * 30, "٣"])
async def test_an_id_that_was_never_given_starts_anew(
    client: httpx.AsyncClient, parts: Parts, last: str
) -> None:
    job_id = await make_job(client, parts, "failed")
    answer = await client.get(
        f"/v1/jobs/{job_id}/events", headers=[(b"Last-Event-ID", last.encode())]
    )
    retry, reset, end = parse_frames(answer.text)
    shown = await client.get(f"/v1/jobs/{job_id}")
    assert retry.retry == "3000"
    assert reset.event == "reset"
    assert shown.headers["etag"] == f'"v{reset.id}"'
    assert reset.data["state"] == "failed"
    assert reset.data["id"] == job_id
    assert (end.event, end.id) == ("end", reset.id)


async def test_what_happens_is_told_at_once(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    async with LiveRequest(app, job["links"]["events"]) as stream:
        assert stream.status == 200
        assert states(await stream.until("state")) == ["queued"]
        started_at = time.monotonic()
        attempt = await claim(parts, job["id"])
        assert states(await stream.until("state")) == ["starting"]
        await post_reports(client, attempt, hello(1), plan(2), progress(3, 0))
        assert states(await stream.until("state")) == ["running"]
        told = (await stream.until("progress"))[-1].data
        assert (told["stage"], told["state"]) == ("score", "running")
        await post_reports(client, attempt, node_timing(4))
        assert (await stream.until("timing"))[-1].data["host"] == "node-a"
        assert time.monotonic() - started_at < DEADLINE_S
        await client.post(job["links"]["cancel"])
        await stream.until("state")
    assert not stream.is_over
    assert parts.streams.num_open == 0


async def test_a_stream_ends_with_its_job(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    async with LiveRequest(app, job["links"]["events"]) as stream:
        await stream.until("state")
        await run_to_the_end(client, parts, job["id"])
        frames = await stream.until("end")
        await stream.wait_over()
    assert states(frames)[-1] == "succeeded"


async def test_an_idle_stream_beats_and_holds_no_connection(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    async with LiveRequest(app, job["links"]["events"]) as stream:
        await stream.until("state")
        beats = [await stream.frame() for _ in range(3)]
        assert [frame.comment for frame in beats] == ["heartbeat"] * 3
        pool = parts.database.engine.pool
        assert isinstance(pool, QueuePool)
        deadline = time.monotonic() + DEADLINE_S
        while pool.checkedout():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


async def test_there_may_be_only_so_many_streams(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    target = job["links"]["events"]
    async with LiveRequest(app, target), LiveRequest(app, target), LiveRequest(app, target):
        answer = await client.get(target)
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
        assert int(answer.headers["retry-after"]) > 0
        assert (await client.get(job["links"]["self"])).status_code == 200
    await client.post(job["links"]["cancel"])
    assert (await client.get(target)).status_code == 200
    assert parts.streams.num_open == 0


async def test_streams_end_when_the_server_does(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    async with LiveRequest(app, job["links"]["events"]) as stream:
        await stream.until("state")
        parts.streams.close()
        await stream.wait_over()
    assert parts.streams.num_open == 0


async def test_many_followers_see_everything(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await submit(client)
    streams = [LiveRequest(app, job["links"]["events"]) for _ in range(3)]
    for stream in streams:
        await stream.__aenter__()
    await run_to_the_end(client, parts, job["id"])
    told = [states(await stream.until("end")) for stream in streams]
    for stream in streams:
        await stream.__aexit__(None, None, None)
    assert told == [["queued", "starting", "running", "finishing", "succeeded"]] * 3


async def test_a_retried_job_is_followed_to_its_second_end(
    app: FastAPI, client: httpx.AsyncClient, parts: Parts
) -> None:
    job_id = await make_job(client, parts, "failed")
    await client.post(f"/v1/jobs/{job_id}/retry")
    async with LiveRequest(app, f"/v1/jobs/{job_id}/events") as stream:
        assert states([await stream.frame() for _ in range(5)]) == [
            "queued",
            "starting",
            "failed",
            "queued",
        ]
        await client.post(f"/v1/jobs/{job_id}/cancel")
        frames = await stream.until("end")
    assert states(frames) == ["cancelled"]


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=9223372036854775808", "from=1"])
async def test_a_query_that_makes_no_sense_is_422(client: httpx.AsyncClient, query: str) -> None:
    job = await submit(client)
    answer = await client.get(f"{job['links']['events']}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
