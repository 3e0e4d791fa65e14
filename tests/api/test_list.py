"""GET /v1/jobs: pages, filters, and what is refused."""

import base64
import json

import httpx
import pytest

from app.api.deps import Parts
from tests.api.factories import make_job, run_to_the_end, submit


async def walk(client: httpx.AsyncClient, **query: str) -> list[str]:
    """Ids over all pages, followed by the Link header."""
    ids: list[str] = []
    answer = await client.get("/v1/jobs", params=query)
    while True:
        page = answer.json()
        ids += [job["id"] for job in page["items"]]
        assert ("next" in answer.links) == (page["next_cursor"] is not None)
        if "next" not in answer.links:
            return ids
        answer = await client.get(answer.links["next"]["url"])


async def test_pages_do_not_shift_while_jobs_arrive(client: httpx.AsyncClient) -> None:
    old = [(await submit(client))["id"] for _ in range(60)]
    seen: list[str] = []
    cursor = None
    while True:
        query: dict[str, str | int] = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/jobs", params=query)).json()
        seen += [job["id"] for job in page["items"]]
        for _ in range(3):
            await submit(client)
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == list(reversed(old))


async def test_an_empty_list(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/jobs")
    assert answer.json() == {"items": [], "next_cursor": None}
    assert "link" not in answer.headers


async def test_filters(client: httpx.AsyncClient, parts: Parts) -> None:
    main = (await submit(client, labels={"branch": "main", "team": "a"}))["id"]
    other = (await submit(client, labels={"branch": "dev:x", "team": "a"}))["id"]
    done = await make_job(client, parts, "succeeded")
    assert await walk(client, label="branch:main") == [main]
    assert await walk(client, label="branch:dev:x") == [other]
    assert await walk(client, label="team:a", limit="1") == [other, main]
    assert await walk(client, label="team:b") == []
    assert await walk(client, state="succeeded") == [done]
    answer = await client.get("/v1/jobs?label=team:a&label=branch:main")
    assert [job["id"] for job in answer.json()["items"]] == [main]
    answer = await client.get("/v1/jobs?state=succeeded&state=queued&limit=2")
    assert [job["id"] for job in answer.json()["items"]] == [done, other]
    assert await walk(client, state="failed") == []


async def test_times_bound_the_list(client: httpx.AsyncClient) -> None:
    jobs = [await submit(client) for _ in range(3)]
    first, middle, last = jobs
    found = await walk(client, created_after=first["created_at"], created_before=last["created_at"])
    assert found == [middle["id"]]
    assert await walk(client, created_after="2999-01-01T00:00:00+14:00") == []
    assert len(await walk(client, created_after="0001-01-01T00:00:00Z")) == 3
    assert len(await walk(client, created_before="9999-12-31T23:59:59.999999Z")) == 3


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=ten",
        "limit=99999999999999999999999",
        "limit=NaN",
        "state=done",
        "state=",
        "label=no-colon",
        "label=:value",
        "label=a:%00",
        "label=a:" + "x" * 201,
        "label=a:%ed%a0%80%00",
        "created_after=2026-01-01T00:00:00",
        "created_after=2026-01-01",
        "created_after=2026-01-01T00:00:00+00:00",
        "created_after=1700000000",
        "created_after=2026-13-01T00:00:00Z",
        "created_after=0001-01-01T00:00:00%2B23:59",
        "created_before=9999-12-31T23:59:59-23:59",
        "created_before=now",
        "unknown=1",
        "limit=5&Limit=5",
        "%00=1",
        "%ff=1",
        "cursor=",
        "cursor=%00",
        "cursor=" + "a" * 501,
    ],
)
async def test_a_query_that_makes_no_sense_is_422(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/v1/jobs?{query}")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request"), answer.text
    assert problem["errors"][0]["in"] == "query"


def _encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


async def test_a_cursor_that_is_not_ours_is_400(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        await submit(client)
    page = (await client.get("/v1/jobs", params={"limit": 1})).json()
    cursor = page["next_cursor"]
    when, job_id, filters = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    broken = [
        "x",
        "aaaa",
        cursor[:-4],
        _encode({}),
        _encode(7),
        _encode([when, job_id]),
        _encode([when, job_id, "0"]),
        _encode(["soon", job_id, filters]),
        _encode([when.removesuffix("+00:00"), job_id, filters]),
        _encode(["0001-01-01T00:00:00+23:59", job_id, filters]),
        _encode([when, 7, filters]),
        _encode([when, "job_\x00", filters]),
        _encode([when, "job_\ud800", filters]),
        base64.urlsafe_b64encode(b"[" * 300).decode().rstrip("="),
        base64.urlsafe_b64encode(b"\xff\xfe").decode().rstrip("="),
    ]
    for written in broken:
        answer = await client.get("/v1/jobs", params={"limit": 1, "cursor": written})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), written
    other = await client.get("/v1/jobs", params={"cursor": cursor, "state": "queued"})
    assert other.status_code == 400


async def test_the_link_keeps_the_filters(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await submit(client, labels={"a": "x y&z"})
    answer = await client.get("/v1/jobs", params={"limit": 1, "label": "a:x y&z"})
    target = answer.links["next"]["url"]
    assert target.startswith("/v1/jobs?")
    page = (await client.get(target)).json()
    assert len(page["items"]) == 1
    assert page["next_cursor"] is None


async def test_a_list_leaves_out_what_is_large(client: httpx.AsyncClient, parts: Parts) -> None:
    data = {"kind": "inline", "documents": ["x" * 90_000]}
    ids = [(await submit(client, data=data))["id"] for _ in range(10)]
    await run_to_the_end(client, parts, ids[0])
    answer = await client.get("/v1/jobs")
    assert len(answer.content) < 20_000
    for job in answer.json()["items"]:
        assert not {"request", "attempts", "nodes"} & set(job)
