"""Documents: put, read, deleted, indexed and searched. The codex: material that the model gets whole."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import structlog
from fastapi import Query
from pydantic import Field, ValidationError
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import AgentRuntimeError, ConversationKey, Role, Scope
from grounding.codex import CodexEntry, prompt_path
from grounding.codex import check_path as material_check_path
from grounding.documents import PATH_MAX_BYTES, DocumentRefused, check_path
from grounding.prompt import ContextTooLarge
from grounding.prompt_input import DegradedBlock, Participant
from grounding.prompt_input import Query as Asked
from grounding.retrieval import Hit, IndexUnavailable
from grounding.strategy import earlier_for, tail_of
from runtime.background import migration_status
from runtime.http.auth import Routes, Workspace, caller_of, require_reader, require_role
from runtime.http.errors import (
    ApiError,
    Body,
    EarlierMessage,
    as_api_error,
    body_lines,
    describe_mistakes,
    read_body,
    reply,
    text_reply,
)
from runtime.http.sse import Report, progress_response
from runtime.turns import Question, cues_in

if TYPE_CHECKING:
    from runtime.process import Runtime


MAX_TOP_K = 100
DEFAULT_TOP_K = 8
MAX_REPORTED = 100
"""Refused lines of a bulk upload that the answer names; the others are counted."""
Context = Annotated[
    str, Query(max_length=600, description="A conversation, as connector:external_id: its own material.")
]
_NO_CONVERSATION = ConversationKey("any", "http", "codex")
_ANY_QUESTION = "What does the material say?"
"""Not small talk: that is offered no tools, which leaves more room for material."""
_log = structlog.get_logger()


class NewDocument(Body):
    """One line of a bulk upload."""

    path: str
    text: str


class SearchQuery(Body):
    """A message to search for, and what was said before it."""

    q: str
    top_k: int = Field(default=DEFAULT_TOP_K, ge=1, le=MAX_TOP_K)
    history: list[EarlierMessage] = Field(default=[], description="What was said before, the oldest first.")
    context: str = Field(default="", max_length=600, description="Search from inside this context.")
    explain: bool = False


class IndexRun(Body):
    paths: list[str] | None = None
    fresh: bool = False


class DocumentRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("documents", runtime)
        self._stopping = stopping
        self._shelf = runtime.knowledge.shelf
        self._max_bytes = runtime.settings.document_max_bytes
        self._indexing = Indexing(runtime.knowledge)
        here = "/workspaces/{workspace_id}"
        file = f"{here}/documents/{{path:path}}"
        self.add("GET", f"{here}/documents", self.listing, Role.VIEWER, answers="All documents")
        self.add("POST", f"{here}/documents", self.put_many, Role.ADMIN, answers="What was kept and what refused")
        self.add("GET", file, self.get, Role.VIEWER, answers="The text")
        self.add("PUT", file, self.put, Role.ADMIN, answers="It can be found")
        self.add("DELETE", file, self.delete, Role.ADMIN, answers="It can no longer be found")
        self.add("GET", f"{here}/index", self.status, Role.VIEWER, answers="What the index holds")
        self.add(
            "POST", f"{here}/index", self.index, Role.ADMIN, body=IndexRun, answers="Events: progress, done, error"
        )
        self.add("GET", f"{here}/search", self.search, Role.VIEWER, answers="Passages, the best first")
        self.add(
            "POST",
            f"{here}/search",
            self.search_after,
            Role.VIEWER,
            body=SearchQuery,
            answers="Passages, the best first",
        )

    async def listing(self, scope: Workspace) -> Response:
        files, _ = await self._shelf.look_through(scope)
        try:
            skipped = {file.path: file.why for file in await self._runtime.knowledge.skipped(scope)}
        except IndexUnavailable:  # the list comes from the disk
            skipped = {}
        rows = [
            {"path": file.path, "bytes": file.size_bytes, "modified_at": _rfc3339(file.modified_ns)}
            for file in files
            if file.path not in skipped
        ]
        return reply({"documents": rows, "skipped": [{"path": path, "why": why} for path, why in skipped.items()]})

    async def get(self, scope: Workspace, path: str) -> Response:
        return text_reply((await self._shelf.get(scope, path)).text, "text/markdown")

    async def put(self, request: Request, scope: Workspace, path: str, wait: bool = False) -> Response:
        check_path(path)
        text = await read_body(request, self._max_bytes, "DOCUMENT_MAX_BYTES")
        file = await self._shelf.put(scope, path, text)
        return await self._indexed(scope, [path], wait, {"path": path, "bytes": file.size_bytes})

    async def delete(self, scope: Workspace, path: str, wait: bool = False) -> Response:
        await self._shelf.delete(scope, path)
        return await self._indexed(scope, [path], wait, {"path": path, "deleted": True})

    async def put_many(self, request: Request, scope: Workspace, wait: bool = False) -> Response:
        """Store each line's document. A bad line is named in the answer and stops no other."""
        stored: list[str] = []
        refused: list[dict[str, Any]] = []
        number = failed = 0
        try:
            # JSON may write one byte of text as six.
            async for line in body_lines(request, 6 * self._max_bytes + 10_000):
                number += 1
                problem = await self._put_line(scope, line, stored)
                failed += problem is not None
                if problem is not None and failed <= MAX_REPORTED:
                    refused.append({"line": number, **problem})
        except (ApiError, OSError):
            await self._index_quietly(scope, stored)  # what came before the break is stored
            raise
        if not number:
            raise ApiError(400, "empty", 'the body is empty; send one {"path", "text"} a line')
        if not stored:
            raise ApiError(400, "bad_request", f"no document was kept; line 1: {refused[0]['message']}")
        answer = {"documents": len(stored), "refused": failed, "refusals": refused}
        return await self._indexed(scope, stored, wait, answer)

    async def _put_line(self, scope: Scope, line: bytes, stored: list[str]) -> dict[str, Any] | None:
        """Store one line's document and add its path to *stored*, or return what is wrong with it."""
        try:
            document = NewDocument.model_validate_json(line)
        except ValidationError as error:
            return {"code": "bad_request", "message": describe_mistakes(error)}
        try:
            await self._shelf.put(scope, document.path, document.text)
        except DocumentRefused as error:
            known = as_api_error(error)
            return {"path": document.path[:PATH_MAX_BYTES], "code": known.code, "message": known.message}
        stored.append(document.path)
        return None

    async def _indexed(self, scope: Scope, paths: Collection[str], wait: bool, answer: dict[str, Any]) -> Response:
        """Answer 200 once *paths* can be found; 202 at once without *wait*, or if the former model's index still
        answers."""
        if wait:
            await self._indexing.index(scope, paths)
            if await migration_status(self._runtime.knowledge, scope) is not None:
                return reply({**answer, "indexed": False}, 202)
            return reply({**answer, "indexed": True})
        response = reply({**answer, "indexed": False}, 202)
        response.background = BackgroundTask(self._index_quietly, scope, paths)
        return response

    async def _index_quietly(self, scope: Scope, paths: Collection[str]) -> None:
        try:
            await self._indexing.index(scope, paths)
        except (AgentRuntimeError, OSError) as error:
            # The files are stored: the next change, or the next start, indexes them.
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))

    async def status(self, scope: Workspace) -> Response:
        status = await self._runtime.knowledge.status(scope)
        changing = await migration_status(self._runtime.knowledge, scope)
        return reply(asdict(status) | ({"change_over": asdict(changing)} if changing else {}))

    async def index(self, request: Request, scope: Workspace) -> Response:
        run = await self.read(request, IndexRun)

        async def work(report: Report) -> dict[str, Any]:
            synced = await self._runtime.knowledge.sync(
                scope, run.paths, lambda progress: report(asdict(progress)), fresh=run.fresh
            )
            return asdict(synced)

        return progress_response(work, self._stopping)

    async def search(
        self,
        request: Request,
        scope: Workspace,
        q: str,
        top_k: Annotated[int, Query(ge=1, le=MAX_TOP_K)] = DEFAULT_TOP_K,
        explain: bool = False,
        context: str = "",
        connector: str = "",
        external_id: str = "",
    ) -> Response:
        if bool(connector) != bool(external_id):
            raise ApiError(400, "bad_request", "connector and external_id belong together")
        if context and connector:
            raise ApiError(400, "bad_request", "give context, or connector with external_id, not both")
        if context:
            connector, external_id = _parts(context)
        if connector:
            key = ConversationKey(scope.workspace_id, connector, external_id)
            require_reader(caller_of(request), key)
            scope = key.scope
        return await self._found(scope, q, top_k, explain)

    async def search_after(self, request: Request, scope: Workspace) -> Response:
        """Search for a message that may lean on what was said before it."""
        body = await self.read(request, SearchQuery)
        if body.context:
            key = ConversationKey(scope.workspace_id, *_parts(body.context))
            require_reader(caller_of(request), key)
            scope = key.scope
        cues = cues_in(await self._runtime.directives.load(scope))
        earlier = earlier_for(body.q, tail_of((said.role, said.text) for said in body.history), cues)
        return await self._found(scope, body.q, body.top_k, body.explain, earlier)

    async def _found(
        self, scope: Scope, query: str, top_k: int, explain: bool, earlier: Sequence[str] = ()
    ) -> Response:
        if not query.strip():
            raise ApiError(400, "empty", "q is empty; there is nothing to search for")
        lost: list[DegradedBlock] = []
        hits = await self._runtime.knowledge.finding.search(
            scope, query, top_k, explain=explain, lost=lost, earlier=earlier
        )
        degraded = [{"block": part.block, "why": part.why} for part in lost]
        has_deep = any(hit.deep for hit in hits)
        return reply({"results": [_row(hit, explain, has_deep) for hit in hits], "degraded": degraded})


def _row(hit: Hit, explain: bool, has_deep: bool) -> dict[str, Any]:
    passage = hit.passage
    row: dict[str, Any] = {
        "source": passage.source,
        "heading": passage.heading,
        "score": hit.score,
        "text": passage.text,
        "chunk_id": passage.id,
    }
    if explain:
        row["relevance"] = hit.relevance
        row["dense"] = hit.dense._asdict() if hit.dense else None
        row["sparse"] = hit.sparse._asdict() if hit.sparse else None
        if has_deep:
            row["deep"] = hit.deep._asdict() if hit.deep else None
        if hit.fused is not None:
            row["fused"] = hit.fused._asdict()
            row["rerank"] = hit.rerank._asdict() if hit.rerank else None
    return row


def _rfc3339(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Indexes(Protocol):
    """See `runtime.search.Knowledge.index`."""

    async def index(self, scope: Scope, paths: Collection[str] | None = None) -> Any: ...


@dataclass
class _Batch:
    paths: set[str] = field(default_factory=set)
    done: bool = False
    error: AgentRuntimeError | None = None


class Indexing:
    """Indexes the documents of many requests in few runs: those that arrive during a run share the next."""

    def __init__(self, knowledge: Indexes) -> None:
        self._knowledge = knowledge
        self._next: dict[str, _Batch] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def index(self, scope: Scope, paths: Collection[str]) -> None:
        """Return when the index has *paths* as they were on disk at the call.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
        """
        batch = self._next.setdefault(scope.workspace_id, _Batch())
        batch.paths |= set(paths)
        async with self._locks.setdefault(scope.workspace_id, asyncio.Lock()):
            if not batch.done:
                await self._run(scope, batch)
        if batch.error is not None:
            raise batch.error

    async def _run(self, scope: Scope, batch: _Batch) -> None:
        """Index *batch* for all who wait for it. If this is cancelled, the next of them begins again."""
        if self._next.get(scope.workspace_id) is batch:
            del self._next[scope.workspace_id]
        try:
            await self._knowledge.index(scope, batch.paths)
        except AgentRuntimeError as error:
            batch.error = error
        batch.done = True


class CodexRoutes(Routes):
    """Material that the model gets whole, or searches if it is too much. It belongs to a workspace, or with
    ``context=`` to one conversation in it."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("codex", runtime)
        self._materials = runtime.materials
        self._max_bytes = runtime.settings.document_max_bytes
        here = "/workspaces/{workspace_id}/codex"
        file = f"{here}/{{path:path}}"
        self.add("GET", here, self.listing, Role.VIEWER, answers="The files, and how they are given")
        self.add("GET", file, self.get, Role.VIEWER, answers="The text")
        self.add("PUT", file, self.put, Role.ADMIN, answers="It is given from the next turn on")
        self.add("DELETE", file, self.delete, Role.ADMIN, answers="It is given no more")

    async def listing(self, request: Request, scope: Workspace, context: Context = "") -> Response:
        """List the workspace's files, and those of *context*; mode and reason are those of a turn there now."""
        workspace, scope = scope, _own_scope(request, scope, context)
        rows = [
            _codex_row(owner, path, entry)
            for owner in dict.fromkeys((workspace, scope))
            for path, entry in (await self._materials.store.entries(owner)).items()
        ]
        return reply({"files": rows, **await self._mode(scope), "indexed": await self._is_indexed(scope)})

    async def _mode(self, scope: Scope) -> dict[str, Any]:
        """Return how a turn would get the material: build its prompt."""
        connector, external_id = _parts(scope.context_id or _NO_CONVERSATION.context_id)
        key = ConversationKey(scope.workspace_id, connector, external_id)
        admin = Participant(user="http:codex", name="", role="admin")
        question = Question(
            key, _ANY_QUESTION, Asked(text=_ANY_QUESTION), (admin,), Role.ADMIN, direct=False, audience=None, hint=""
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

    async def get(self, request: Request, scope: Workspace, path: str, context: Context = "") -> Response:
        scope = _own_scope(request, scope, context)
        return text_reply(await self._materials.store.get(scope, path))

    async def put(self, request: Request, scope: Workspace, path: str, context: Context = "") -> Response:
        scope = _own_scope(request, scope, context)
        material_check_path(path)
        raw = await read_body(request, self._max_bytes, "DOCUMENT_MAX_BYTES")
        return reply(_codex_row(scope, path, await self._materials.put(scope, path, raw)))

    async def delete(self, request: Request, scope: Workspace, path: str, context: Context = "") -> Response:
        scope = _own_scope(request, scope, context)
        await self._materials.delete(scope, path)
        return reply({"path": path, "deleted": True})


def _own_scope(request: Request, scope: Scope, context: str) -> Scope:
    """Return the scope of the conversation *context* in the workspace *scope*; the workspace's without *context*."""
    if not context:
        return scope
    connector, _ = _parts(context)
    require_role(caller_of(request), Role.MEMBER if connector == "http" else Role.ADMIN)
    return Scope(scope.workspace_id, context)


def _parts(context_id: str) -> tuple[str, str]:
    """Return connector and external id. Raises `ApiError` 400."""
    connector, _, external_id = context_id.partition(":")
    if not connector or not external_id:
        raise ApiError(400, "bad_request", "a context is written <connector>:<external id>")
    return connector, external_id


def _codex_row(scope: Scope, path: str, entry: CodexEntry) -> dict[str, Any]:
    return {
        "path": path,
        "shown_as": prompt_path(scope, path),
        "context": scope.context_id or "",
        "bytes": entry.size_bytes,
        "tokens": entry.size.tokens,
        "sha256": entry.sha256,
        "at": entry.at,
    }
