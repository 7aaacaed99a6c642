"""What went into each turn, and its prompt rebuilt."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
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
    Scope,
    is_turn_id,
    person_in,
    place_audience,
)
from grounding.prompt import assemble
from grounding.prompt_input import TailEntry, audience_of
from runtime.access import Caller
from runtime.http.auth import Routes, caller_of, may_read
from runtime.http.errors import ApiError, Body, read_json, reply
from runtime.http.routes.workspaces import enter
from runtime.ingress import reply_hint_of
from runtime.turns import (
    Batch,
    BuiltPrompt,
    Envelope,
    Letter,
    Manifest,
    Question,
    UnknownTurn,
    block_rows,
    prefix_row,
    shown_record_rows,
)
from runtime.turns.manifest import compare

if TYPE_CHECKING:
    from runtime.process import Runtime


MAX_LISTED = 500


class TurnRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("turns")
        self._runtime = runtime
        here = "/workspaces/{workspace_id}/turns"
        self.add("GET", here, self.listing, Role.VIEWER, answers="The newest turns first")
        self.add("GET", f"{here}/{{turn_id}}", self.show, Role.ADMIN, answers="What went into the turn")
        self.add(
            "GET", f"{here}/{{turn_id}}/replay", self.replay, Role.ADMIN, answers="The first call's prompt, rebuilt"
        )
        self.add(
            "GET", f"{here}/{{turn_id}}/diff", self.diff, Role.ADMIN, answers="How the turn `with` differs from it"
        )

    async def listing(
        self,
        request: Request,
        workspace_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50,
        before: str = "",
    ) -> Response:
        if before and not is_turn_id(before):
            raise ApiError(400, "bad_request", "query.before: expected the turn_id of an earlier page's last turn")
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        found: list[Manifest] = []
        while page := await self._runtime.manifests.newest(scope, limit, before):
            found += [one for one in page if _may_read(caller, one)]
            before = page[-1].turn_id
            if len(found) >= limit:
                break
        return reply({"turns": [_row(manifest) for manifest in found[:limit]]})

    async def show(self, request: Request, workspace_id: str, turn_id: str, prompt: bool = False) -> Response:
        scope = await enter(self._runtime, workspace_id)
        return reply(await self._told(scope, await self._manifest(request, scope, turn_id), prompt))

    async def diff(
        self, request: Request, workspace_id: str, turn_id: str, other: Annotated[str, Query(alias="with")]
    ) -> Response:
        scope = await enter(self._runtime, workspace_id)
        manifests = [await self._manifest(request, scope, one) for one in (turn_id, other)]
        before, after = [await self._told(scope, one, prompt=True) for one in manifests]
        return reply(await asyncio.to_thread(compare, before, after))

    async def _manifest(self, request: Request, scope: Scope, turn_id: str) -> Manifest:
        """Raises `UnknownTurn`, also where the turn was answered in a place that is not the caller's to read."""
        manifest = await self._runtime.manifests.get(scope, turn_id)
        if not _may_read(caller_of(request), manifest):
            raise UnknownTurn(f"no turn {turn_id!r} is known in workspace {scope.workspace_id!r}")
        return manifest

    async def _told(self, scope: Scope, manifest: Manifest, prompt: bool) -> dict[str, Any]:
        marked = await self._runtime.marking.of_turn(scope, manifest.turn_id)
        answer: dict[str, Any] = {
            **_row(manifest),
            "prefix_digest": manifest.prefix_digest,
            "prefix": prefix_row(manifest.prefix),
            "blocks": list(manifest.blocks),
            # What the material says stands in the prompt.
            "context": manifest.context.model_dump(mode="json", exclude={"codex": {"files": {"__all__": {"text"}}}}),
            "sources": manifest.outcome.get("sources", []),
            "outcome": manifest.outcome,
            "cut": manifest.cut,
            "marks": {"good": marked.good if marked else 0, "bad": marked.bad if marked else 0},
        }
        if prompt:
            rebuilt = await asyncio.to_thread(assemble.prompt, manifest.context, self._runtime.tokens)
            answer["messages"] = rebuilt.messages
        return answer

    async def replay(self, request: Request, workspace_id: str, turn_id: str) -> Response:
        manifest = await self._manifest(request, await enter(self._runtime, workspace_id), turn_id)
        rebuilt = await asyncio.to_thread(assemble.prompt, manifest.context, self._runtime.tokens)
        return reply(
            {
                "identical": rebuilt.sha256 == manifest.prompt_sha256,
                "messages": rebuilt.messages,
                "sha256": rebuilt.sha256,
                "stored_sha256": manifest.prompt_sha256,
                "rounds": manifest.outcome.get("rounds", []),
                "cut": manifest.cut,
            }
        )


def _may_read(caller: Caller, manifest: Manifest) -> bool:
    return may_read(caller, manifest.context.connector, audience_of(manifest.context))


def _row(manifest: Manifest) -> dict[str, Any]:
    context, outcome = manifest.context, manifest.outcome
    degraded = [{"block": part.block, "why": part.why} for part in context.degraded]
    return {
        "turn_id": manifest.turn_id,
        "at": manifest.at,
        "context_id": context.context_id,
        "audience": audience_of(context) or "workspace",
        "strategy": context.strategy,
        "reason": context.reason,
        "tokens_total": manifest.tokens_total,
        "prompt_sha256": manifest.prompt_sha256,
        "model": outcome.get("model", ""),
        "degraded": outcome.get("degraded", degraded),
        "kind": outcome.get("kind", ""),
    }


# ---- ground ----
#
# The dry run: what a turn would send to the model, and why. Nothing is stored and no model is asked.


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


# ---- dead letters ----
#
# Turns that failed for good: what they were to answer, another try, and their end.


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
        return reply({"dead_letters": [_dead_letters_row(letter) for letter in found]})

    async def retry(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        letter = await self._runtime.dead_letters.retry(scope, turn_id)
        return reply({"turn_id": turn_id, "retried": True, "messages": len(letter.envelopes)})

    async def drop(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        await self._runtime.dead_letters.drop(scope, turn_id)
        return reply({"turn_id": turn_id, "dropped": True})


def _dead_letters_row(letter: Letter) -> dict[str, Any]:
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
