"""Directives: which hold, their versions, publishing, rolling back and condensing; the cues and frames in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role, Scope
from grounding.memory.frames import as_table as frames_as_table
from grounding.strategy import as_table
from promptpolicy.directives import Version
from promptpolicy.policy import EVERYWHERE, Directive, Kind, Level, Place, Slot, check_context_id
from runtime.http.auth import READING, Endpoint, Routes, Workspace, caller_of, require_everywhere
from runtime.http.errors import ApiError, Body, reply
from runtime.turns import cues_in, frames_in

if TYPE_CHECKING:
    from runtime.process import Runtime


_ANSWERS = {
    "": "The directive",
    "/history": "Its versions, the newest first",
    "/diff": "What changed between two versions",
    "/rollback": "The new version",
    "/condense": "A shorter text, or the version that was published of one",
}

MAX_BEGINNING_CHARACTERS = 60
"""How much of a directive's first line a list shows."""
Number = Annotated[int, Field(ge=0, le=2**53)]
"""A version's number. JSON holds no larger one exactly, and Redis reads none beyond 64 bits."""


class NewText(Body):
    text: str
    expected_version: Number | None = None


class Rollback(Body):
    version: Annotated[Number, Field(ge=1)]
    expected_version: Number | None = None


class Condensed(Body):
    """A shorter text that a person accepts, and the version that it was made of."""

    text: str
    expected_version: Annotated[Number, Field(ge=1)]


class PromptRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("prompts", runtime)
        self._publisher = runtime.publisher
        self.add(
            "GET",
            "/workspaces/{workspace_id}/prompts",
            self.listing,
            Role.VIEWER,
            answers="The directives of the workspace and its contexts, those that hold everywhere, and files that "
            "were not published",
        )
        workspace = "/workspaces/{workspace_id}"
        self.add(
            "GET", f"{workspace}/cues", self.cues, Role.VIEWER, answers="The words that decide the strategy, by kind"
        )
        self.add("GET", f"{workspace}/frames", self.frames, Role.VIEWER, answers="The frames of messages, by name")
        # A skill may be called "history": its routes come first.
        for slot in ("/{scope}/skill/{name}", "/{scope}/{kind}"):
            self._add("GET", slot, "", self.show, Role.VIEWER)
            self._add("PUT", slot, "", self.publish, Role.ADMIN, NewText)
            self._add("DELETE", slot, "", self.clear, Role.ADMIN)
            self._add("GET", slot, "/history", self.history, Role.VIEWER)
            self._add("GET", slot, "/diff", self.diff, Role.VIEWER)
            self._add("POST", slot, "/rollback", self.rollback, Role.ADMIN, Rollback)
            self._add("POST", slot, "/condense", self.condense, Role.ADMIN)
            self._add("PUT", slot, "/condense", self.publish_condensed, Role.ADMIN, Condensed)

    def _add(
        self, method: str, slot: str, action: str, endpoint: Endpoint, role: Role, body: type[Body] | None = None
    ) -> None:
        path = f"/workspaces/{{workspace_id}}/prompts{slot}{action}"
        self.add(method, path, endpoint, role, body=body, answers=_ANSWERS[action])

    async def listing(self, scope: Workspace) -> Response:
        rows: list[dict[str, Any]] = []
        for home in (EVERYWHERE, Place(scope)):
            snapshot = await self._publisher.directives.snapshot(home)
            rows += [_row(version) for version in snapshot.versions.values() if version.text is not None]
        notes = [note for home in (EVERYWHERE, Place(scope)) for note in await self._publisher.refused(home)]
        return reply({"prompts": sorted(rows, key=_order), "refused": [asdict(note) for note in notes]})

    async def show(
        self, request: Request, scope: Workspace, context: str = "", version: Number | None = None
    ) -> Response:
        slot = _slot(request, scope, context)
        if version is not None:
            return reply(_whole(await self._publisher.directives.version(slot, version)))
        latest = await self._publisher.directives.latest(slot)
        if latest is None or latest.text is None:
            raise _not_found(slot)
        return reply(_whole(latest))

    async def publish(self, request: Request, scope: Workspace, context: str = "") -> Response:
        slot = _slot(request, scope, context)
        body = await self.read(request, NewText)
        author = caller_of(request).signature
        published = await self._publisher.publish(
            slot, body.text, author=author, origin="api", expected_version=body.expected_version
        )
        return reply(_whole(published))

    async def clear(
        self, request: Request, scope: Workspace, context: str = "", expected_version: Number | None = None
    ) -> Response:
        slot = _slot(request, scope, context)
        author = caller_of(request).signature
        cleared = await self._publisher.clear(slot, author=author, origin="api", expected_version=expected_version)
        if cleared is None:
            raise _not_found(slot)
        return reply(_row(cleared))

    async def history(
        self,
        request: Request,
        scope: Workspace,
        context: str = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Number | None = None,
    ) -> Response:
        slot = _slot(request, scope, context)
        versions = await self._publisher.directives.history(slot, limit, before)
        return reply({"versions": [_row(version) for version in versions]})

    async def diff(self, request: Request, scope: Workspace, a: Number, b: Number, context: str = "") -> Response:
        slot = _slot(request, scope, context)
        return reply({"diff": await self._publisher.diff(slot, a, b)})

    async def rollback(self, request: Request, scope: Workspace, context: str = "") -> Response:
        slot = _slot(request, scope, context)
        body = await self.read(request, Rollback)
        author = caller_of(request).signature
        restored = await self._publisher.rollback(
            slot, body.version, author=author, origin="api", expected_version=body.expected_version
        )
        return reply(_whole(restored))

    async def condense(self, request: Request, scope: Workspace, context: str = "") -> Response:
        """Return a shorter text by the model. Nothing is published."""
        slot = _slot(request, scope, context)
        proposal = await self._runtime.condensing.propose(scope, slot)
        return reply(
            {
                "scope": slot.place.level.value,
                "kind": slot.kind.value,
                "name": slot.name,
                "version": proposal.version,
                "text": proposal.text,
                "diff": proposal.diff,
                "tokens_before": proposal.tokens_before,
                "tokens_after": proposal.tokens_after,
                "model": proposal.model,
            }
        )

    async def publish_condensed(self, request: Request, scope: Workspace, context: str = "") -> Response:
        slot = _slot(request, scope, context)
        body = await self.read(request, Condensed)
        author = caller_of(request).signature
        return reply(_whole(await self._runtime.condensing.publish(slot, body.text, body.expected_version, author)))

    async def cues(self, scope: Workspace, context: str = "") -> Response:
        directives = await self._in_force(scope, context)
        return reply({"cues": as_table(cues_in(directives)), "changed_by": _changed_by(directives, Kind.CUES)})

    async def frames(self, scope: Workspace, context: str = "") -> Response:
        directives = await self._in_force(scope, context)
        frames = frames_in(directives)
        return reply(
            {
                "frames": frames_as_table(frames),
                "acting": list(frames.acting),
                "changed_by": _changed_by(directives, Kind.FRAMES),
            }
        )

    async def _in_force(self, scope: Scope, context: str) -> Sequence[Directive]:
        if context:
            scope = Scope(scope.workspace_id, check_context_id(context))
        return await self._publisher.directives.load(scope)


def _slot(request: Request, scope: Scope, context: str) -> Slot:
    """Return the slot that the path names. Changing one that holds everywhere needs the admin token."""
    names = request.path_params
    kind, name = names.get("kind", "skill"), names.get("name", "")
    slot = Slot.named(names["scope"], kind, name, Scope(scope.workspace_id, context or None))
    if slot.place.level is Level.GLOBAL and request.method not in READING:
        require_everywhere(caller_of(request))
    return slot


def _changed_by(directives: Sequence[Directive], kind: Kind) -> list[dict[str, Any]]:
    return [
        {"scope": directive.slot.place.level.value, "version": directive.version}
        for directive in directives
        if directive.slot.kind is kind
    ]


def _not_found(slot: Slot) -> ApiError:
    return ApiError(404, "not_found", f"there is no {slot.label}; `agent-runtime prompt set` sets one")


def _row(version: Version) -> dict[str, Any]:
    place = version.slot.place
    row = {
        "scope": place.level.value,
        "kind": version.slot.kind.value,
        "name": version.slot.name,
        "version": version.version,
        "author": version.author,
        "at": version.at.isoformat().replace("+00:00", "Z"),
        "origin": version.origin,
        "bytes": version.bytes,
        "sha256": version.sha256,
        "cleared": version.text is None,
        "begins": (version.text or "").partition("\n")[0][:MAX_BEGINNING_CHARACTERS],
        "restores": version.restores,
    }
    if place.scope is not None and place.scope.context_id is not None:
        row["context_id"] = place.scope.context_id
    return row


def _whole(version: Version) -> dict[str, Any]:
    return {**_row(version), "text": version.text}


def _order(row: dict[str, Any]) -> tuple[int, str, str, str]:
    return (Level(row["scope"]).rank, row.get("context_id", ""), row["kind"], row["name"])
