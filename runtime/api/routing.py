"""How a group of routes is declared: each with the least role that may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of, require_role

ERROR = {"description": "An error", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}

Endpoint = Callable[..., Awaitable[Response]]
_LOOKS = ("GET", "HEAD")


class Routes:
    """A group of routes under ``/v1``. *name* groups them in the OpenAPI document."""

    def __init__(self, name: str) -> None:
        self.router = APIRouter(prefix="/v1", tags=[name])
        self.schemas: dict[str, Any] = {}
        """Schemas that the routes' bodies refer to, for the OpenAPI document."""

    def add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        role: Role,
        *,
        body: type[BaseModel] | None = None,
        answers: str,
    ) -> None:
        """Let *endpoint* answer *method* on *path* for callers of at least *role*; *answers* says with what."""
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_class=Response,
            operation_id=f"{method.lower()}{_words(path)}",
            responses={200: {"description": answers}, "4XX": ERROR, "5XX": ERROR},
            dependencies=[Depends(_check_caller(role))],
            openapi_extra={"security": [{"bearer": []}], **self._described(body), "x-least-role": role.value},
        )

    def _described(self, body: type[BaseModel] | None) -> dict[str, Any]:
        if body is None:
            return {}
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        self.schemas |= schema.pop("$defs", {})
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _check_caller(least: Role) -> Callable[[Request], Awaitable[None]]:
    """The dependency of a route for callers of at least the role *least*. Of a call that changes something it refuses
    parameters that the route does not know: a misspelt one is no wish to change more."""

    async def check_caller(request: Request) -> None:
        require_role(caller_of(request), least)
        if request.method in _LOOKS:
            return
        known = [one.alias for one in request.scope["route"].dependant.query_params]
        if any(name not in known for name in request.query_params):
            what = f"{', '.join(known)}, and nothing else" if known else "no parameters"
            raise ApiError(400, "bad_request", f"query: this takes {what}")

    return check_caller


def _words(path: str) -> str:
    parts = (part.strip("{}").partition(":")[0] for part in path.split("/") if part)
    return "".join("".join(word.capitalize() for word in part.replace("-", "_").split("_")) for part in parts)
