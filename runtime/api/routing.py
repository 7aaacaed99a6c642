"""How a group of routes is declared: each with the least role that may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of, require_role

ERROR = {"description": "An error", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}

Endpoint = Callable[..., Awaitable[Response]]
_LEAST_ROLE = "x-least-role"
_LOOKS = ("GET", "HEAD")


class _RouteOfRole(APIRoute):
    """Is called by who has its least role only. Not a dependency: FastAPI would take each one apart at each start."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, least = super().get_route_handler(), Role((self.openapi_extra or {})[_LEAST_ROLE])
        known = [one.alias for one in self.dependant.query_params]

        async def guarded(request: Request) -> Response:
            require_role(caller_of(request), least)
            if request.method not in _LOOKS:
                _check_names(request.query_params, known)
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise ApiError(400, "bad_request", _told(error)) from None

        return guarded


class Routes:
    """A group of routes under ``/v1``. *name* groups them in the OpenAPI document."""

    def __init__(self, name: str) -> None:
        self.router = APIRouter(prefix="/v1", tags=[name], route_class=_RouteOfRole)
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
            openapi_extra={"security": [{"bearer": []}], **self._described(body), _LEAST_ROLE: role.value},
        )

    def _described(self, body: type[BaseModel] | None) -> dict[str, Any]:
        if body is None:
            return {}
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        self.schemas |= schema.pop("$defs", {})
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Of a call that changes something: a misspelt parameter is no wish to change more. Raises `ApiError` 400, which
    says what there is."""
    if any(name not in known for name in given):
        what = f"{', '.join(known)}, and nothing else" if known else "no parameters"
        raise ApiError(400, "bad_request", f"query: this takes {what}")


def _told(error: RequestValidationError) -> str:
    """The first few mistakes, each as ``query.top_k: what was expected``; values are never repeated."""
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5]]
    return "; ".join(found)


def _words(path: str) -> str:
    parts = (part.strip("{}").partition(":")[0] for part in path.split("/") if part)
    return "".join("".join(word.capitalize() for word in part.replace("-", "_").split("_")) for part in parts)
