"""The index built anew from documents and transcripts, and transcripts from the chat logs. For the runtime's admin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from connectors.message import AgentRuntimeError, Role, Scope
from grounding.documents.runs import Progress
from runtime.api.bodies import Body, read_json
from runtime.api.guard import caller_of, require_everywhere
from runtime.api.routing import Routes
from runtime.api.sse import Emit, EventResponse
from runtime.api.workspaces import enter
from runtime.rebuilding import Rebuilding, Reindexed, Restored, Tells

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class ReindexRun(Body):
    """Of one workspace, or of all."""

    workspace: str | None = None


class RestoreRun(Body):
    """Of one workspace, or of all that have chat logs; *dry_run* changes nothing."""

    workspace: str | None = None
    dry_run: bool = False


class RebuildingRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("rebuilding")
        self._runtime = runtime
        self._stopping = stopping
        self._limit = runtime.settings.http_max_body_bytes
        self._rebuilding = Rebuilding(
            runtime.settings.data_dir,
            runtime.knowledge,
            runtime.transcript,
            runtime.contexts,
            runtime.copy,
            runtime.workspaces,
        )
        events = "Events: progress, done, error"
        self.add("POST", "/reindex", self.reindex, Role.ADMIN, body=ReindexRun, answers=events)
        self.add("POST", "/logs/restore", self.restore, Role.ADMIN, body=RestoreRun, answers=events)

    async def reindex(self, request: Request) -> Response:
        require_everywhere(caller_of(request))
        run = await read_json(request, ReindexRun, self._limit)
        if run.workspace is not None:
            scopes = [await enter(self._runtime, run.workspace)]
        else:
            scopes = [Scope(workspace.id) for workspace in await self._runtime.workspaces.all()]
        done = Reindexed()

        async def work(scope: Scope, tell: Tells) -> None:
            await self._rebuilding.reindex(scope, done, tell)

        return self._events(scopes, work, lambda: asdict(done))

    async def restore(self, request: Request) -> Response:
        require_everywhere(caller_of(request))
        run = await read_json(request, RestoreRun, self._limit)
        names = [run.workspace] if run.workspace else await asyncio.to_thread(self._rebuilding.workspaces_with_logs)
        scopes = [Scope(name) for name in names]
        done = Restored()

        async def work(scope: Scope, tell: Tells) -> None:
            await self._rebuilding.restore(scope, done, tell, dry_run=run.dry_run)

        return self._events(scopes, work, lambda: {**asdict(done), "dry_run": run.dry_run})

    def _events(
        self,
        scopes: Sequence[Scope],
        work: Callable[[Scope, Tells], Awaitable[None]],
        result: Callable[[], dict[str, object]],
    ) -> Response:
        """*work* on each of *scopes*, with its progress, and then its result."""

        async def produce(emit: Emit) -> None:
            news: asyncio.Queue[tuple[str, Progress] | None] = asyncio.Queue()
            failure: AgentRuntimeError | OSError | None = None

            async def tell() -> None:
                while (told := await news.get()) is not None:
                    await emit("progress", {"workspace": told[0], **asdict(told[1])})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tell())
                try:
                    for scope in scopes:
                        name = scope.workspace_id
                        await work(scope, lambda progress, name=name: news.put_nowait((name, progress)))  # type: ignore[misc]
                except (AgentRuntimeError, OSError) as error:
                    failure = error
                news.put_nowait(None)
            if failure is not None:
                raise failure
            await emit("done", result())

        return EventResponse(produce, self._stopping)
