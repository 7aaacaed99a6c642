"""A workspace's Markdown: put, read, deleted, indexed on arrival, and searched."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from fastapi import Query
from pydantic import ValidationError
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import AgentRuntimeError, ConversationKey, Role, Scope
from grounding.documents.index import Hit, IndexUnavailable
from grounding.documents.library import PATH_MAX_BYTES, DocumentMissing, DocumentRefused, check_path
from grounding.documents.runs import Progress
from grounding.run_context import DegradedBlock
from runtime.api.bodies import Body, describe, lines, read_body, read_json
from runtime.api.contexts import require_reader
from runtime.api.errors import ApiError, as_api_error
from runtime.api.guard import caller_of
from runtime.api.indexing import Indexing
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.sse import Emit, EventResponse
from runtime.api.workspaces import enter
from runtime.changeover import underway

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

MAX_TOP_K = 100
DEFAULT_TOP_K = 8
MAX_REPORTED = 100
"""Refused lines of a bulk upload that are named; the others are counted."""
_log = structlog.get_logger()


class NewDocument(Body):
    """One line of a bulk upload."""

    path: str
    text: str


class IndexRun(Body):
    paths: list[str] | None = None
    fresh: bool = False


class DocumentRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("documents")
        self._runtime = runtime
        self._stopping = stopping
        self._shelf = runtime.knowledge.shelf
        self._limit = runtime.settings.document_max_bytes
        self._indexing = Indexing(runtime.knowledge)
        here = "/workspaces/{workspace_id}"
        one = f"{here}/documents/{{path:path}}"
        self.add("GET", f"{here}/documents", self.listing, Role.VIEWER, answers="All documents")
        self.add("POST", f"{here}/documents", self.put_many, Role.ADMIN, answers="What was kept and what refused")
        self.add("GET", one, self.get, Role.VIEWER, answers="The text")
        self.add("PUT", one, self.put, Role.ADMIN, answers="It can be found")
        self.add("DELETE", one, self.delete, Role.ADMIN, answers="It can no longer be found")
        self.add("GET", f"{here}/index", self.status, Role.VIEWER, answers="What the index holds")
        self.add(
            "POST", f"{here}/index", self.index, Role.ADMIN, body=IndexRun, answers="Events: progress, done, error"
        )
        self.add("GET", f"{here}/search", self.search, Role.VIEWER, answers="Passages, the best first")

    async def listing(self, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        found, _ = await self._shelf.look_through(scope)
        try:
            skipped = {one.path: one.why for one in await self._runtime.knowledge.skipped(scope)}
        except IndexUnavailable:  # what is there is known all the same
            skipped = {}
        rows = [
            {"path": one.path, "bytes": one.size_bytes, "modified_at": _rfc3339(one.modified_ns)}
            for one in found
            if one.path not in skipped
        ]
        return reply({"documents": rows, "skipped": [{"path": path, "why": why} for path, why in skipped.items()]})

    async def get(self, workspace_id: str, path: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        document = await self._shelf.get(scope, path)
        headers = {"X-Content-Type-Options": "nosniff"}
        return Response(document.text.encode(), 200, headers, media_type="text/markdown; charset=utf-8")

    async def put(self, request: Request, workspace_id: str, path: str, wait: bool = False) -> Response:
        scope = await enter(self._runtime, workspace_id)
        check_path(path)
        text = await read_body(request, self._limit, "DOCUMENT_MAX_BYTES")
        await self._check_twin(scope, path)
        kept = await self._shelf.put(scope, path, text)
        return await self._indexed(scope, [path], wait, {"path": path, "bytes": kept.size_bytes})

    async def _check_twin(self, scope: Scope, path: str) -> None:
        """Raises `DocumentRefused` where another document has the same path in Unicode's form C: what is kept beside
        that one would not be a document."""
        composed = unicodedata.normalize("NFC", path)
        if composed == path:
            return
        with suppress(DocumentMissing):
            await self._shelf.get(scope, composed)
            found, _ = await self._shelf.look_through(scope)  # some disks know one file by both paths
            if any(one.path == composed for one in found):
                why = f"{path!r} is, in Unicode's form C, the path of another document; put that one"
                raise DocumentRefused(why, why="path")

    async def delete(self, workspace_id: str, path: str, wait: bool = False) -> Response:
        scope = await enter(self._runtime, workspace_id)
        await self._shelf.delete(scope, path)
        return await self._indexed(scope, [path], wait, {"path": path, "deleted": True})

    async def put_many(self, request: Request, workspace_id: str, wait: bool = False) -> Response:
        """Each line stands for itself: a bad one is named in the answer and stops no other."""
        scope = await enter(self._runtime, workspace_id)
        kept: list[str] = []
        refused: list[dict[str, Any]] = []
        number = failed = 0
        try:
            # JSON may write one byte of text as six.
            async for line in lines(request, 6 * self._limit + 10_000):
                number += 1
                problem = await self._put_line(scope, line, kept)
                failed += problem is not None
                if problem is not None and failed <= MAX_REPORTED:
                    refused.append({"line": number, **problem})
        except (ApiError, OSError):
            await self._index_quietly(scope, kept)  # what came before the break is kept
            raise
        if not number:
            raise ApiError(400, "empty", 'the body is empty; send one {"path", "text"} a line')
        if not kept:
            raise ApiError(400, "bad_request", f"no document was kept; line 1: {refused[0]['message']}")
        answer = {"documents": len(kept), "refused": failed, "refusals": refused}
        return await self._indexed(scope, kept, wait, answer)

    async def _put_line(self, scope: Scope, line: bytes, kept: list[str]) -> dict[str, Any] | None:
        """Keep one line's document; what is wrong with it, if something is."""
        try:
            document = NewDocument.model_validate_json(line)
        except ValidationError as error:
            return {"code": "bad_request", "message": describe(error)}
        try:
            await self._check_twin(scope, document.path)
            await self._shelf.put(scope, document.path, document.text)
        except DocumentRefused as error:
            known = as_api_error(error)
            return {"path": document.path[:PATH_MAX_BYTES], "code": known.code, "message": known.message}
        kept.append(document.path)
        return None

    async def _indexed(self, scope: Scope, paths: Collection[str], wait: bool, answer: dict[str, Any]) -> Response:
        """200 once the index has *paths*, or without *wait* 202 at once."""
        if wait:
            await self._indexing.index(scope, paths)
            return reply({**answer, "indexed": True})
        response = reply({**answer, "indexed": False}, 202)
        response.background = BackgroundTask(self._index_quietly, scope, paths)
        return response

    async def _index_quietly(self, scope: Scope, paths: Collection[str]) -> None:
        try:
            await self._indexing.index(scope, paths)
        except (AgentRuntimeError, OSError) as error:
            # The files are kept: the next change, or the next start, indexes them.
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))

    async def status(self, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        status = await self._runtime.knowledge.status(scope)
        changing = await underway(self._runtime.knowledge, scope)
        return reply(asdict(status) | ({"change_over": asdict(changing)} if changing else {}))

    async def index(self, request: Request, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        run = await read_json(request, IndexRun, self._runtime.settings.http_max_body_bytes)

        async def produce(emit: Emit) -> None:
            news: asyncio.Queue[Progress | None] = asyncio.Queue()

            async def tell() -> None:
                while (progress := await news.get()) is not None:
                    await emit("progress", asdict(progress))

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tell())
                try:
                    synced = await self._runtime.knowledge.sync(scope, run.paths, news.put_nowait, fresh=run.fresh)
                except (AgentRuntimeError, OSError) as error:
                    failure: AgentRuntimeError | OSError | None = error
                else:
                    failure = None
                news.put_nowait(None)
            if failure is not None:
                raise failure
            await emit("done", asdict(synced))

        return EventResponse(produce, self._stopping)

    async def search(
        self,
        request: Request,
        workspace_id: str,
        q: str,
        top_k: Annotated[int, Query(ge=1, le=MAX_TOP_K)] = DEFAULT_TOP_K,
        explain: bool = False,
        context: str = "",
        connector: str = "",
        external_id: str = "",
    ) -> Response:
        if not q.strip():
            raise ApiError(400, "empty", "q is empty; there is nothing to search for")
        if bool(connector) != bool(external_id):
            raise ApiError(400, "bad_request", "connector and external_id belong together")
        if context and connector:
            raise ApiError(400, "bad_request", "give context, or connector with external_id, not both")
        context_id = context or (f"{connector}:{external_id}" if connector else None)
        if context_id is not None and not all(context_id.partition(":")):
            raise ApiError(400, "bad_request", "a context is written <connector>:<external id>")
        scope = await enter(self._runtime, workspace_id, context_id)
        if context_id is not None:
            named, _, place = context_id.partition(":")
            require_reader(caller_of(request), ConversationKey(workspace_id, named, place))
        lost: list[DegradedBlock] = []
        hits = await self._runtime.knowledge.finding.search(scope, q, top_k, explain=explain, lost=lost)
        degraded = [{"block": part.block, "why": part.why} for part in lost]
        looks_again = any(hit.deep for hit in hits)
        return reply({"results": [_row(hit, explain, looks_again) for hit in hits], "degraded": degraded})


def _row(hit: Hit, explain: bool, looks_again: bool) -> dict[str, Any]:
    passage = hit.passage
    row: dict[str, Any] = {
        "source": passage.source,
        "heading": passage.heading,
        "score": hit.score,
        "text": passage.text,
        "chunk_id": passage.id,
    }
    if explain:
        row["dense"] = hit.dense._asdict() if hit.dense else None
        row["sparse"] = hit.sparse._asdict() if hit.sparse else None
        if looks_again:
            row["deep"] = hit.deep._asdict() if hit.deep else None
        if hit.fused is not None:
            row["fused"] = hit.fused._asdict()
            row["rerank"] = hit.rerank._asdict() if hit.rerank else None
    return row


def _rfc3339(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
