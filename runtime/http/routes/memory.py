"""Typed records over HTTP: added, listed, found, shown in full with what became of them, changed, erased."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import (
    EVERYONE,
    PLACE_PREFIX,
    ConversationKey,
    InvalidWorkspaceId,
    Role,
    Scope,
    person_in,
    place_audience,
)
from grounding.memory.context_document import SECTIONS, ContextDocument, bodies, section_named
from grounding.memory.global_context import By, Change, Editor, Line, Waiting
from grounding.memory.karma import Marked, Sign
from grounding.memory.records import (
    STATES,
    ItemKind,
    ItemStatus,
    NewRecord,
    Outcome,
    Provenance,
    Record,
    Severity,
    State,
    Type,
    place,
)
from grounding.memory.records import Change as StoreChange
from grounding.prompt_input import audience_of
from runtime.access import Caller
from runtime.background import By as MarkingBy
from runtime.http.auth import Routes, caller_of, may_read, require_role
from runtime.http.errors import ApiError, Body, read_body, read_json, reply
from runtime.http.routes.workspaces import enter

if TYPE_CHECKING:
    from runtime.process import Runtime


# ---- global context ----
#
# The global context over HTTP: lines, edits, what waits for approval, and what was changed by whom.


OWN_CONNECTOR = "http:"
User = Annotated[str, Field(pattern=r"^[a-z]+:.+$", max_length=600)]
Named = Annotated[User | None, Query()]
Number = Annotated[int, Path(ge=0, le=10**9)]
Version = Annotated[int | None, Query(ge=1, le=2**53)]


class Whose(Body):
    user: User | None = Field(default=None, description="connector:user_id: that person's own lines.")
    context: User | None = Field(default=None, description="connector:id of a private place: that place's own lines.")


class NewLine(Whose):
    content: str


class ChangedLine(NewLine):
    expected_version: Annotated[int, Field(ge=1, le=2**53)] | None = None


class Decision(Whose):
    decision: Literal["approve", "deny"]


class GlobalContextRoutes(Routes):
    """Numbers are those of programs: they stay until a look after a pause of SESSION_IDLE_SECONDS. A person's or
    place's lines are for the runtime's admin, save those of the http connector: its names are the programs' own."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("global context")
        self._runtime = runtime
        self._lines = runtime.global_contexts
        self._limit = runtime.settings.http_max_body_bytes
        here = "/workspaces/{workspace_id}/global-context"
        self.add("GET", here, self.show, Role.VIEWER, answers="The lines")
        self.add("POST", here, self.append, Role.MEMBER, body=NewLine, answers="The new line")
        # These are words, no numbers: before the lines.
        self.add("GET", f"{here}/history", self.history, Role.VIEWER, answers="The newest edits")
        self.add("GET", f"{here}/waiting", self.waiting, Role.VIEWER, answers="Edits that wait for approval")
        self.add("GET", f"{here}/owners", self.owners, Role.ADMIN, answers="Which places and people have lines")
        self.add("POST", f"{here}/waiting/{{id}}", self.decide, Role.ADMIN, body=Decision, answers="What was decided")
        self.add("PUT", f"{here}/{{line}}", self.replace, Role.MEMBER, body=ChangedLine, answers="The line")
        self.add("DELETE", f"{here}/{{line}}", self.delete, Role.MEMBER, answers="The line's number")
        share = f"{here}/{{line}}/share"
        self.add("POST", share, self.share, Role.MEMBER, body=Whose, answers="The line that is shared")

    async def show(self, request: Request, workspace_id: str, user: Named = None, context: Named = None) -> Response:
        editor = await self._editor(request, workspace_id, user, context)
        return reply({"lines": [line_row(line) for line in await self._lines.open(editor)]})

    async def append(self, request: Request, workspace_id: str) -> Response:
        body = await read_json(request, NewLine, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        edited = await self._lines.append(editor, body.content, _by(request))
        return reply(await self._row(editor, edited.number), 201)

    async def replace(self, request: Request, workspace_id: str, line: Number) -> Response:
        body = await read_json(request, ChangedLine, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        edited = await self._lines.replace(editor, line, body.content, _by(request), body.expected_version)
        return reply(await self._row(editor, edited.number))

    async def delete(
        self,
        request: Request,
        workspace_id: str,
        line: Number,
        user: Named = None,
        context: Named = None,
        expected_version: Version = None,
    ) -> Response:
        editor = await self._editor(request, workspace_id, user, context)
        await self._lines.delete(editor, line, _by(request), expected_version)
        return reply({"line": line, "deleted": True})

    async def share(self, request: Request, workspace_id: str, line: Number) -> Response:
        body = await read_json(request, Whose, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        content = await self._lines.share(editor, line, _by(request))
        return reply({"line": line, "content": content, "shared": True})

    async def owners(self, request: Request, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        _require_all(request)
        counted = await self._lines.counts(scope)
        return reply({"owners": [_owner_row(audience, lines) for audience, lines in counted.items() if audience]})

    async def history(
        self,
        request: Request,
        workspace_id: str,
        user: Named = None,
        context: Named = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Response:
        scope = (await self._editor(request, workspace_id, user, context)).scope
        return reply({"edits": [change_row(one) for one in await self._lines.history(scope, limit)]})

    async def waiting(self, request: Request, workspace_id: str, user: Named = None, context: Named = None) -> Response:
        scope = (await self._editor(request, workspace_id, user, context)).scope
        return reply({"waiting": [waiting_row(one) for one in await self._lines.waiting(scope)]})

    async def decide(self, request: Request, workspace_id: str, id: str) -> Response:  # noqa: A002 - as the path has it
        body = await read_json(request, Decision, self._limit)
        scope = (await self._editor(request, workspace_id, body.user, body.context)).scope
        act = self._lines.approve if body.decision == "approve" else self._lines.deny
        await act(scope, id, caller_of(request).signature)
        return reply({"id": id, "decision": body.decision})

    async def _editor(self, request: Request, workspace_id: str, user: str | None, context: str | None) -> Editor:
        scope = await enter(self._runtime, workspace_id)
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", "name a user or a context, not both")
        named = user or context
        if named is not None and not named.startswith(OWN_CONNECTOR):
            _require_all(request)
        audience = user if context is None else place_audience(context)
        return Editor(Scope(scope.workspace_id, None, audience), "api")

    async def _row(self, editor: Editor, number: int) -> dict[str, Any]:
        lines = await self._lines.open(editor, store=False)
        line = next((one for one in lines if one.number == number), None)
        if line is None:  # renumbered, or taken away with its person, in between
            raise ApiError(409, "line_changed", "the line was changed in the meantime; look again")
        return line_row(line)


def _require_all(request: Request) -> None:
    if not caller_of(request).sees_all:
        why = "lines of another connector's people and places need the runtime's admin token"
        raise ApiError(403, "forbidden", why)


def _owner_row(audience: str, lines: int) -> dict[str, Any]:
    is_place = audience.startswith(PLACE_PREFIX)
    named = {"context": audience.removeprefix(PLACE_PREFIX)} if is_place else {"user": audience}
    return {**named, "lines": lines}


def line_row(line: Line) -> dict[str, Any]:
    return {
        "line": line.number,
        "content": line.content,
        "owner": line.owner,
        "author": line.author,
        "turn_id": line.turn_id,
        "at": line.at,
        "version": line.version,
        "origin": line.origin,
    }


def change_row(one: Change) -> dict[str, Any]:
    return {
        "action": one.action,
        "line_id": one.line,
        "by": one.by,
        "turn_id": one.turn_id,
        "at": one.at,
        "origin": one.origin,
        "before": one.before,
        "after": one.after,
    }


def waiting_row(one: Waiting) -> dict[str, Any]:
    return {
        "id": one.id,
        "action": one.action,
        "owner": one.owner,
        "content": one.content,
        "before": one.before,
        "author": one.author,
        "turn_id": one.turn_id,
        "at": one.at,
        "origin": one.origin,
    }


def _by(request: Request) -> By:
    key = request.headers.get("idempotency-key", "")
    caller = caller_of(request)
    return By(caller.signature, key=f"api:{caller.id}:{request.method}:{request.url.path}:{key}" if key else "")


# ---- records ----


MAX_LIMIT = 500
OPINIONS = frozenset({"confirm", "outcome", "false_positive"})
"""What members may say of the workspace's records: it changes nothing of what they say."""
_OF_TYPE: dict[Type, tuple[str, ...]] = {
    Type.CENSOR: ("trigger", "reason", "severity", "false_positives"),
    Type.ITEM: ("kind", "due"),
    Type.PROCEDURE: ("successes", "failures"),
}
RecordsWhose = Annotated[User | None, Query(description="connector:user_id: with that person's own records.")]
InPlace = Annotated[
    str | None, Query(min_length=1, max_length=512, description="An external id of the http connector: with its own.")
]
Confidence = Annotated[float, Field(ge=0.0, le=1.0)]


class RecordBody(Body):
    type: Type
    text: str
    outcome: Outcome | None = None
    confidence: Confidence = 1.0
    created_at: str = ""
    verbatim: bool = False
    supersedes: str = ""
    user: User | None = Field(default=None, description="connector:user_id: a record of that person's own.")
    trigger: str = Field(default="", description="Censors: words and phrases separated by |.")
    reason: str = ""
    severity: Severity = "warn"
    kind: ItemKind = "task"
    status: ItemStatus = "open"
    due: str | None = ""


class RecordChange(Body):
    """Only what is given changes."""

    text: str | None = None
    confidence: Confidence | None = None
    outcome: Outcome | None = None
    verbatim: bool | None = None
    trigger: str | None = None
    reason: str | None = None
    severity: Severity | None = None
    kind: ItemKind | None = None
    status: ItemStatus | None = None
    due: str | None = None
    state: State | None = None
    confirm: Literal[True] | None = None
    false_positive: Literal[True] | None = None
    audience: Literal["workspace"] | None = Field(default=None, description="Shares it with the whole workspace.")
    user: User | None = None


class RecordRoutes(Routes):
    """What belongs to a person or a place is for the administrator of the runtime, save those of the http connector:
    their names are the programs' own. The workspace's records are written by admins; members may say what they think of
    them."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("records")
        self._runtime = runtime
        self._records = runtime.records
        self._limit = runtime.settings.http_max_body_bytes
        here = "/workspaces/{workspace_id}/records"
        self.add("GET", here, self.listing, Role.VIEWER, answers="The newest records, or those that bear on q")
        self.add("POST", here, self.add_one, Role.MEMBER, body=RecordBody, answers="The record")
        self.add("DELETE", here, self.forget, Role.MEMBER, answers="How many of a person's records were erased")
        self.add("GET", f"{here}/{{id}}", self.show, Role.VIEWER, answers="The record in full, with its history")
        self.add("PATCH", f"{here}/{{id}}", self.change, Role.MEMBER, body=RecordChange, answers="The record")
        self.add("DELETE", f"{here}/{{id}}", self.erase, Role.MEMBER, answers="The record's id")

    async def listing(
        self,
        request: Request,
        workspace_id: str,
        type: Annotated[list[Type] | None, Query()] = None,  # noqa: A002 - as the parameter is named
        state: Annotated[list[State] | None, Query()] = None,
        user: RecordsWhose = None,
        context: InPlace = None,
        q: Annotated[str | None, Query(max_length=4000)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
        before: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        types, states = type or [], state or []
        _check_filters(types, states, before)
        if q is not None:
            found = await self._records.search(scope, q, limit, types)
            rows = [
                record_row(one.record) | {"similarity": round(one.similarity, 4), "matched": round(one.matched, 4)}
                for one in found
                if not states or one.record.state in states
            ]
            return reply({"records": rows, "next": None})
        page = await self._records.list(scope, types, states, limit, before)
        more = place(page[-1]) if len(page) == limit else None
        return reply({"records": [record_row(one) for one in page], "next": more})

    async def add_one(self, request: Request, workspace_id: str) -> Response:
        body = await read_json(request, RecordBody, self._limit)
        scope = await self._writing(request, workspace_id, body.user)
        fields = body.model_dump(exclude={"user"}) | {"due": body.due or ""}
        added = await self._records.add(scope, NewRecord(**fields), _records_by(request), _key(request))
        is_new = added.came in ("new", "superseded")
        return reply(record_row(added.record) | {"came": added.came}, 201 if is_new else 200)

    async def show(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: RecordsWhose = None,
        context: InPlace = None,
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        record = await self._records.get(scope, id)
        history = await self._records.history(scope, id)
        return reply(record_row(record) | {"history": [records_change_row(one) for one in history]})

    async def change(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: RecordsWhose = None,
        context: InPlace = None,
    ) -> Response:
        body = await read_json(request, RecordChange, self._limit)
        given = body.model_dump(exclude_unset=True, exclude={"user"})
        fields = {name: value for name, value in given.items() if value is not None or name == "due"}
        scope = await self._scope(request, workspace_id, user or body.user, context)
        record = await self._records.get(scope, id)
        if not record.audience and not set(fields) <= OPINIONS:
            require_role(caller_of(request), Role.ADMIN)
        if fields.pop("audience", None) is not None:
            if fields:
                raise ApiError(400, "bad_request", '"audience" is changed alone, without other fields')
            return reply(record_row(await self._records.share(scope, id, _records_by(request))))
        if not fields:
            raise ApiError(400, "bad_request", "nothing to change: give at least one field")
        return reply(record_row(await self._records.change(scope, id, fields, _records_by(request), _key(request))))

    async def erase(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: RecordsWhose = None,
        context: InPlace = None,
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        if not (await self._records.get(scope, id)).audience:
            require_role(caller_of(request), Role.ADMIN)
        await self._records.erase(scope, id, _records_by(request))
        return reply({"id": id, "deleted": True})

    async def forget(
        self, request: Request, workspace_id: str, user: Annotated[User, Query(description="connector:user_id")]
    ) -> Response:
        scope = await self._writing(request, workspace_id, user)
        return reply({"user": user, "forgotten": await self._records.forget(scope)})

    async def _scope(self, request: Request, workspace_id: str, user: str | None, context: str | None = None) -> Scope:
        """What the caller sees: the workspace's records with those of a person or a place that it names, or all of
        them by the administrator of the runtime who names none."""
        scope, sees_all = await enter(self._runtime, workspace_id), caller_of(request).sees_all
        if user is not None and not user.startswith(OWN_CONNECTOR) and not sees_all:
            raise ApiError(403, "forbidden", "records of another connector's people need the runtime's admin token")
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", 'give "user" or "context", not both')
        place = place_audience(OWN_CONNECTOR + context) if context is not None else None
        return Scope(scope.workspace_id, None, user or place or (EVERYONE if sees_all else None))

    async def _writing(self, request: Request, workspace_id: str, user: str | None) -> Scope:
        scope = await self._scope(request, workspace_id, user)
        if user is None:
            require_role(caller_of(request), Role.ADMIN)
            return Scope(scope.workspace_id)
        return scope


def _check_filters(types: Sequence[Type], states: Sequence[State], before: str) -> None:
    """What nothing could ever be found by is a mistake. Raises `ApiError` 400, which says what can be."""
    known = list(dict.fromkeys(state for one in types or STATES for state in STATES[one]))
    if states and not set(states) & set(known):
        raise ApiError(400, "bad_request", f"query.state: records of that type are {', '.join(known)}")
    if before and "|" not in before:
        raise ApiError(400, "bad_request", "query.before: expected the `next` of an earlier page")


def record_row(record: Record) -> dict[str, Any]:
    """*record* as programs read it."""
    names = ["id", "type", "text", "micro", "summary", "state", "confirmations", "activations", "created_at"]
    names += ["changed_at", "confidence", "outcome", "verbatim", "supersedes", "superseded_by", "version"]
    row = record.model_dump(mode="json", include={*names, "provenance", *_OF_TYPE.get(record.type, ())})
    if record.type is Type.ITEM:
        row["status"] = record.state.value
    whose = {"user": person_in(record.audience), "audience": record.audience or "workspace"}
    return row | whose | {"shared_by": record.shared_by or None}


def records_change_row(one: StoreChange) -> dict[str, Any]:
    return {
        "at": one.at,
        "from": one.from_state,
        "to": one.to_state,
        "why": one.why,
        "by": one.by,
        "turn_id": one.turn_id,
    }


def _records_by(request: Request) -> Provenance:
    return Provenance(author=caller_of(request).id)


def _key(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    return f"api:{caller_of(request).id}:{request.method}:{request.url.path}:{key}" if key else ""


# ---- contexts ----
#
# Context documents: put and got byte for byte, with all their versions.
#
# A vault is a workspace, or any name of that form that a program keeps documents under; a memory is a context id.


NAMELESS = "-"
"""Stands for the connector where a memory's name has none; no connector is called so."""
MAX_LISTED = 1000
_CONNECTOR = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION_ID = re.compile(r"\d{1,15}-\d{1,15}")
_LONGEST_ID = 512
_HTTP = "http"
_PLATFORMS = frozenset({"console", "discord", "slack", "telegram", "web"})


class ContextRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("contexts")
        self._runtime = runtime
        self._contexts = runtime.contexts
        self._limit = runtime.settings.context_document_max_bytes
        # A memory's name may hold slashes; what follows "/contexts" never does.
        here = "/vaults/{vault_id}/memories/{memory_id:path}/contexts"
        self.add("PUT", here, self.put, Role.ADMIN, answers="The new version, its ETag")
        self.add("DELETE", here, self.delete, Role.ADMIN, answers="The document is gone with all its versions")
        self.add("GET", here, self.listing, Role.MEMBER, answers="The versions, the newest first")
        self.add("GET", f"{here}/latest", self.latest, Role.MEMBER, answers="The text as it was put, its ETag")
        self.add("GET", f"{here}/{{version_id}}", self.version, Role.MEMBER, answers="The text of a version")

    async def put(self, request: Request, vault_id: str, memory_id: str) -> Response:
        key = _contexts_key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        text = await self._text(request)
        stored = await self._runtime.context_keeping.put(key, text, caller_of(request).signature, _holds(request))
        return reply(_row(stored), headers={"ETag": stored.etag})

    async def delete(self, request: Request, vault_id: str, memory_id: str) -> Response:
        key = _contexts_key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        if not await self._runtime.context_keeping.forget(key):
            raise _nothing(key)
        return reply({"vault": vault_id, "memory": memory_id, "deleted": True})

    async def listing(
        self,
        request: Request,
        vault_id: str,
        memory_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
        before: str = "",
    ) -> Response:
        key = _contexts_key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        if before:
            _check_version_id(before)
        found = await self._contexts.versions(key, limit, before)
        if not found and not before:
            raise _nothing(key)
        rows = [{"id": one.id, "created_at": one.at, "author": one.author, "bytes": one.size_bytes} for one in found]
        return reply({"contexts": rows})

    async def latest(self, request: Request, vault_id: str, memory_id: str, section: str = "") -> Response:
        key = _contexts_key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        document = await self._contexts.latest(key)
        if document is None:
            raise _nothing(key)
        return _shown(request, document, section)

    async def version(self, request: Request, vault_id: str, memory_id: str, version_id: str) -> Response:
        key = _contexts_key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        _check_version_id(version_id)
        document = await self._contexts.version(key, version_id)
        if document is None:
            raise ApiError(404, "not_found", f"the document has no version {version_id}")
        return _shown(request, document)

    async def _text(self, request: Request) -> str:
        """The document in the body. Raises `ApiError` 400, 413, 415."""
        media, _, parameters = request.headers.get("content-type", "text/plain").partition(";")
        media = media.strip().lower()
        charset = re.search(r"charset\s*=\s*\"?([\w-]+)", parameters, re.IGNORECASE)
        if media not in ("text/plain", "application/json") or (
            charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii")
        ):
            raise ApiError(415, "unsupported_media_type", "send text/plain in UTF-8, or application/json with a string")
        # JSON may write one byte of text as six.
        limit = self._limit if media == "text/plain" else 6 * self._limit + 10
        body = await read_body(request, limit, "CONTEXT_DOCUMENT_MAX_BYTES")
        try:
            text = body.decode("utf-8") if media == "text/plain" else _string(body)
            size = len(text.encode("utf-8"))
        except UnicodeError:
            raise ApiError(400, "encoding", "the document is not UTF-8") from None
        if size > self._limit:
            setting = f"{self._limit} bytes (AGENT_RUNTIME_CONTEXT_DOCUMENT_MAX_BYTES)"
            raise ApiError(413, "too_large", f"the document has {size} bytes, more than {setting}: shorten it")
        if not text.strip():
            raise ApiError(400, "empty", "the document is empty or blank")
        return text


def require_reader(caller: Caller, key: ConversationKey) -> None:
    """Raises `ApiError` 403 where the caller's token may not see what was said in *key*: of the http connector's places
    members may, of those of platforms the administrator of the runtime, because what people said there was not said to
    the holder of a token; of names that programs made up, admins."""
    if key.connector in _PLATFORMS and not caller.sees_all:
        raise ApiError(
            403, "forbidden", "only the runtime's admin token may use the memory of another connector's places"
        )
    if not caller.role.covers(Role.MEMBER if key.connector == _HTTP else Role.ADMIN):
        raise ApiError(403, "forbidden", "only an admin's token may read this memory")


def _string(body: bytes) -> str:
    """Raises `ApiError` 400 for what is no JSON, 415 for what is no string, and UnicodeError."""
    try:
        value: Any = json.loads(body.decode("utf-8"))
    except (json.JSONDecodeError, RecursionError):
        raise ApiError(400, "bad_request", "the body is no JSON; a document is sent as one JSON string") from None
    if not isinstance(value, str):
        raise ApiError(415, "unsupported_media_type", "a document in JSON is one string, no other value")
    return value


def _contexts_key(vault_id: str, memory_id: str) -> ConversationKey:
    """The place of a document. Raises `ApiError` 400 for names of another form."""
    connector, separator, external_id = memory_id.partition(":")
    if not separator:
        connector, external_id = NAMELESS, memory_id
    fits = connector == NAMELESS if not separator else _CONNECTOR.fullmatch(connector)
    if not fits or not external_id.strip() or len(memory_id) > _LONGEST_ID:
        raise ApiError(400, "bad_request", "a memory is named like a context, e.g. slack:C123 or notes:42")
    try:
        return ConversationKey(vault_id, connector, external_id)
    except InvalidWorkspaceId as error:
        raise ApiError(400, "invalid_vault", str(error).replace("workspace id", "vault")) from None


def _holds(request: Request) -> Callable[[ContextDocument | None], bool]:
    """Whether the stored document is one that the request's ``If-Match`` and ``If-None-Match`` let be replaced."""
    match = request.headers.getlist("if-match")
    none_match = request.headers.getlist("if-none-match")

    def holds(current: ContextDocument | None) -> bool:
        if match and not _matches(match, current):
            return False
        return not (none_match and _matches(none_match, current))

    return holds


def _matches(tags: list[str], current: ContextDocument | None) -> bool:
    """By strong comparison (RFC 9110, section 8.8.3.2): a weak tag matches nothing."""
    named = [tag.strip() for tag in ",".join(tags).split(",")]
    return current is not None and ("*" in named or current.etag in named or current.etag.strip('"') in named)


def _shown(request: Request, document: ContextDocument, section: str = "") -> Response:
    text, headers = document.text, {"X-Content-Type-Options": "nosniff", "Vary": "Accept"}
    if section:
        text = _section(document, section)
    else:
        headers["ETag"] = document.etag
        if _matches(request.headers.getlist("if-none-match") or [""], document):
            return Response(None, 304, headers)
    if "application/json" in request.headers.get("accept", ""):
        return reply({**_row(document), "text": text}, headers=headers)
    return Response(text.encode("utf-8", "surrogatepass"), 200, headers, media_type="text/plain; charset=utf-8")


def _section(document: ContextDocument, wanted: str) -> str:
    title = section_named(wanted)
    if title is None:
        raise ApiError(404, "not_found", f"there is no section {wanted[:40]!r}; the sections are {', '.join(SECTIONS)}")
    body = bodies(document.text).get(title)
    if body is None:
        raise ApiError(404, "not_found", f"the document says nothing under {title}")
    return body


def _row(document: ContextDocument) -> dict[str, Any]:
    return {
        "id": document.id,
        "created_at": document.at,
        "author": document.author or document.made_by,
        "bytes": len(document.text.encode("utf-8", "surrogatepass")),
        "etag": document.etag,
    }


def _check_version_id(version_id: str) -> None:
    if not _VERSION_ID.fullmatch(version_id):
        raise ApiError(404, "not_found", "there is no such version; GET …/contexts lists them")


def _nothing(key: ConversationKey) -> ApiError:
    named = key.external_id if key.connector == NAMELESS else key.context_id
    return ApiError(404, "not_found", f"there is no context document of {named} in {key.workspace_id}")


# ---- marks ----
#
# What people say of replies, over HTTP: a mark put and taken back, the traces that came of marks, and one removed.


MarksWhose = Annotated[User | None, Query(description="connector:user_id: that person's mark.")]


class MarkBody(Body):
    mark: Literal["good", "bad", "none"]
    user: User | None = Field(default=None, description="connector:user_id: whose mark it is.")


class MarkRoutes(Routes):
    """Marks of people are for admins, and so are those of what was said in direct messages; save those of the http
    connector's people: their names are the programs' own."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("karma")
        self._runtime = runtime
        self._marking = runtime.marking
        self._limit = runtime.settings.http_max_body_bytes
        mark, karma = "/workspaces/{workspace_id}/turns/{turn_id}/mark", "/workspaces/{workspace_id}/karma"
        self.add("POST", mark, self.mark, Role.MEMBER, body=MarkBody, answers="How the turn is marked now")
        self.add("DELETE", mark, self.unmark, Role.MEMBER, answers="How the turn is marked now")
        self.add("GET", karma, self.listing, Role.ADMIN, answers="The marked turns, the newest first")
        self.add("DELETE", f"{karma}/{{turn_id}}", self.remove, Role.ADMIN, answers="Whether there was such a one")

    async def mark(self, request: Request, workspace_id: str, turn_id: str) -> Response:
        body = await read_json(request, MarkBody, self._limit)
        return await self._put(request, workspace_id, turn_id, body.user, None if body.mark == "none" else body.mark)

    async def unmark(self, request: Request, workspace_id: str, turn_id: str, user: MarksWhose = None) -> Response:
        return await self._put(request, workspace_id, turn_id, user, None)

    async def listing(self, request: Request, workspace_id: str) -> Response:
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        found = [one for one in await self._marking.all(scope) if may_read(caller, one.key.connector, _audience(one))]
        return reply({"karma": [marked_row(one) for one in found]})

    async def remove(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        if not await self._marking.forget(scope, [turn_id]):
            raise ApiError(404, "not_found", f"turn {turn_id!r} is not marked")
        return reply({"turn_id": turn_id, "removed": True})

    async def _put(
        self, request: Request, workspace_id: str, turn_id: str, user: str | None, sign: Sign | None
    ) -> Response:
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        is_admin = caller.role.covers(Role.ADMIN)
        if user is not None and not user.startswith(OWN_CONNECTOR) and not is_admin:
            raise ApiError(403, "forbidden", "marks of another connector's people are for admins' tokens")
        by = MarkingBy(user or caller.id, caller.role, "api", is_vouched_for=is_admin)
        key = await self._key(scope, turn_id, caller)
        if not self._marking.may(by, key):
            raise ApiError(403, "forbidden", "the sigil of this token does not allow karma:write")
        marked = await self._marking.put(scope, turn_id, by, sign)
        mark = marked.opinion_of(by.user).mark or "none"
        return reply({"turn_id": turn_id, "mark": mark, "good": marked.good, "bad": marked.bad})

    async def _key(self, scope: Scope, turn_id: str, caller: Caller) -> ConversationKey:
        """Where the turn was. Raises `runtime.turns.UnknownTurn`, and `ApiError` where it is none to be marked."""
        context = (await self._runtime.manifests.get(scope, turn_id)).context
        if not may_read(caller, context.connector, audience_of(context)):
            raise ApiError(403, "forbidden", "what was said in a private place needs the runtime's admin token")
        return ConversationKey(context.workspace_id, context.connector, context.external_id)


def _audience(marked: Marked) -> str | None:
    """Of a turn that is no example nothing but its place is known."""
    return (marked.exchange.audience or None) if marked.exchange else place_audience(marked.key.context_id)


def marked_row(marked: Marked) -> dict[str, Any]:
    """*marked* as programs read it; ``trace`` is None where it is no example."""
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
