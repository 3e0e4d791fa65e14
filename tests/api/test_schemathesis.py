"""Generated requests: no defect shows, and every answer is as /openapi.json says. On SQLite."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import shutdown_lifespans
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from app.api.openapi import make_openapi
from app.auth.tokens import create_first_token
from app.db import Database
from app.main import create_app
from app.settings import Settings
from tests.api.conftest import make_client
from tests.api.factories import make_job

Case = schemathesis.Case[Any]
Check = Callable[[Case], object]

CONFORMS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STREAM_S = 0.1
"""Of a stream that does not end, what has arrived by then is looked at."""
STATES = ("succeeded", "failed", "cancelled", "running")
few_examples = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a server on SQLite of its own that launches nothing."""
    folder = tmp_path_factory.mktemp("schemathesis")
    models, data = folder / "models", folder / "data"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "config.json").write_text("{}")
    (models / "tiny" / "model.safetensors").write_bytes(b"")
    data.mkdir()
    (data / "text.txt").write_text("one two three")
    return Settings(
        state_dir=folder / "state",
        database_url=SecretStr(f"sqlite:///{folder / 'assay.db'}"),
        model_roots=(models,),
        data_roots=(data,),
        worker=False,
        cpu_slots=4,
        heartbeat_seconds=0.05,
        github_token=SecretStr("github-secret"),
        public_badges=("default",),
    )


@pytest.fixture(scope="module")
def known_ids(server: Settings) -> list[str]:
    """Jobs that are there, in several states; made before the first token is."""

    async def make() -> list[str]:
        app = create_app(server)
        async with app.router.lifespan_context(app), make_client(app) as client:
            return [await make_job(client, app.state.parts, state) for state in STATES]

    return asyncio.run(make())


@pytest.fixture(scope="module")
def known_webhook(server: Settings, known_ids: list[str]) -> dict[str, str]:
    """A webhook that is there, with a delivery, as parameters of a path."""

    async def make() -> dict[str, str]:
        app = create_app(server)
        async with app.router.lifespan_context(app), make_client(app) as client:
            webhook = await client.post("/v1/webhooks", json={"url": "https://ci.example.com/"})
            links = webhook.json()["links"]
            delivery = await client.post(links["test"])
            await client.patch(links["self"], json={"enabled": False})  # so that it ends
            await client.patch(links["self"], json={"enabled": True})
            return {"webhook_id": webhook.json()["id"], "delivery_id": delivery.json()["id"]}

    return asyncio.run(make())


@pytest.fixture(scope="module")
def token(server: Settings, known_ids: list[str], known_webhook: dict[str, str]) -> str:
    """A token that the server asks for, now that all that is known was made without one."""

    async def make() -> str:
        database = Database(server.sqlalchemy_url)
        path = await create_first_token(database, server.state_dir)
        await database.close()
        return path.read_text().strip()

    return asyncio.run(make())


@pytest.fixture(scope="module")
def schema(server: Settings, token: str) -> Iterator[OpenApiSchema]:
    """The description of the running server."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(server))

    @schema.auth()
    class Auth:
        """Gives each request the token, unless the point of it is that it has none."""

        def get(self, _case: Case, _context: object) -> str:
            """Return the token."""
            return token

        def set(self, case: Case, data: str, _context: object) -> None:
            """Send it."""
            case.headers["Authorization"] = f"Bearer {data}"

    yield schema
    shutdown_lifespans()


DOCUMENT = make_openapi(create_app(Settings()))
OPERATIONS = [(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item]


def can_be_broken(method: str, path: str) -> bool:
    """Whether the operation takes more than the id of a job, which may be any string."""
    operation = DOCUMENT["paths"][path][method.lower()]
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    return "requestBody" in operation or bool(places - {"path"})


def generate(
    schema: OpenApiSchema, method: str, path: str, mode: GenerationMode, check: Check
) -> None:
    """Give `check` some requests that follow the description, or break it on purpose."""

    @few_examples
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        check(case)

    run()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_follow_the_description(
    schema: OpenApiSchema, method: str, path: str
) -> None:
    # A model that is not on this server, a cursor that it did not make, and an address or a forge
    # that it does not send to may be well-formed.
    may_be_refused = path in ("/v1/jobs", "/v1/webhooks", "/v1/jobs/{job_id}/commit")
    unfit = positive_data_acceptance if may_be_refused else None

    def check(case: Case) -> None:
        case.call_and_validate(excluded_checks=None if unfit is None else [unfit])

    generate(schema, method, path, GenerationMode.POSITIVE, check)


@pytest.mark.parametrize(
    ("method", "path"), [operation for operation in OPERATIONS if can_be_broken(*operation)]
)
def test_requests_that_break_the_description(schema: OpenApiSchema, method: str, path: str) -> None:
    def check(case: Case) -> None:
        case.call_and_validate()

    generate(schema, method, path, GenerationMode.NEGATIVE, check)


@pytest.mark.parametrize(
    ("method", "path"),
    # GET first: the others change the jobs.
    sorted(operation for operation in OPERATIONS if "{job_id}" in operation[1]),
)
def test_requests_for_jobs_that_are_there(
    schema: OpenApiSchema, known_ids: list[str], method: str, path: str
) -> None:
    def check(case: Case) -> None:
        case.headers.pop("Prefer", None)  # a wait would be as long as it says
        timeout_s = STREAM_S if path.endswith("/events") else None
        for job_id in known_ids:
            case.path_parameters = {"job_id": job_id}
            answer = case.call_and_validate(checks=CONFORMS, timeout=timeout_s)
            assert answer.status_code not in (401, 403)

    generate(schema, method, path, GenerationMode.POSITIVE, check)


@pytest.mark.parametrize(
    ("method", "path"),
    # DELETE last.
    sorted((each for each in OPERATIONS if "{webhook_id}" in each[1]), reverse=True),
)
def test_requests_for_a_webhook_that_is_there(
    schema: OpenApiSchema, known_webhook: dict[str, str], method: str, path: str
) -> None:
    def check(case: Case) -> None:
        case.path_parameters = {
            name: value for name, value in known_webhook.items() if f"{{{name}}}" in path
        }
        case.call_and_validate(checks=CONFORMS)

    generate(schema, method, path, GenerationMode.POSITIVE, check)
