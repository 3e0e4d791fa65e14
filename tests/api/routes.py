"""Every route that /openapi.json names, with a good request to each."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import httpx

from app.api.deps import Parts
from app.api.openapi import make_openapi
from app.auth.tokens import (
    Scope,
    TokenRequest,
    create_token,
)
from app.jobs.repository import utcnow
from app.main import create_app
from app.settings import Settings
from tests.api.factories import Json, job_request

DOCUMENT = make_openapi(create_app(Settings()))
BADGE = "/v1/jobs/{job_id}/badge.svg"
OPEN = {"/livez", "/readyz", "/v1/attempts/{attempt_id}/reports", BADGE}
NO_JOB = "job_00000000000000000000000000"
NO_HOOK = "wh_00000000000000000000000000"
NO_DELIVERY = "msg_00000000000000000000000000"


@dataclass(frozen=True)
class Route:
    """An operation of the document."""

    method: str
    path: str
    scope: str | None
    """Null: it asks for no token of `assay token`."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names_a_job(self) -> bool:
        """Whether path or query say which job it is about."""
        return "{job_id}" in self.path or NO_JOB in str((self.query(NO_JOB), self.body(NO_JOB)))

    def query(self, job: str) -> dict[str, str] | None:
        """A good query about `job`, where the route needs one."""
        return {"baseline": job, "candidate": job} if self.path == "/v1/comparisons" else None

    def body(self, job: str) -> Json | None:
        """A good body about `job`, where the route needs one."""
        limit = {"kind": "limit", "figure": "token_perplexity", "at_most": 20}
        bodies: dict[str, Json] = {
            "POST /v1/jobs": job_request(),
            "POST /v1/gates/evaluations": {"candidate": job, "rules": [limit]},
            "PUT /v1/baselines/{name}": {"job": job},
            "PUT /v1/jobs/{job_id}/commit": {
                "forge": "github",
                "repository": "acme/models",
                "sha": "6dcb09b5b57875f334f61aebed695e2e4193db5e",
            },
            "POST /v1/webhooks": {"url": "https://ci.example.com/"},
            "PATCH /v1/webhooks/{webhook_id}": {"enabled": True},
        }
        return bodies.get(str(self))

    def sample_path(self, job: str = NO_JOB) -> str:
        """A good path about `job`."""
        return self.path.format(
            job_id=job,
            attempt_id="att_0",
            name="main",
            webhook_id=NO_HOOK,
            delivery_id=NO_DELIVERY,
        )

    async def ask(self, client: httpx.AsyncClient, job: str, token: str | None) -> httpx.Response:
        """Send a good request about `job`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await client.request(
            self.method,
            self.sample_path(job),
            params=self.query(job),
            json=self.body(job),
            headers=headers,
        )


def _routes() -> Iterator[Route]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            scopes = [
                each["apiToken"] for each in operation.get("security", ()) if "apiToken" in each
            ]
            yield Route(method.upper(), path, scopes[0][0] if scopes else None)


ROUTES = tuple(_routes())
CLOSED = [route for route in ROUTES if route.path not in OPEN]
OF_JOBS = [route for route in CLOSED if route.names_a_job]


async def make_token(
    parts: Parts, *scopes: Scope, project: str | None = "red", age: timedelta | None = None
) -> str:
    """The secret of a token; `age` is for how long it has been too old."""
    project = None if Scope.ADMIN in scopes else project
    expires_at = None if age is None else utcnow() - age
    request = TokenRequest(
        name="test", scopes=frozenset(scopes), project=project, expires_at=expires_at
    )
    return (await create_token(parts.database, request))[1]
