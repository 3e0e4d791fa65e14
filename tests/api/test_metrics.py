"""Figures for Prometheus, read with the library's own parser."""

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.api.deps import Parts
from app.auth.tokens import Scope
from tests.api.conftest import make_client
from tests.api.factories import make_job, submit
from tests.api.routes import make_token

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def figures(client: httpx.AsyncClient) -> Figures:
    """Every sample by name and labels."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(found: Figures, name: str, **labels: str) -> float:
    """One sample; 0 where there is none yet."""
    return found.get((name, frozenset(labels.items())), 0.0)


async def test_the_queue_is_counted(client: httpx.AsyncClient, parts: Parts) -> None:
    before = await figures(client)
    assert value(before, "assay_jobs", state="queued", device="cpu") == 0
    assert value(before, "assay_queue_age_seconds", device="cpu") == 0
    assert value(before, "assay_slots", device="cpu") == 4
    await submit(client)
    await submit(client)
    after = await figures(client)
    assert value(after, "assay_jobs", state="queued", device="cpu") == 2
    assert 0 < value(after, "assay_queue_age_seconds", device="cpu") < 60
    running = await make_job(client, parts, "running")
    assert running
    found = await figures(client)
    assert value(found, "assay_jobs", state="running", device="cpu") == 1
    assert value(found, "assay_slots_used", device="cpu") >= 1


async def test_what_happened_is_counted(client: httpx.AsyncClient, parts: Parts) -> None:
    before = await figures(client)
    await make_job(client, parts, "succeeded")
    job = await submit(client)
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    await client.get("/v1/jobs/job_00000000000000000000000000")
    await client.request("BREW", "/v1/jobs")
    await client.get("/nowhere/at/all")
    after = await figures(client)

    def grew(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grew("assay_job_moves_total", state="starting") == 1
    assert grew("assay_job_moves_total", state="succeeded") == 1
    assert grew("assay_job_duration_seconds_count", phase="running", state="succeeded") == 1
    assert grew("assay_job_duration_seconds_count", phase="waiting", state="cancelled") == 1
    assert grew("assay_job_duration_seconds_count", phase="running", state="cancelled") == 0
    assert grew("assay_http_requests_rejected_total", code="job_not_found") == 1
    template = "/v1/jobs/{job_id}"
    assert grew("assay_http_requests_total", method="GET", route=template, status="404") == 1
    assert grew("assay_http_requests_total", method="GET", route="none", status="404") == 1
    assert grew("assay_http_requests_total", method="other", route="/v1/jobs", status="405") <= 1


async def test_labels_name_no_job_and_no_path(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    await client.get(f"/v1/jobs/{job['id']}")
    await client.get("/secret-path")
    text = (await client.get("/metrics")).text
    assert job["id"] not in text
    assert "secret-path" not in text


@pytest.mark.parametrize("scope", Scope)
async def test_figures_have_a_scope_of_their_own(app: FastAPI, parts: Parts, scope: Scope) -> None:
    secret = await make_token(parts, scope)
    async with make_client(app) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        allowed = scope in (Scope.METRICS_READ, Scope.ADMIN)
        assert (await client.get("/metrics")).status_code == (200 if allowed else 403)
