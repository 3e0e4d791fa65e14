"""docs/api.md and /openapi.json say what the server does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.openapi import REQUEST_EXAMPLES, make_openapi
from app.errors import ApiError, InternalError
from app.jobs.request import JobRequest
from app.main import create_app
from app.notify.messages import TEST_EVENT, EventType
from app.settings import Settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


def all_kinds(kind: type[ApiError] = ApiError) -> Iterator[type[ApiError]]:
    """All classes below `kind`."""
    for child in kind.__subclasses__():
        yield child
        yield from all_kinds(child)


KINDS = sorted(set(all_kinds()), key=lambda kind: kind.code)


@pytest.fixture(scope="module")
def openapi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The OpenAPI document, as it is sent."""
    app = create_app(Settings(state_dir=tmp_path_factory.mktemp("state")))
    document: dict[str, Any] = json.loads(json.dumps(make_openapi(app)))
    return document


def operations(openapi: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_every_code_is_in_the_manual_with_its_status(kind: type[ApiError]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert (kind.code, str(kind.status)) in rows
    assert kind.title() == kind.title().strip()
    assert not kind.title().endswith(".")


def test_the_manual_has_no_code_that_is_gone() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \d{3} \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(rows) == [kind.code for kind in KINDS]


def test_codes_are_unique() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_the_manual_names_every_route(openapi: dict[str, Any]) -> None:
    text = DOCUMENT.read_text()
    for name, _ in operations(openapi):
        method, path = name.split()
        assert f"`{method} {re.sub('{.*?}', '{id}', path)}`" in text


def test_openapi_is_3_1_with_an_id_for_each_operation(openapi: dict[str, Any]) -> None:
    assert openapi["openapi"].startswith("3.1.")
    ids = [operation["operationId"] for _, operation in operations(openapi)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in ids)


def test_openapi_has_every_code_that_a_known_route_can_answer(openapi: dict[str, Any]) -> None:
    found = {
        code
        for _, operation in operations(openapi)
        for response in operation["responses"].values()
        for code in response.get("content", {})
        .get("application/problem+json", {})
        .get("examples", {})
    }
    of_no_route = {"route_not_found", "method_not_allowed"}
    assert found == {kind.code for kind in KINDS} - of_no_route


def test_every_answer_is_described(openapi: dict[str, Any]) -> None:
    for name, operation in operations(openapi):
        assert operation["summary"], name
        assert str(InternalError.status) in operation["responses"], name
        for status, response in operation["responses"].items():
            assert "X-Request-ID" in response["headers"], (name, status)
            if status >= "400":
                assert list(response["content"]) == ["application/problem+json"], (name, status)
                schema = response["content"]["application/problem+json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Problem"}


def test_every_reference_leads_somewhere(openapi: dict[str, Any]) -> None:
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(openapi)):
        assert name in openapi["components"]["schemas"]
    assert "HTTPValidationError" not in openapi["components"]["schemas"]


def test_examples_of_requests_are_valid(openapi: dict[str, Any]) -> None:
    content = openapi["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert set(content["examples"]) == set(REQUEST_EXAMPLES)
    for example in content["examples"].values():
        JobRequest.model_validate(example["value"])


def test_every_message_is_described(openapi: dict[str, Any]) -> None:
    told = openapi["webhooks"]
    assert set(told) == {*EventType, TEST_EVENT}
    ids = [item["post"]["operationId"] for item in told.values()]
    assert sorted(ids)[:2] == ["onJobCancelled", "onJobFailed"]
    for item in told.values():
        headers = {each["name"] for each in item["post"]["parameters"]}
        assert headers == {"webhook-id", "webhook-timestamp", "webhook-signature"}
        assert set(item["post"]["responses"]) == {"204", "410", "default"}
    assert "HTTPValidationError" not in openapi["components"]["schemas"]
