"""POST /v1/jobs."""

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from app.settings import Settings
from tests.api.factories import Json, job_request, submit

LINKS = ("cancel", "retry", "events", "logs", "nodes", "result", "windows")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


async def test_a_job_is_accepted_with_its_full_representation(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", json=job_request(labels={"branch": "main"}, priority=7))
    job = answer.json()
    path = f"/v1/jobs/{job['id']}"
    assert answer.status_code == 202
    assert answer.headers["location"] == path
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["etag"] == '"v1"'
    assert answer.headers["cache-control"] == "private, no-cache"
    assert re.fullmatch(r"job_[0-9a-z]{26}", job["id"])
    assert (job["state"], job["is_terminal"], job["attempt"]) == ("queued", False, 0)
    assert (job["priority"], job["labels"], job["attempts_left"]) == (7, {"branch": "main"}, 3)
    assert TIME.fullmatch(job["created_at"])
    assert TIME.fullmatch(job["updated_at"])
    assert job["links"] == {
        "self": path,
        **{name: f"{path}/{name}" for name in LINKS},
    }
    assert job["request"]["scoring"] == {
        "convention": "lm-eval",
        "window": None,
        "batch_tokens": 2048,
        "prefix": "auto",
        "prefix_place": "auto",
        "special_tokens": "text",
    }
    assert (await client.get(path)).json() == job


async def test_inline_documents_come_back_as_they_were_sent(client: httpx.AsyncClient) -> None:
    documents = ["with \x00 NUL", "\U0001f600 and \u2028", "", "é" * 1000]
    job = await submit(client, data={"kind": "inline", "documents": documents})
    shown = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert shown["request"]["data"]["documents"] == documents


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"model": {"kind": "folder", "path": "../.."}}, "path_not_allowed", "/model/path"),
        ({"model": {"kind": "folder", "path": "/etc"}}, "path_not_allowed", "/model/path"),
        ({"model": {"kind": "folder", "path": "none"}}, "model_not_found", "/model/path"),
        ({"model": {"kind": "gguf", "path": "none.gguf"}}, "model_not_found", "/model/path"),
        ({"data": {"kind": "text", "path": "none.txt"}}, "data_not_found", "/data/path"),
        ({"model": {"kind": "hub", "name": "a/b"}}, "hub_disabled", "/model"),
        ({"data": {"kind": "hub", "name": "a/b"}}, "hub_disabled", "/data"),
        ({"data": {"kind": "folder", "path": "../.."}}, "path_not_allowed", "/data/path"),
        ({"data": {"kind": "folder", "path": "text.txt"}}, "data_not_found", "/data/path"),
        ({"data": {"kind": "csv", "path": "none.csv"}}, "data_not_found", "/data/path"),
        ({"data": {"kind": "known", "name": "wikitext-2"}}, "hub_disabled", "/data"),
        ({"data": "wikitext-2"}, "hub_disabled", "/data"),
        ({"data": "wikitext-3"}, "invalid_request", "/data"),
        (
            {"data": {"kind": "csv", "path": "text.txt", "delimiter": '"'}},
            "invalid_request",
            "/data/delimiter",
        ),
        (
            {"data": {"kind": "text", "path": "text.txt", "sample": {"num_documents": 0}}},
            "invalid_request",
            "/data/sample/num_documents",
        ),
        ({"outputs": {"token_nll": "float64"}}, "invalid_request", "/outputs/token_nll"),
        ({"launch": {"ranks_per_node": 5}}, "too_many_ranks", "/launch/ranks_per_node"),
        ({"launch": {"device": "cuda"}}, "device_unavailable", "/launch/device"),
        ({"launch": {"ranks_per_node": "2"}}, "invalid_request", "/launch/ranks_per_node"),
        ({"model": {"kind": "pickle", "path": "tiny"}}, "invalid_request", "/model"),
        ({"trust_remote_code": True}, "invalid_request", "/trust_remote_code"),
        ({"labels": {"nul": "\x00"}}, "invalid_request", "/labels/nul"),
        ({"priority": 1e400}, "invalid_request", "/priority"),
        (
            {"scoring": {"convention": "hf-strided", "window": 8, "stride": 9}},
            "invalid_request",
            "/scoring",
        ),
        (
            {"data": {"kind": "inline", "documents": ["x" * 100_001]}},
            "inline_too_large",
            "/data/documents",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_the_server_refuses_names_the_place(
    client: httpx.AsyncClient, changes: Json, code: str, pointer: str
) -> None:
    answer = await client.post(
        "/v1/jobs",
        content=json.dumps(job_request(**changes)),  # httpx writes no infinity
        headers={"Content-Type": "application/json"},
    )
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["code"] == code
    assert problem["errors"][0]["in"] == "body"
    assert problem["errors"][0]["pointer"] == pointer
    assert problem["errors"][0]["detail"]


DEEP = b'{"labels":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe{}",
        b'{"priority": NaN}',
        b'{"priority": Infinity, "labels": {"a": -Infinity}}',
        b'{"labels": {"a": "\\ud800"}}',
        b'{"\\ud800": 1}',
        b'{"labels": {"\\ud800": "x"}}',
        b'{"model": {"kind": "\\udfff", "path": "\\ud800"}}',
        b'{"data": {"kind": "inline", "documents": ["\\ud800"]}}',
        b'{"labels": {"\\u0000": "x"}, "model": {"kind": "folder", "path": "a\\u0000b"}}',
        b'{"priority": ' + b"9" * 5000 + b"}",
        b'{"priority": 1e999999999}',
        b'{"limits": {"time_seconds": 9223372036854775808}}',
        b'{"' + b"k" * 100_000 + b'": 1}',
        b'{"data": {"kind": "inline", "documents": [' + b"1," * 50_000 + b"1]}}",
        b'{"model": {"kind": "' + b"k" * 100_000 + b'"}}',
        DEEP,
        b"[" * 100_000,
    ],
    ids=lambda body: body[:30].decode("latin-1"),
)
async def test_a_body_that_makes_no_sense_is_a_short_problem(
    client: httpx.AsyncClient, body: bytes
) -> None:
    if len(body) > 200_000:
        body = body[:199_999]
    answer = await client.post(
        "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text[:300]
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_request"
    assert problem["errors"]
    assert len(answer.content) < 20_000


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_body_that_is_not_declared_as_json_is_415(
    client: httpx.AsyncClient, kind: str
) -> None:
    answer = await client.post("/v1/jobs", content=b"{}", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_a_json_dialect_is_taken(client: httpx.AsyncClient) -> None:
    kind = {"Content-Type": "Application/vnd.assay+JSON; charset=utf-8"}
    answer = await client.post("/v1/jobs", json=job_request(), headers=kind)
    assert answer.status_code == 202


async def test_a_large_body_is_refused_by_its_declared_length(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    body = b" " * (settings.body_max_bytes + 1)
    answer = await client.post("/v1/jobs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


async def test_a_large_body_is_refused_when_no_length_is_declared(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    num_sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_sent
        while num_sent < 100:
            num_sent += 1
            yield b" " * (settings.body_max_bytes // 10)

    answer = await client.post(
        "/v1/jobs", content=body(), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert num_sent == 11


async def test_a_body_of_just_the_allowed_size_is_read(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    body = b"{}" + b" " * (settings.body_max_bytes - 2)
    answer = await client.post(
        "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.json()["code"] == "invalid_request"
