"""Projects see what is their own."""

import httpx
import pytest
from fastapi import FastAPI

from app.api.deps import Parts
from app.auth.tokens import (
    Scope,
)
from tests.api.conftest import make_client
from tests.api.factories import Json, make_job, submit
from tests.api.routes import (
    NO_JOB,
    OF_JOBS,
    Route,
    make_token,
)


@pytest.mark.parametrize("route", OF_JOBS, ids=str)
async def test_jobs_of_another_project_are_not_there(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient, route: Route
) -> None:
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE, project="blue")
    async with make_client(app) as blue:
        blue.headers["Authorization"] = f"Bearer {secret}"
        state = "queued" if route.path.endswith("/cancel") else "succeeded"
        hidden = await make_job(blue, parts, "failed" if route.path.endswith("/retry") else state)
        own = await route.ask(blue, hidden, secret)
        # Its owner gets what there is; only /tokens and a commit were not asked for.
        not_asked_for = ("tokens_not_kept", "commit_not_found")
        assert own.status_code < 300 or own.json()["code"] in not_asked_for, own.text
        before = (await blue.get(f"/v1/jobs/{hidden}")).json()
        answer = await route.ask(red, hidden, red.headers["Authorization"].split()[1])
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
        unknown = await route.ask(red, NO_JOB, red.headers["Authorization"].split()[1])
        assert _but_ids(answer, hidden) == _but_ids(unknown, NO_JOB)
        assert (await blue.get(f"/v1/jobs/{hidden}")).json() == before


def _but_ids(answer: httpx.Response, job: str) -> Json:
    body: Json = answer.json()
    return {
        name: str(value).replace(job, "JOB") for name, value in body.items() if name != "request_id"
    }


async def test_a_list_has_the_callers_jobs_and_an_admin_sees_all(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    mine = await submit(red, labels={"k": "v"})
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    other = await submit(client, labels={"k": "v"})
    assert (mine["project"], other["project"]) == ("red", "default")
    for query in (
        {},
        {"label": "k:v"},
        {"state": "queued", "created_after": "2020-01-01T00:00:00Z"},
    ):
        listed = (await red.get("/v1/jobs", params=query)).json()["items"]
        assert [job["id"] for job in listed] == [mine["id"]]
        listed = (await client.get("/v1/jobs", params=query)).json()["items"]
        assert {job["id"] for job in listed} == {mine["id"], other["id"]}
    assert (await client.get(f"/v1/jobs/{mine['id']}")).status_code == 200


async def test_a_cursor_of_another_project_shows_nothing_of_it(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    oldest = await submit(red)
    for _ in range(3):
        await submit(client)
    page = (await client.get("/v1/jobs", params={"limit": 1})).json()
    listed = (await red.get("/v1/jobs", params={"cursor": page["next_cursor"]})).json()["items"]
    assert [job["id"] for job in listed] == [oldest["id"]]


async def test_a_comparison_needs_both_jobs(
    client: httpx.AsyncClient, parts: Parts, red: httpx.AsyncClient
) -> None:
    client.headers["Authorization"] = f"Bearer {await make_token(parts, Scope.ADMIN)}"
    mine, other = (
        await make_job(red, parts, "succeeded"),
        await make_job(client, parts, "succeeded"),
    )
    for pair in ((mine, other), (other, mine)):
        query = dict(zip(("baseline", "candidate"), pair, strict=True))
        assert (await red.get("/v1/comparisons", params=query)).status_code == 404
        assert (await client.get("/v1/comparisons", params=query)).status_code == 200


async def test_a_baseline_is_of_the_project_of_its_job(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient
) -> None:
    secret = await make_token(parts, Scope.JOBS_READ, Scope.JOBS_WRITE, project="blue")
    async with make_client(app) as blue:
        blue.headers["Authorization"] = f"Bearer {secret}"
        theirs = await make_job(blue, parts, "succeeded")
        assert (await blue.put("/v1/baselines/main", json={"job": theirs})).status_code == 201
        assert (await red.get("/v1/baselines/main")).status_code == 404
        mine = await make_job(red, parts, "succeeded")
        assert (await red.put("/v1/baselines/main", json={"job": mine})).status_code == 201
        assert (await blue.get("/v1/baselines/main")).json()["job"] == theirs
        assert (await red.get("/v1/baselines/main")).json()["job"] == mine


async def test_a_webhook_is_told_of_its_project_alone(
    app: FastAPI, parts: Parts, red: httpx.AsyncClient
) -> None:
    secrets = [
        await make_token(parts, Scope.HOOKS_WRITE, Scope.JOBS_WRITE, project=project)
        for project in ("red", "blue")
    ]
    hooks = []
    for secret in secrets:
        async with make_client(app) as client:
            client.headers["Authorization"] = f"Bearer {secret}"
            added = await client.post("/v1/webhooks", json={"url": "https://ci.example.com/"})
            hooks.append(added.json())
            job = await submit(client)
            await client.post(job["links"]["cancel"])
    assert [hook["project"] for hook in hooks] == ["red", "blue"]
    async with make_client(app) as client:
        client.headers["Authorization"] = f"Bearer {secrets[0]}"
        listed = (await client.get("/v1/webhooks")).json()["items"]
        assert [hook["id"] for hook in listed] == [hooks[0]["id"]]
        sent = (await client.get(hooks[0]["links"]["deliveries"])).json()["items"]
        assert len(sent) == 1
        for path in hooks[1]["links"].values():
            answer = await client.get(path)
            assert answer.status_code in (404, 405), path
        assert (await client.delete(hooks[1]["links"]["self"])).status_code == 404
        assert (await client.post(hooks[1]["links"]["test"])).status_code == 404
        assert (await client.post(hooks[1]["links"]["rotate"])).status_code == 404
