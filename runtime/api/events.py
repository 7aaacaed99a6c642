"""What happened, and what happens now: the stream of events."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from grounding.strategy import Strategy
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of
from runtime.api.routing import Routes
from runtime.api.sse import Emit, EventResponse
from runtime.event_stream import newest, tail

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

MAX_LISTED = 5000
_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")


class EventRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("events")
        self._runtime = runtime
        self._stopping = stopping
        self.add("GET", "/events", self.follow, Role.VIEWER, answers="Server-sent events, each named after the event")

    async def follow(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=0, le=MAX_LISTED)] = 50,
        workspace: str = "",
        strategy: str = "",
        event: str = "",
        follow: bool = True,
    ) -> Response:
        if strategy and strategy not in set(Strategy):
            raise ApiError(400, "bad_request", f"query.strategy: expected one of {', '.join(Strategy)}")
        if event and not _EVENT.fullmatch(event):
            raise ApiError(400, "bad_request", "query.event: expected the name of an event, as turn.answered")
        caller = caller_of(request)
        wanted = workspace or caller.workspace_id
        if wanted is not None and not caller.may_enter(wanted):
            raise ApiError(403, "forbidden", "the token is for another workspace")
        redis = self._runtime.store.client
        # Before the answer begins: an outage can still be one of its own, and what comes after it is missed by nobody.
        until = await newest(redis)

        async def produce(emit: Emit) -> None:
            kinds = {"workspace": wanted, "strategy": strategy or None, "event": event or None}
            async for one in tail(redis, until=until, limit=limit, follow=follow, **kinds):
                await emit(one["event"], one)

        return EventResponse(produce, self._stopping, lambda: self._runtime.api_tokens.still_holds(caller))
