"""The dry run: what a turn would send to the model, and why. Nothing is stored and no model is asked."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import (
    CALLER_PREFIX,
    Author,
    ConversationKey,
    Fence,
    InboundMessage,
    Role,
    person_in,
    place_audience,
)
from grounding.run_context import TailEntry, audience_of
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.platforms import reply_hint_of
from runtime.tokens import Caller
from runtime.turns import Batch, BuiltPrompt, Envelope, Question, UnknownTurn, block_rows, prefix_row, shown_record_rows

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

ASSISTANT = "assistant"

Id = Annotated[str, Field(min_length=1, max_length=512, pattern=r"\S")]


class Named(Body):
    """A person, by the platform's id."""

    id: Id
    name: str = Field(default="", max_length=200)


class Said(Body):
    """One earlier message; what the assistant said is its own."""

    role: Literal["user", "assistant"]
    text: str


class Ground(Body):
    text: str
    context: Id | None = Field(default=None, description="An external id of the http connector.")
    connector: str | None = Field(default=None, pattern=r"^[a-z]+$")
    external_id: Id | None = None
    author: Named | Id | None = None
    history: list[Said] | None = Field(default=None, description="Stands in for the stored conversation.")
    direct: bool = False
    public: bool = Field(default=False, description="Everybody of the workspace may read the place.")


class GroundRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("grounding")
        self._runtime = runtime
        path = "/workspaces/{workspace_id}/ground"
        self.add("POST", path, self.ground, Role.MEMBER, body=Ground, answers="The prompt and its blocks")

    async def ground(self, request: Request, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        body = await read_json(request, Ground, self._runtime.settings.http_max_body_bytes)
        question = await self._question(body, scope.workspace_id, caller_of(request))
        history = None if body.history is None else [_tail_entry(said) for said in body.history]
        return reply(_shown(await self._runtime.prompting.build(question, "", history)))

    async def _question(self, body: Ground, workspace_id: str, caller: Caller) -> Question:
        """The question of the turn that this message alone would make."""
        if not body.text.strip():
            raise ApiError(400, "empty", '"text" is empty; there is nothing to ground')
        key = _place(body, workspace_id)
        if key.connector != "http" and not caller.sees_all:
            # It would show what was said there, by people who know nothing of this token.
            raise ApiError(403, "forbidden", "only the runtime's admin token may look into another connector's places")
        if body.direct and body.public:
            raise ApiError(400, "bad_request", 'give "direct" or "public", not both')
        author = _author(body, caller)
        reader = await self._reader(key)
        direct = body.direct or (person_in(reader) is not None and not body.public)
        if direct and body.author is None and (person := person_in(reader)) is not None:
            author = Author(person.removeprefix(f"{key.connector}:"))
        message = InboundMessage(
            connector=key.connector,
            external_id=key.external_id,
            message_id=uuid.uuid4().hex,
            author=author,
            text=body.text.replace("\x00", ""),
            direct=direct,
            public=body.public or reader is None,
            place=(reader or "").removeprefix(place_audience(f"{key.connector}:")) if not direct else "",
            workspace_id=workspace_id,
            caller_role=caller.role,
            reply_hint=reply_hint_of(key.connector),
        )
        decision = await self._runtime.access.authorise(message, workspace_id)
        return Question.of(Batch(key, "", 1, (Envelope(message, decision.role, time.time()),), Fence("", "")))

    async def _reader(self, key: ConversationKey) -> str | None:
        """Who reads the answers of a platform's place, by the last turn there; where none is known, the place alone."""
        turn_id = "" if key.connector == "http" else await self._runtime.transcript.last_turn(key)
        try:
            return audience_of((await self._runtime.manifests.get(key.scope, turn_id)).context)
        except UnknownTurn:
            return place_audience(key.context_id)


def _place(body: Ground, workspace_id: str) -> ConversationKey:
    if (body.connector is None) != (body.external_id is None):
        raise ApiError(400, "bad_request", '"connector" and "external_id" belong together')
    if body.connector is None or body.external_id is None:
        return ConversationKey(workspace_id, "http", body.context or "default")
    if body.context is not None:
        raise ApiError(400, "bad_request", 'give "context", or "connector" with "external_id", not both')
    return ConversationKey(workspace_id, body.connector, body.external_id)


def _author(body: Ground, caller: Caller) -> Author:
    if body.author is None:
        return Author(caller.id)
    named = body.author if isinstance(body.author, Named) else Named(id=body.author)
    if named.id.startswith(CALLER_PREFIX):
        raise ApiError(400, "bad_request", f'no "author" may begin with {CALLER_PREFIX!r}')
    return Author(named.id, " ".join(named.name.split()))


def _tail_entry(said: Said) -> TailEntry:
    return TailEntry(speaker=ASSISTANT if said.role == "assistant" else "user", text=said.text, turn_id="")


def _shown(built: BuiltPrompt) -> dict[str, object]:
    context, prompt = built.context, built.prompt
    rows = block_rows(prompt)
    for row in rows:
        if row["name"] == "records":
            row["items"] = shown_record_rows(built)
    return {
        "strategy": context.strategy,
        "reason": context.reason,
        "frame": context.frame.name if context.frame else "",
        "messages": prompt.messages,
        "blocks": rows,
        "tokens_total": prompt.tokens_total,
        "prefix_digest": prompt.prefix_digest,
        "prefix": prefix_row(built.prefix),
        "degraded": [{"block": part.block, "why": part.why} for part in context.degraded],
    }
