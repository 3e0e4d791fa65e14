"""Errors: one shape on every route, framework errors included."""

import json
import logging
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import DataError, OperationalError

from app.error_handlers import PROBLEM_TYPE
from app.log import JsonFormatter
from tests.api import routes
from tests.api.factories import job_request, submit
from tests.api.routes import NO_JOB

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "request_id", "errors"}
ROUTES = [(route.method, route.sample_path()) for route in routes.ROUTES] + [
    ("GET", "/openapi.json")
]


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem after having checked its shape."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem.get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == PROBLEM_TYPE
    assert answer.headers["cache-control"] == "no-store"
    assert set(problem) == MEMBERS
    assert problem["status"] == status
    assert problem["type"] == f"urn:assay:problem:{code}"
    assert problem["request_id"] == answer.headers["x-request-id"]
    for place in problem["errors"]:
        assert set(place) == {"in", "pointer", "detail"}
    return problem


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_refuses_an_unknown_query_parameter(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    job = await submit(client)
    path = path.replace(NO_JOB, job["id"])
    headers = {"Authorization": "Bearer x"}
    answer = await client.request(method, f"{path}?nonsense=1", json=job_request(), headers=headers)
    problem = check_problem(answer, 422, "invalid_request")
    assert ("query", "/nonsense") in [(p["in"], p["pointer"]) for p in problem["errors"]]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_answers_another_method_with_405(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    taken = sorted(other for other, where in ROUTES if where == path)
    assert method in taken
    for wrong in {"DELETE", "PUT", "PATCH", "OPTIONS", "BREW"} - set(taken):
        answer = await client.request(wrong, path)
        check_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"].split(", ") == taken


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/jobs/", "/docs", "/redoc", f"/v1/jobs/{NO_JOB}/none", "/%00%ff/\U0001f600"],
)
async def test_a_path_that_is_none_is_404(client: httpx.AsyncClient, path: str) -> None:
    problem = check_problem(await client.get(path), 404, "route_not_found")
    assert problem["instance"].isascii()


async def test_a_long_path_is_not_repeated(client: httpx.AsyncClient) -> None:
    answer = await client.get("/" + "x" * 5000)
    check_problem(answer, 404, "route_not_found")
    assert len(answer.content) < 2000


@pytest.mark.parametrize("wanted", ["abc", "A-b_c.9", "x" * 64])
async def test_a_request_id_is_taken_over(client: httpx.AsyncClient, wanted: str) -> None:
    answer = await client.get("/livez", headers={"X-Request-ID": wanted})
    assert answer.headers["x-request-id"] == wanted
    answer = await client.get("/none", headers={"X-Request-ID": wanted})
    assert check_problem(answer, 404, "route_not_found")["request_id"] == wanted


@pytest.mark.parametrize("wanted", ["", "x" * 65, "a b", "a\tb", '"', "é", "{}"])
async def test_a_request_id_that_is_none_is_replaced(
    client: httpx.AsyncClient, wanted: str
) -> None:
    answer = await client.get("/livez", headers=[(b"X-Request-ID", wanted.encode())])
    assert re.fullmatch(r"req_[0-9a-z]{26}", answer.headers["x-request-id"])


async def test_a_defect_is_a_problem_without_a_stack_trace(
    app: FastAPI, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/broken")
    async def broken() -> None:
        msg = "secret /inner/path"
        raise RuntimeError(msg)

    answer = await client.get("/broken")
    problem = check_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert problem["request_id"] in problem["detail"]
    (record,) = [entry for entry in caplog.records if entry.getMessage() == "request failed"]
    assert "secret" in JsonFormatter().format(record)


async def test_a_database_that_is_gone_is_503(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/gone")
    async def gone() -> None:
        raise OperationalError("SELECT secret", {}, OSError("connection refused"))

    @app.get("/defect")
    async def defect() -> None:
        raise DataError("SELECT secret", {}, ValueError("secret"))

    answer = await client.get("/gone")
    check_problem(answer, 503, "database_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in answer.text
    answer = await client.get("/defect")
    check_problem(answer, 500, "internal")
    assert "secret" not in answer.text


async def test_each_request_leaves_a_line_in_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "app.middleware"):
        await client.get("/v1/jobs?limit=1")
        await client.get("/livez")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    (line,) = [line for line in lines if line["logger"] == "app.middleware"]
    assert (line["event"], line["method"], line["path"]) == ("request", "GET", "/v1/jobs")
    assert line["status"] == 200
    assert line["duration_ms"] >= 0
