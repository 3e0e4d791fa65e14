"""What the framework lets pass and this API refuses: a name that is given twice.

The last one would win without a word. Other parsers take the first, so two programs that look at
one request could see two different ones.
"""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, get_origin

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from evaluator.contract.strict_json import unique_members


class StrictRequest(Request):
    """Parses its body as JSON whose objects have each name once."""

    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            RepeatedMember: an object has a name twice.
        """
        return json.loads(await self.body(), object_pairs_hook=unique_members)


class StrictRoute(APIRoute):
    """A route that takes `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler with a stricter request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def _repeatable(route: APIRoute) -> set[str]:
    """Return the query parameters of a route that are lists; they are fields of its models."""
    models = (field.field_info.annotation for field in route.dependant.query_params)
    return {
        name
        for model in models
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is tuple
    }


async def refuse_repeated(request: Request) -> None:
    """Refuse a query parameter that is given twice and is no list."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated and (wrong := set(repeated) - _repeatable(request.scope["route"])):
        places = [
            {"type": "repeated", "loc": ("query", name), "msg": "given more than once"}
            for name in repeated
            if name in wrong
        ]
        raise RequestValidationError(places)
