"""The cues that hold in a workspace, or in one of its contexts: what ships, and what its directives change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from connectors.message import Role, Scope
from grounding.cues.file import as_table
from promptpolicy.slot import Kind, check_context_id
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.turns import cues_in

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class CueRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("cues")
        self._runtime = runtime
        path = "/workspaces/{workspace_id}/cues"
        self.add("GET", path, self.show, Role.VIEWER, answers="The words and phrases that decide the strategy, by kind")

    async def show(self, workspace_id: str, context: str = "") -> Response:
        scope = await enter(self._runtime, workspace_id)
        if context:
            scope = Scope(scope.workspace_id, check_context_id(context))
        held = await self._runtime.publisher.directives.load(scope)
        versions = [
            {"scope": one.slot.place.level.value, "version": one.version} for one in held if one.slot.kind is Kind.CUES
        ]
        return reply({"cues": as_table(cues_in(held)), "changed_by": versions})
