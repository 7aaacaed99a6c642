"""Turns that failed for good: what they were to answer, another try, and their end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from runtime.api.guard import caller_of, may_read
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.turns import Letter

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

SHOWN_CHARACTERS = 200
"""How much of what was said a listing shows."""


class DeadLetterRoutes(Routes):
    """For admins of the workspace only: they see the beginning of what people wrote."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("dead letters")
        self._runtime = runtime
        here = "/workspaces/{workspace_id}/dead-letters"
        self.add("GET", here, self.listing, Role.ADMIN, answers="The turns that failed for good, the oldest first")
        self.add("POST", f"{here}/{{turn_id}}/retry", self.retry, Role.ADMIN, answers="The turn that is retried")
        self.add("DELETE", f"{here}/{{turn_id}}", self.drop, Role.ADMIN, answers="The turn that was dropped")

    async def listing(self, request: Request, workspace_id: str) -> Response:
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        found = [
            letter
            for letter in await self._runtime.dead_letters.all(scope)
            if all(may_read(caller, letter.key.connector, one.message.audience) for one in letter.envelopes)
        ]
        return reply({"dead_letters": [_row(letter) for letter in found]})

    async def retry(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        letter = await self._runtime.dead_letters.retry(scope, turn_id)
        return reply({"turn_id": turn_id, "retried": True, "messages": len(letter.envelopes)})

    async def drop(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        await self._runtime.dead_letters.drop(scope, turn_id)
        return reply({"turn_id": turn_id, "dropped": True})


def _row(letter: Letter) -> dict[str, Any]:
    said = " ".join("\n".join(envelope.message.text for envelope in letter.envelopes).split())
    return {
        "turn_id": letter.turn_id,
        "at": datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "context_id": letter.key.context_id,
        "why": letter.why,
        "attempts": letter.attempts,
        "messages": len(letter.envelopes),
        "authors": list(dict.fromkeys(one.message.author.user(one.message.connector) for one in letter.envelopes)),
        "text": said if len(said) <= SHOWN_CHARACTERS else said[:SHOWN_CHARACTERS].rstrip() + " …",
    }
