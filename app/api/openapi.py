"""What OpenAPI can't know from the code: problems and headers of each route, named examples."""

import json
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.models import Example
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api import messages
from app.api.schemas import Problem
from app.error_handlers import PROBLEM_TYPE, PROBLEM_URN
from app.errors import (
    ApiError,
    DatabaseUnavailable,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    TokenInvalid,
    TokenMissing,
)
from evaluator.contract.reports import ReportBatch, WindowRecord

_REF = "#/components/schemas/{model}"
_OUTSIDE_MODELS: tuple[type[BaseModel], ...] = (Problem, ReportBatch, WindowRecord)
"""Models that no route names in a way that FastAPI sees."""

_DESCRIPTION = """Assay measures language models. Post *this model, this text*; the server runs the
evaluation and gives the perplexity with its error.

Errors are RFC 9457 problems; go by their `code`. Unknown fields and query parameters are refused.
"""

JOB_HEADERS = {
    "ETag": {
        "description": "Strong entity tag of this version of the job.",
        "schema": {"type": "string", "examples": ['"v17"']},
    },
    "Cache-Control": {"description": "`private, no-cache`.", "schema": {"type": "string"}},
}
LOCATION_HEADERS = {
    "Location": {"description": "Path of the job.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds after which it is worth looking again.",
        "schema": {"type": "string"},
    },
}
_REQUEST_ID = {
    "X-Request-ID": {
        "description": "The id you sent, if it was valid ([A-Za-z0-9._-], up to 64 characters), "
        "else a new one. Also in the server's log.",
        "schema": {"type": "string"},
    }
}
_PROBLEM_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
    403: {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "string"}}},
    503: {"Retry-After": {"schema": {"type": "string"}}},
}

_SMOLLM2_INLINE = {
    "model": {"kind": "folder", "path": "SmolLM2-135M-Instruct"},
    "data": {
        "kind": "inline",
        "documents": [
            "The quick brown fox jumps over the lazy dog.",
            "Measure twice, cut once.",
        ],
    },
}
_GGUF_STRIDED = {
    "model": {"kind": "gguf", "path": "SmolLM2-135M-Instruct.Q4_1.gguf"},
    "data": {"kind": "jsonl", "path": "articles.jsonl", "field": "text"},
    "scoring": {"convention": "hf-strided", "window": 1024, "stride": 512},
    "launch": {"ranks_per_node": 2, "device": "cpu"},
    "limits": {"time_seconds": 3600, "attempts": 2},
    "labels": {"branch": "main", "commit": "4f1c9d2"},
    "priority": 10,
}
REQUEST_EXAMPLES: dict[str, Example] = {
    "smollm2-inline": Example(
        summary="A model folder and two texts inside the request", value=_SMOLLM2_INLINE
    ),
    "gguf-jsonl-hf-strided": Example(
        summary="A GGUF file and a JSONL data set, strided windows, two ranks",
        value=_GGUF_STRIDED,
    ),
}


Answers = dict[int | str, dict[str, Any]]


def answers(
    success: Answers,
    *kinds: type[ApiError],
    uses_database: bool = True,
    asks_for_token: bool = True,
) -> Answers:
    """Return the `responses` of a route.

    Args:
        success: the good ones.
        kinds: the errors that it may end in, beside those that every route may.
        uses_database: whether it may find that the database does not answer.
        asks_for_token: whether it is for callers with a token that allows it.
    """
    by_status: defaultdict[int, list[type[ApiError]]] = defaultdict(list)
    all_kinds: list[type[ApiError]] = [InvalidRequest, *kinds, InternalError]
    if asks_for_token:
        all_kinds += [TokenMissing, TokenInvalid, InsufficientScope]
    if uses_database:
        all_kinds.append(DatabaseUnavailable)
    for kind in all_kinds:
        by_status[kind.status].append(kind)
    return success | {
        status: {
            "description": "; ".join(f"`{kind.code}`: {kind.title()}" for kind in found),
            "headers": _PROBLEM_HEADERS.get(status, {}),
            "content": {
                PROBLEM_TYPE: {
                    "schema": {"$ref": _REF.format(model=Problem.__name__)},
                    "examples": {kind.code: {"value": _problem_example(kind)} for kind in found},
                }
            },
        }
        for status, found in sorted(by_status.items())
    }


def _problem_example(kind: type[ApiError]) -> dict[str, Any]:
    return {
        "type": PROBLEM_URN + kind.code,
        "title": kind.title(),
        "status": kind.status,
        "detail": "One sentence with place, value and remedy.",
        "instance": "/v1/jobs",
        "code": kind.code,
        "request_id": "req_01jb6v8cw3f4m5n6p7q8r9s0t1",
        "errors": [],
    }


def _all_responses(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        response
        for path in document["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
    ]


def _version() -> str:
    try:
        return version("assay")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def make_openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document = get_openapi(
        title="Assay",
        version=_version(),
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=app.routes,
        webhooks=messages.router.routes,
        tags=[
            {"name": "jobs", "description": "Ask for evaluations and look at them."},
            {"name": "gates", "description": "Whether a candidate may go on."},
            {"name": "commits", "description": "Tell a forge what happens to jobs."},
            {"name": "webhooks", "description": "Be told what happens to jobs."},
            {"name": "health", "description": "For whoever watches the server."},
            {"name": "internal", "description": "For runs, which report to the server."},
        ],
    )
    _, outside = models_json_schema(
        [(model, "validation") for model in _OUTSIDE_MODELS], ref_template=_REF
    )
    schemas = document["components"]["schemas"]
    for name, schema in outside["$defs"].items():
        schemas.setdefault(name, schema)
    for response in _all_responses(document):
        response["headers"] = {**response.get("headers", {}), **_REQUEST_ID}
    return document


def dump_openapi(app: FastAPI) -> bytes:
    """Return the document as it is sent."""
    return json.dumps(make_openapi(app), ensure_ascii=False, allow_nan=False).encode()
