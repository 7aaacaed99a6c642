"""The frames that hold in a workspace, or in one of its contexts: what ships, and what its directives change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from connectors.message import Role, Scope
from grounding.memory.frames.file import as_table
from promptpolicy.slot import Kind, check_context_id
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.turns import frames_in

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class FrameRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("frames")
        self._runtime = runtime
        path = "/workspaces/{workspace_id}/frames"
        self.add(
            "GET",
            path,
            self.show,
            Role.VIEWER,
            answers="The frames of messages, by name",
        )

    async def show(self, workspace_id: str, context: str = "") -> Response:
        scope = await enter(self._runtime, workspace_id)
        if context:
            scope = Scope(scope.workspace_id, check_context_id(context))
        held = await self._runtime.publisher.directives.load(scope)
        changing = [one for one in held if one.slot.kind is Kind.FRAMES]
        versions = [{"scope": one.slot.place.level.value, "version": one.version} for one in changing]
        frames = frames_in(held)
        return reply({"frames": as_table(frames), "acting": list(frames.acting), "changed_by": versions})
