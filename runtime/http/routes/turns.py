"""Turns: what went into each, its prompt rebuilt, marks on answers, dry runs, and turns that failed for good."""

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
    person_of_audience,
    place_audience,
)
from grounding.memory.karma import Marked
from grounding.prompt import build_prompt
from grounding.prompt_input import audience_of
from grounding.strategy import tail_of
from runtime.access import Caller
from runtime.background import Marker
from runtime.http.auth import OWN_CONNECTOR, Routes, User, Workspace, caller_of, may_read
from runtime.http.errors import ApiError, Body, EarlierMessage, reply
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
    compare_manifests,
    prefix_row,
    record_rows,
)

if TYPE_CHECKING:
    from runtime.process import Runtime


MAX_LISTED = 500
SHOWN_CHARACTERS = 200
"""How much of a failed turn's messages a listing shows."""
Id = Annotated[str, Field(min_length=1, max_length=512, pattern=r"\S")]


class TurnRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("turns", runtime)
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
        scope: Workspace,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50,
        before: str = "",
    ) -> Response:
        if before and not is_turn_id(before):
            raise ApiError(400, "bad_request", "query.before: expected the turn_id of an earlier page's last turn")
        found: list[Manifest] = []
        while page := await self._runtime.manifests.newest(scope, limit, before):
            found += [manifest for manifest in page if _may_read(caller_of(request), manifest)]
            before = page[-1].turn_id
            if len(found) >= limit:
                break
        return reply({"turns": [_row(manifest) for manifest in found[:limit]]})

    async def show(self, request: Request, scope: Workspace, turn_id: str, prompt: bool = False) -> Response:
        return reply(await self._describe(scope, await self._manifest(request, scope, turn_id), prompt))

    async def diff(
        self, request: Request, scope: Workspace, turn_id: str, other: Annotated[str, Query(alias="with")]
    ) -> Response:
        manifests = [await self._manifest(request, scope, id_) for id_ in (turn_id, other)]
        before, after = [await self._describe(scope, manifest, prompt=True) for manifest in manifests]
        return reply(await asyncio.to_thread(compare_manifests, before, after))

    async def _manifest(self, request: Request, scope: Scope, turn_id: str) -> Manifest:
        """Return the manifest. Raises `UnknownTurn`, also if the caller may not read the turn's place."""
        manifest = await self._runtime.manifests.get(scope, turn_id)
        if not _may_read(caller_of(request), manifest):
            raise UnknownTurn(f"no turn {turn_id!r} is known in workspace {scope.workspace_id!r}")
        return manifest

    async def _describe(self, scope: Scope, manifest: Manifest, prompt: bool) -> dict[str, Any]:
        marked = await self._runtime.marking.of_turn(scope, manifest.turn_id)
        answer: dict[str, Any] = {
            **_row(manifest),
            "prefix_digest": manifest.prefix_digest,
            "prefix": prefix_row(manifest.prefix),
            "blocks": list(manifest.blocks),
            # The text of the material is in the prompt.
            "context": manifest.context.model_dump(mode="json", exclude={"codex": {"files": {"__all__": {"text"}}}}),
            "sources": manifest.outcome.get("sources", []),
            "outcome": manifest.outcome,
            "cut": manifest.cut,
            "marks": {"good": marked.good if marked else 0, "bad": marked.bad if marked else 0},
        }
        if prompt:
            rebuilt = await asyncio.to_thread(build_prompt, manifest.context, self._runtime.tokens)
            answer["messages"] = rebuilt.messages
        return answer

    async def replay(self, request: Request, scope: Workspace, turn_id: str) -> Response:
        manifest = await self._manifest(request, scope, turn_id)
        rebuilt = await asyncio.to_thread(build_prompt, manifest.context, self._runtime.tokens)
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


class MarkBody(Body):
    mark: Literal["good", "bad", "none"]
    user: User | None = Field(default=None, description="connector:user_id: whose mark it is.")


class MarkRoutes(Routes):
    """Marks of people on platforms, and marks of what was said in direct messages, are for admins; those of the http
    connector's people are for members: their names are the programs' own."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("karma", runtime)
        self._marking = runtime.marking
        mark, karma = "/workspaces/{workspace_id}/turns/{turn_id}/mark", "/workspaces/{workspace_id}/karma"
        self.add("POST", mark, self.mark, Role.MEMBER, body=MarkBody, answers="How the turn is marked now")
        self.add("GET", karma, self.listing, Role.ADMIN, answers="The marked turns, the newest first")
        self.add("DELETE", f"{karma}/{{turn_id}}", self.remove, Role.ADMIN, answers="Whether there was such a one")

    async def mark(self, request: Request, scope: Workspace, turn_id: str) -> Response:
        body, caller = await self.read(request, MarkBody), caller_of(request)
        is_admin = caller.role.covers(Role.ADMIN)
        if body.user is not None and not body.user.startswith(OWN_CONNECTOR) and not is_admin:
            raise ApiError(403, "forbidden", "marks of another connector's people are for admins' tokens")
        by = Marker(body.user or caller.id, caller.role, "api", is_vouched_for=is_admin)
        key = await self._conversation(scope, turn_id, caller)
        if not self._marking.may(by, key):
            raise ApiError(403, "forbidden", "the sigil of this token does not allow karma:write")
        marked = await self._marking.put(scope, turn_id, by, None if body.mark == "none" else body.mark)
        mark = marked.opinion_of(by.user).mark or "none"
        return reply({"turn_id": turn_id, "mark": mark, "good": marked.good, "bad": marked.bad})

    async def listing(self, request: Request, scope: Workspace) -> Response:
        caller = caller_of(request)
        return reply(
            {
                "karma": [
                    _marked_row(marked)
                    for marked in await self._marking.all(scope)
                    if may_read(caller, marked.key.connector, _audience(marked))
                ]
            }
        )

    async def remove(self, scope: Workspace, turn_id: str) -> Response:
        if not await self._marking.forget(scope, [turn_id]):
            raise ApiError(404, "not_found", f"turn {turn_id!r} is not marked")
        return reply({"turn_id": turn_id, "removed": True})

    async def _conversation(self, scope: Scope, turn_id: str, caller: Caller) -> ConversationKey:
        """Return the conversation of the turn. Raises `runtime.turns.UnknownTurn`, and `ApiError` 403 if the caller may
        not read it."""
        context = (await self._runtime.manifests.get(scope, turn_id)).context
        if not may_read(caller, context.connector, audience_of(context)):
            raise ApiError(403, "forbidden", "what was said in a private place needs the runtime's admin token")
        return ConversationKey(context.workspace_id, context.connector, context.external_id)


def _audience(marked: Marked) -> str | None:
    """Return the audience of the turn: its place if the turn is no example, because nothing else of it is stored."""
    return (marked.exchange.audience or None) if marked.exchange else place_audience(marked.key.context_id)


def _marked_row(marked: Marked) -> dict[str, Any]:
    exchange = marked.exchange
    trace = {"asked": exchange.asked, "answered": exchange.answered} if exchange and marked.is_good else None
    return {
        "turn_id": marked.turn_id,
        "context_id": marked.key.context_id,
        "good": marked.good,
        "bad": marked.bad,
        "marked_on": marked.marked_on,
        "audience": (exchange.audience or "workspace") if exchange else None,
        "foreign": exchange.foreign if exchange else "",
        "trace": trace,
    }


class Person(Body):
    """A person, by the platform's id."""

    id: Id
    name: str = Field(default="", max_length=200)


class Ground(Body):
    """The message of a dry run, and the place that it is sent from."""

    text: str
    context: Id | None = Field(default=None, description="An external id of the http connector.")
    connector: str | None = Field(default=None, pattern=r"^[a-z]+$")
    external_id: Id | None = None
    author: Person | Id | None = None
    history: list[EarlierMessage] | None = Field(default=None, description="Stands in for the stored conversation.")
    direct: bool = False
    public: bool = Field(default=False, description="Everybody of the workspace may read the place.")


class GroundRoutes(Routes):
    """The dry run: what a turn would send to the model, and why. Nothing is stored, and no model is asked."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("grounding", runtime)
        path = "/workspaces/{workspace_id}/ground"
        self.add("POST", path, self.ground, Role.MEMBER, body=Ground, answers="The prompt and its blocks")

    async def ground(self, request: Request, scope: Workspace) -> Response:
        body = await self.read(request, Ground)
        question = await self._question(body, scope.workspace_id, caller_of(request))
        history = None if body.history is None else tail_of((said.role, said.text) for said in body.history)
        return reply(_prompt_row(await self._runtime.prompting.build(question, "", history)))

    async def _question(self, body: Ground, workspace_id: str, caller: Caller) -> Question:
        """Return the question of a turn with this message alone."""
        if not body.text.strip():
            raise ApiError(400, "empty", '"text" is empty; there is nothing to ground')
        key = _place(body, workspace_id)
        if key.connector != "http" and not caller.sees_all:
            # The prompt shows what people said there, who did not speak to the holder of this token.
            raise ApiError(403, "forbidden", "only the runtime's admin token may look into another connector's places")
        if body.direct and body.public:
            raise ApiError(400, "bad_request", 'give "direct" or "public", not both')
        author = _author(body, caller)
        reader = await self._reader(key)
        direct = body.direct or (person_of_audience(reader) is not None and not body.public)
        if direct and body.author is None and (person := person_of_audience(reader)) is not None:
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
        """Return the audience of a platform's place by the last turn there; the place alone if no turn is known."""
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
    person = body.author if isinstance(body.author, Person) else Person(id=body.author)
    if person.id.startswith(CALLER_PREFIX):
        raise ApiError(400, "bad_request", f'no "author" may begin with {CALLER_PREFIX!r}')
    return Author(person.id, " ".join(person.name.split()))


def _prompt_row(built: BuiltPrompt) -> dict[str, object]:
    context, prompt = built.context, built.prompt
    rows = block_rows(prompt)
    for row in rows:
        if row["name"] == "records":
            row["items"] = record_rows(built)
    return {
        "strategy": context.strategy,
        "reason": context.reason,
        "frame": context.frame.name if context.frame else "",
        "translation": context.translation,
        "messages": prompt.messages,
        "blocks": rows,
        "tokens_total": prompt.tokens_total,
        "prefix_digest": prompt.prefix_digest,
        "prefix": prefix_row(built.prefix),
        "degraded": [{"block": part.block, "why": part.why} for part in context.degraded],
    }


class DeadLetterRoutes(Routes):
    """Turns that failed for good, for the workspace's admins only: they see the beginning of what people wrote."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("dead letters", runtime)
        here = "/workspaces/{workspace_id}/dead-letters"
        self.add("GET", here, self.listing, Role.ADMIN, answers="The turns that failed for good, the oldest first")
        self.add("POST", f"{here}/{{turn_id}}/retry", self.retry, Role.ADMIN, answers="The turn that is retried")
        self.add("DELETE", f"{here}/{{turn_id}}", self.drop, Role.ADMIN, answers="The turn that was dropped")

    async def listing(self, request: Request, scope: Workspace) -> Response:
        caller = caller_of(request)
        rows = [
            _letter_row(letter)
            for letter in await self._runtime.dead_letters.all(scope)
            if all(may_read(caller, letter.key.connector, envelope.message.audience) for envelope in letter.envelopes)
        ]
        return reply({"dead_letters": rows})

    async def retry(self, scope: Workspace, turn_id: str) -> Response:
        letter = await self._runtime.dead_letters.retry(scope, turn_id)
        return reply({"turn_id": turn_id, "retried": True, "messages": len(letter.envelopes)})

    async def drop(self, scope: Workspace, turn_id: str) -> Response:
        await self._runtime.dead_letters.drop(scope, turn_id)
        return reply({"turn_id": turn_id, "dropped": True})


def _letter_row(letter: Letter) -> dict[str, Any]:
    messages = [envelope.message for envelope in letter.envelopes]
    text = " ".join("\n".join(message.text for message in messages).split())
    return {
        "turn_id": letter.turn_id,
        "at": datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "context_id": letter.key.context_id,
        "why": letter.why,
        "attempts": letter.attempts,
        "messages": len(messages),
        "authors": list(dict.fromkeys(message.author.user(message.connector) for message in messages)),
        "text": text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS].rstrip() + " …",
    }
