"""Context documents: put and got byte for byte, with all their versions.

A vault is a workspace, or any name of that form that a program keeps documents under; a memory is a context id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import ConversationKey, InvalidWorkspaceId, Role
from grounding.memory.document import SECTIONS, bodies, section_named
from grounding.memory.versions import ContextDocument
from runtime.api.bodies import read_body
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.tokens import Caller

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

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
        key = _key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        text = await self._text(request)
        stored = await self._runtime.context_keeping.put(key, text, caller_of(request).signature, _holds(request))
        return reply(_row(stored), headers={"ETag": stored.etag})

    async def delete(self, request: Request, vault_id: str, memory_id: str) -> Response:
        key = _key(vault_id, memory_id)
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
        key = _key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        if before:
            _check_version_id(before)
        found = await self._contexts.versions(key, limit, before)
        if not found and not before:
            raise _nothing(key)
        rows = [{"id": one.id, "created_at": one.at, "author": one.author, "bytes": one.size_bytes} for one in found]
        return reply({"contexts": rows})

    async def latest(self, request: Request, vault_id: str, memory_id: str, section: str = "") -> Response:
        key = _key(vault_id, memory_id)
        require_reader(caller_of(request), key)
        document = await self._contexts.latest(key)
        if document is None:
            raise _nothing(key)
        return _shown(request, document, section)

    async def version(self, request: Request, vault_id: str, memory_id: str, version_id: str) -> Response:
        key = _key(vault_id, memory_id)
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


def _key(vault_id: str, memory_id: str) -> ConversationKey:
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
