"""The pointers of a refusal lead to what is wrong in the body, as it was sent."""

from typing import Any

import httpx
import pytest

from app.api.deps import Parts
from tests.api.factories import Json, claim, job_request, submit
from tests.api.test_problems import check_problem

FOLDER, TEXT = {"kind": "folder", "path": "tiny"}, {"kind": "text", "path": "text.txt"}
STRIDED = {"convention": "hf-strided", "window": 8}


def leads_somewhere(document: Any, pointer: str) -> bool:
    """Follow a JSON pointer (RFC 6901)."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(name) if isinstance(document, list) else name]
        except (KeyError, IndexError, ValueError, TypeError):
            return False
    return True


def check_places(problem: Json, body: Json, expected: dict[str, bool]) -> None:
    """Each place is expected and leads to something; where it is missing, its parent does."""
    assert {place["in"] for place in problem["errors"]} == {"body"}
    assert {place["pointer"] for place in problem["errors"]} == set(expected)
    for pointer, is_there in expected.items():
        assert leads_somewhere(body, pointer) is is_there
        assert leads_somewhere(body, pointer.rpartition("/")[0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"kind": "folder"}}, {"/model/path": False}),
        ({"model": {"kind": "gguf", "path": 7}}, {"/model/path": True}),
        (
            {"model": {"kind": "hub", "revision": "a b"}},
            {"/model/name": False, "/model/revision": True},
        ),
        ({"model": FOLDER | {"folder": 1}}, {"/model/folder": True}),
        ({"model": FOLDER | {"a/b~c": 1}}, {"/model/a~1b~0c": True}),
        ({"model": {"kind": "nonsense"}}, {"/model": True}),
        ({"model": {}}, {"/model": True}),
        ({"model": "tiny"}, {"/model": True}),
        ({"data": {"kind": "jsonl"}}, {"/data/path": False}),
        ({"data": {"kind": "inline", "documents": ["a", 3]}}, {"/data/documents/1": True}),
        ({"data": {"kind": "inline", "documents": []}}, {"/data/documents": True}),
        (
            {"data": TEXT | {"field": "x", "text": {}}},
            {"/data/field": True, "/data/text": True},
        ),
        ({"scoring": STRIDED | {"stride": 9}}, {"/scoring": True}),
        ({"scoring": STRIDED | {"hf-strided": 1}}, {"/scoring/hf-strided": True}),
        (
            {"scoring": {"convention": "lm-eval", "stride": 3, "window": "4"}},
            {"/scoring/stride": True, "/scoring/window": True},
        ),
        ({"labels": {"a": "b", "b": 3}}, {"/labels/b": True}),
        ({"labels": {"": "x"}}, {"/labels/": True}),
        ({"launch": {"device": "tpu"}}, {"/launch/device": True}),
    ],
    ids=str,
)
async def test_the_pointers_of_a_refused_job(
    client: httpx.AsyncClient, changes: Json, expected: dict[str, bool]
) -> None:
    body = job_request(**changes)
    problem = check_problem(await client.post("/v1/jobs", json=body), 422, "invalid_request")
    check_places(problem, body, expected)


async def test_a_job_without_model_and_data(client: httpx.AsyncClient) -> None:
    problem = check_problem(await client.post("/v1/jobs", json={}), 422, "invalid_request")
    check_places(problem, {}, {"/model": False, "/data": False})


TIMING = {"rank": 0, "local_rank": 0, "node_rank": 0}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            {"type": "progress", "stage": "load", "timing": {"rank": "x"}},
            {
                "/reports/0/timing/rank": True,
                "/reports/0/timing/local_rank": False,
                "/reports/0/timing/node_rank": False,
            },
        ),
        (
            {
                "type": "progress",
                "stage": "score",
                "timing": TIMING,
                "entries": [
                    {
                        "batch": 0,
                        "nll_nats": [1.5],
                        "nll_squares": [2.5],
                        "num_scored": [],
                        "nll_by_context": [1.5],
                    }
                ],
            },
            {"/reports/0/entries/0": True},
        ),
        (
            {"type": "failure", "reason": "nonsense", "failure": 1},
            {
                "/reports/0/reason": True,
                "/reports/0/message": False,
                "/reports/0/failure": True,
            },
        ),
        ({"type": "nonsense"}, {"/reports/0": True}),
    ],
    ids=["timing", "entry", "failure", "kind"],
)
async def test_the_pointers_of_a_refused_report(
    client: httpx.AsyncClient, parts: Parts, report: Json, expected: dict[str, bool]
) -> None:
    attempt_id, token = await claim(parts, (await submit(client))["id"])
    body = {"contract_version": 1, "reports": [{"rank": 0, "seq": 1, **report}]}
    answer = await client.post(
        f"/v1/attempts/{attempt_id}/reports",
        json=body,
        headers={"Authorization": f"Bearer {token}"},
    )
    problem = check_problem(answer, 422, "invalid_request")
    check_places(problem, body, expected)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"model":\n  {"kind": folder}}', "at line 2, column 12: Expecting value"),
        (b"{", "at line 1, column 2: "),
        (b'{"a": "\xff"}', "not UTF-8: byte 7"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"priority": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"labels": {"a": "1", "b": "2", "a": "1"}}', "an object with 'a' twice"),
        (b'{"\\u0061": 1, "a": 2}', "an object with 'a' twice"),
    ],
    ids=["line", "end", "utf-8", "deep", "digits", "twice", "escaped"],
)
async def test_a_body_that_is_no_json_is_told_by_its_one_cause(
    client: httpx.AsyncClient, body: bytes, detail: str
) -> None:
    answer = await client.post(
        "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    problem = check_problem(answer, 422, "invalid_request")
    (place,) = problem["errors"]
    assert (place["in"], place["pointer"]) == ("body", "")
    assert detail in place["detail"]


async def test_a_report_that_is_no_json_is_told_with_its_line(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    attempt_id, token = await claim(parts, (await submit(client))["id"])
    answer = await client.post(
        f"/v1/attempts/{attempt_id}/reports",
        content=b'{"a":\n}',
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    problem = check_problem(answer, 422, "invalid_request")
    assert "line 2 column 1" in problem["detail"]


@pytest.mark.parametrize("path", ["?limit=1&limit=2", "/{id}/logs?tail=1&tail=2&offset=1&offset=1"])
async def test_a_single_query_parameter_is_given_once(client: httpx.AsyncClient, path: str) -> None:
    job = await submit(client)
    answer = await client.get(f"/v1/jobs{path.format(id=job['id'])}")
    problem = check_problem(answer, 422, "invalid_request")
    assert {place["in"] for place in problem["errors"]} == {"query"}
    assert "given more than once" in problem["detail"]


async def test_a_list_of_the_query_may_be_repeated(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/jobs?state=queued&state=failed&label=a:b&label=c:d")
    assert answer.status_code == 200


async def test_the_settings_that_a_refused_layout_needs_are_named(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/jobs", json=job_request(launch={"device": "cuda"}))
    problem = check_problem(answer, 422, "device_unavailable")
    assert problem["errors"][0]["pointer"] == "/launch/device"
    assert "ASSAY_GPU_SLOTS" in problem["detail"]
    answer = await client.post("/v1/jobs", json=job_request(launch={"ranks_per_node": 9}))
    assert "ASSAY_CPU_SLOTS" in check_problem(answer, 422, "too_many_ranks")["detail"]
