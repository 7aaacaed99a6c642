"""What was settled for single places, or for all of a workspace (``*``): when the bot answers there, which model it
asks first, what it does with messages that come while it answers, and whether replies end with their sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import StrictBool
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.places import EVERYWHERE, MAX_PLACE_CHARACTERS, Answering, QueueMode, Settled

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class Place(Body):
    """All that holds in the place; what is null, or left out, is as the settings have it."""

    answering: Answering | None = None
    model: str | None = None
    queue: QueueMode | None = None
    sources: StrictBool | None = None


class PlaceRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("places")
        self._runtime = runtime
        self._limit = runtime.settings.http_max_body_bytes
        here = "/workspaces/{workspace_id}/places"
        self.add("GET", here, self.listing, Role.ADMIN, answers="The places for which something was settled")
        self.add("GET", f"{here}/{{place:path}}", self.show, Role.ADMIN, answers="What was settled for the place")
        self.add("PUT", f"{here}/{{place:path}}", self.settle, Role.ADMIN, body=Place, answers="What holds there now")

    async def listing(self, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        found = await self._runtime.places.all(scope)
        return reply({"places": [_row(place, settled) for place, settled in found.items()]})

    async def show(self, workspace_id: str, place: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        return reply(_row(place, await self._runtime.places.get(scope, _checked(place))))

    async def settle(self, request: Request, workspace_id: str, place: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        body = await read_json(request, Place, self._limit)
        names = self._runtime.model.names
        if body.model is not None and body.model not in names:
            raise ApiError(400, "bad_request", f'"model": the configured ones are {", ".join(names)}')
        settled = Settled(body.answering, body.model, body.queue, body.sources)
        await self._runtime.places.put(scope, _checked(place), settled)
        return reply(_row(place, settled))


def _checked(place: str) -> str:
    if place == EVERYWHERE:
        return place
    connector, colon, rest = place.partition(":")
    if not (connector and colon and rest) or len(place) > MAX_PLACE_CHARACTERS or not place.isprintable():
        shown = repr(place[:100])
        raise ApiError(400, "bad_request", f"{shown} is not a place: write connector:place, e.g. telegram:-10001, or *")
    return place


def _row(place: str, settled: Settled) -> dict[str, Any]:
    return {"place": place, **asdict(settled)}
