"""The codex over HTTP: material that the model is given whole, or searches where it is too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import ConversationKey, Role, Scope
from grounding.assemble import ContextTooLarge
from grounding.codex.material import CodexEntry, check_path, shown_path
from grounding.documents.index import IndexUnavailable
from grounding.run_context import Participant
from grounding.run_context import Query as Asked
from runtime.api.bodies import read_body
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of, require_role
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.turns import Question

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

Context = Annotated[
    str, Query(max_length=600, description="A conversation, as connector:external_id: its own material.")
]
_NOBODY = ConversationKey("any", "http", "codex")
_QUESTION = "What does the material say?"
"""Any question. Small talk would not do: it is offered no tools, so that there is more room for material."""


class CodexRoutes(Routes):
    """Material is attached to a workspace, or with ``context=`` to one conversation in it."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("codex")
        self._runtime = runtime
        self._materials = runtime.materials
        self._limit = runtime.settings.codex_file_max_bytes
        here = "/workspaces/{workspace_id}/codex"
        one = f"{here}/{{path:path}}"
        self.add("GET", here, self.listing, Role.VIEWER, answers="The files, and how they are given")
        self.add("GET", one, self.get, Role.VIEWER, answers="The text")
        self.add("PUT", one, self.put, Role.ADMIN, answers="It is given from the next turn on")
        self.add("DELETE", one, self.delete, Role.ADMIN, answers="It is given no more")

    async def listing(self, request: Request, workspace_id: str, context: Context = "") -> Response:
        """The workspace's files, with a context its own besides; mode and reason are those of a turn there now."""
        scope = await self._entered(request, workspace_id, context)
        owners = [Scope(workspace_id), *([scope] if context else [])]
        rows = [
            _row(owner, path, entry)
            for owner in owners
            for path, entry in (await self._materials.store.entries(owner)).items()
        ]
        return reply({"files": rows, **await self._given(scope), "indexed": await self._is_indexed(scope)})

    async def _given(self, scope: Scope) -> dict[str, Any]:
        """How a turn would be given the material, found out by building its prompt."""
        connector, _, external_id = (scope.context_id or _NOBODY.context_id).partition(":")
        key = ConversationKey(scope.workspace_id, connector, external_id)
        admin = Participant(user="http:codex", name="", role="admin")
        question = Question(
            key, _QUESTION, Asked(text=_QUESTION), (admin,), Role.ADMIN, direct=False, audience=None, hint=""
        )
        holding = await self._materials.store.held(scope)
        size = self._materials.size(holding)
        facts = {
            "bytes": holding.every.size_bytes + holding.own.size_bytes,
            "tokens": size.tokens if holding.files else 0,
        }
        try:
            built = await self._runtime.prompting.build(question, "")
        except ContextTooLarge as error:
            return {**facts, "mode": "none", "why": str(error), "limit": 0, "window": error.window}
        material, window = built.context.codex, built.context.budgets.window_tokens
        if material is None:
            failed = [part.why for part in built.context.degraded if part.block == "codex"]
            why = failed[0] if failed else "empty"
            return {**facts, "mode": "none", "why": why, "limit": built.context.budgets.codex_tokens, "window": window}
        return {**facts, "mode": material.mode, "why": material.why, "limit": material.limit, "window": window}

    async def _is_indexed(self, scope: Scope) -> bool:
        try:
            return not await self._materials.is_behind(scope)
        except IndexUnavailable:
            return False

    async def get(self, request: Request, workspace_id: str, path: str, context: Context = "") -> Response:
        scope = await self._entered(request, workspace_id, context)
        text = await self._materials.store.get(scope, path)
        headers = {"X-Content-Type-Options": "nosniff"}
        return Response(text.encode(), 200, headers, media_type="text/plain; charset=utf-8")

    async def put(self, request: Request, workspace_id: str, path: str, context: Context = "") -> Response:
        scope = await self._entered(request, workspace_id, context)
        check_path(path)
        raw = await read_body(request, self._limit, "CODEX_FILE_MAX_BYTES")
        return reply(_row(scope, path, await self._materials.put(scope, path, raw)))

    async def delete(self, request: Request, workspace_id: str, path: str, context: Context = "") -> Response:
        scope = await self._entered(request, workspace_id, context)
        await self._materials.delete(scope, path)
        return reply({"path": path, "deleted": True})

    async def _entered(self, request: Request, workspace_id: str, context: str) -> Scope:
        if not context:
            return await enter(self._runtime, workspace_id)
        connector, _, external_id = context.partition(":")
        if not connector or not external_id:
            raise ApiError(400, "bad_request", "a context is written <connector>:<external id>")
        scope = await enter(self._runtime, workspace_id, context)
        require_role(caller_of(request), Role.MEMBER if connector == "http" else Role.ADMIN)
        return scope


def _row(scope: Scope, path: str, entry: CodexEntry) -> dict[str, Any]:
    return {
        "path": path,
        "shown_as": shown_path(scope, path),
        "context": scope.context_id or "",
        "bytes": entry.size_bytes,
        "tokens": entry.size.tokens,
        "sha256": entry.sha256,
        "at": entry.at,
    }
