"""Which commits a job can be reported to; nothing is sent."""

from typing import Any

import httpx
import pytest

from app.api.deps import Parts
from app.jobs.repository import load_job
from app.statuses.reporting import report_verdict
from tests.api.factories import make_job, submit
from tests.support.forge import SHA

Json = dict[str, Any]
GITHUB: Json = {"forge": "github", "repository": "acme/models", "sha": SHA}
GITLAB: Json = GITHUB | {"forge": "gitlab"}


async def put(client: httpx.AsyncClient, job_id: str, target: Json) -> httpx.Response:
    """The answer to who wants a job to be reported to a commit."""
    return await client.put(f"/v1/jobs/{job_id}/commit", json=target)


async def test_a_verdict_on_a_job_without_a_commit_is_told_nobody(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job_id = await make_job(client, parts, "succeeded")
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        await report_verdict(session, job, "pass", "fine")
    answer = await client.get(f"/v1/jobs/{job_id}/commit")
    assert (answer.status_code, answer.json()["code"]) == (404, "commit_not_found")


@pytest.mark.parametrize(
    ("target", "code", "pointer"),
    [
        (GITLAB, "forge_not_configured", "/forge"),
        (GITHUB | {"repository": "other/models"}, "repository_not_allowed", "/repository"),
        (GITHUB | {"repository": "acme"}, "invalid_request", ""),
        (GITHUB | {"repository": "acme/.."}, "invalid_request", "/repository"),
        (GITHUB | {"repository": "acme/a?b"}, "invalid_request", "/repository"),
        (GITHUB | {"sha": SHA[:12]}, "invalid_request", "/sha"),
        (GITHUB | {"context": "a\nb"}, "invalid_request", "/context"),
        (GITHUB | {"state": "success"}, "invalid_request", "/state"),
    ],
)
async def test_what_is_no_commit_or_may_not_be_told_is_refused(
    client: httpx.AsyncClient, parts: Parts, target: Json, code: str, pointer: str
) -> None:
    settings = parts.settings.model_copy(
        update={"gitlab_token": None, "commit_repositories": ("x=*", "default=github:acme/*")}
    )
    object.__setattr__(parts.commits, "_settings", settings)
    job_id = (await submit(client))["id"]
    answer = await put(client, job_id, target)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert (await put(client, job_id, GITHUB)).status_code == 200


async def test_a_job_stays_with_its_commit(client: httpx.AsyncClient) -> None:
    job_id = (await submit(client))["id"]
    shown = (await put(client, job_id, GITHUB)).json()
    answer = await put(client, job_id, GITHUB | {"context": "other"})
    assert (answer.status_code, answer.json()["code"]) == (409, "commit_fixed")
    assert (await put(client, job_id, GITHUB)).json() == shown
