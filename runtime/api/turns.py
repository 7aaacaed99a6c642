"""What went into each turn, and its prompt rebuilt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role, Scope
from grounding import assemble
from grounding.run_context import audience_of
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of, may_read
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.explaining import compare
from runtime.identifiers import is_turn_id
from runtime.tokens import Caller
from runtime.turns import Manifest, UnknownTurn, prefix_row

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

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
