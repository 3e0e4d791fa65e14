"""Badges: what is shown to whom."""

import httpx

from app.api.deps import Parts
from app.auth.tokens import Scope
from tests.api.factories import make_job, submit
from tests.api.routes import NO_JOB, make_token


async def test_anybody_sees_the_badge_of_a_project_that_allows_it(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job_id = await make_job(client, parts, "succeeded")
    await make_token(parts, Scope.ADMIN)
    answer = await client.get(f"/v1/jobs/{job_id}/badge.svg")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "image/svg+xml"
    assert answer.headers["Cache-Control"] == "public, max-age=60"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "<title>perplexity: 3.49034</title>" in answer.text
    etag = answer.headers["ETag"]
    again = await client.get(f"/v1/jobs/{job_id}/badge.svg", headers={"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 401
    assert (await client.get(f"/v1/jobs/{job_id}/badge.svg/")).status_code == 401


async def test_a_badge_changes_with_its_job(client: httpx.AsyncClient) -> None:
    job_id = (await submit(client))["id"]
    before = await client.get(f"/v1/jobs/{job_id}/badge.svg")
    await client.post(f"/v1/jobs/{job_id}/cancel")
    tag = {"If-None-Match": before.headers["ETag"]}
    after = await client.get(f"/v1/jobs/{job_id}/badge.svg", headers=tag)
    assert ("queued" in before.text, "cancelled" in after.text) == (True, True)


async def test_the_badge_of_another_project_is_not_there(
    client: httpx.AsyncClient, red: httpx.AsyncClient
) -> None:
    hidden = (await submit(red))["id"]
    for caller in (client, red):
        answers = [await caller.get(f"/v1/jobs/{each}/badge.svg") for each in (hidden, NO_JOB)]
        seen = [
            (
                each.status_code,
                {name for name in each.headers if name != "x-request-id"},
                each.text.replace(job, "JOB").replace(each.headers["X-Request-ID"], ""),
            )
            for each, job in zip(answers, (hidden, NO_JOB), strict=True)
        ]
        assert seen[0] == seen[1]
        assert seen[0][0] == 404
