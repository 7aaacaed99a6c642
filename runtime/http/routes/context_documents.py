"""Context documents: put and got byte for byte, with all their versions.

A vault is a workspace, or any name of that form under which a program stores documents; a memory is a context id.
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
from grounding.memory.context_document import SECTIONS, ContextDocument, bodies, section_named
from runtime.http.auth import Routes, caller_of, require_reader
from runtime.http.errors import ApiError, read_body, reply, text_reply

if TYPE_CHECKING:
    from runtime.process import Runtime

NAMELESS = "-"
"""Stands for the connector if a memory's name has none; no connector has this name."""
MAX_LISTED = 1000
_CONNECTOR = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION_ID = re.compile(r"\d{1,15}-\d{1,15}")
_LONGEST_ID = 512


class ContextRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("contexts", runtime)
        self._contexts = runtime.contexts
        self._max_bytes = runtime.settings.context_document_max_bytes
        # A memory's name may hold slashes; what follows "/contexts" never does.
        here = "/vaults/{vault_id}/memories/{memory_id:path}/contexts"
        self.add("PUT", here, self.put, Role.ADMIN, answers="The new version, its ETag")
        self.add("DELETE", here, self.delete, Role.ADMIN, answers="The document is gone with all its versions")
        self.add("GET", here, self.listing, Role.MEMBER, answers="The versions, the newest first")
        self.add("GET", f"{here}/latest", self.latest, Role.MEMBER, answers="The text as it was put, its ETag")
        self.add("GET", f"{here}/{{version_id}}", self.version, Role.MEMBER, answers="The text of a version")

    async def put(self, request: Request, vault_id: str, memory_id: str) -> Response:
        key = _key(request, vault_id, memory_id)
        text = await self._text(request)
        author = caller_of(request).signature
        stored = await self._runtime.context_editor.put(key, text, author, _precondition(request))
        return reply(_row(stored), headers={"ETag": stored.etag})

    async def delete(self, request: Request, vault_id: str, memory_id: str) -> Response:
        key = _key(request, vault_id, memory_id)
        if not await self._runtime.context_editor.forget(key):
            raise _not_found(key)
        return reply({"vault": vault_id, "memory": memory_id, "deleted": True})

    async def listing(
        self,
        request: Request,
        vault_id: str,
        memory_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
        before: str = "",
    ) -> Response:
        key = _key(request, vault_id, memory_id)
        if before:
            _check_version_id(before)
        versions = await self._contexts.versions(key, limit, before)
        if not versions and not before:
            raise _not_found(key)
        rows = [
            {"id": version.id, "created_at": version.at, "author": version.author, "bytes": version.size_bytes}
            for version in versions
        ]
        return reply({"contexts": rows})

    async def latest(self, request: Request, vault_id: str, memory_id: str, section: str = "") -> Response:
        key = _key(request, vault_id, memory_id)
        document = await self._contexts.latest(key)
        if document is None:
            raise _not_found(key)
        return _respond(request, document, section)

    async def version(self, request: Request, vault_id: str, memory_id: str, version_id: str) -> Response:
        key = _key(request, vault_id, memory_id)
        _check_version_id(version_id)
        document = await self._contexts.version(key, version_id)
        if document is None:
            raise ApiError(404, "not_found", f"the document has no version {version_id}")
        return _respond(request, document)

    async def _text(self, request: Request) -> str:
        """Return the document in the body. Raises `ApiError` 400, 413 and 415."""
        media, _, parameters = request.headers.get("content-type", "text/plain").partition(";")
        media = media.strip().lower()
        charset = re.search(r"charset\s*=\s*\"?([\w-]+)", parameters, re.IGNORECASE)
        if media not in ("text/plain", "application/json") or (
            charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii")
        ):
            raise ApiError(415, "unsupported_media_type", "send text/plain in UTF-8, or application/json with a string")
        # JSON may write one byte of text as six.
        limit = self._max_bytes if media == "text/plain" else 6 * self._max_bytes + 10
        body = await read_body(request, limit, "CONTEXT_DOCUMENT_MAX_BYTES")
        try:
            text = body.decode("utf-8") if media == "text/plain" else _json_string(body)
            size = len(text.encode("utf-8"))
        except UnicodeError:
            raise ApiError(400, "encoding", "the document is not UTF-8") from None
        if size > self._max_bytes:
            setting = f"{self._max_bytes} bytes (AGENT_RUNTIME_CONTEXT_DOCUMENT_MAX_BYTES)"
            raise ApiError(413, "too_large", f"the document has {size} bytes, more than {setting}: shorten it")
        if not text.strip():
            raise ApiError(400, "empty", "the document is empty or blank")
        return text


def _json_string(body: bytes) -> str:
    """Return the JSON string in *body*. Raises `ApiError` 400 if it is no JSON, 415 if no string, and UnicodeError."""
    try:
        value: Any = json.loads(body.decode("utf-8"))
    except (json.JSONDecodeError, RecursionError):
        raise ApiError(400, "bad_request", "the body is no JSON; a document is sent as one JSON string") from None
    if not isinstance(value, str):
        raise ApiError(415, "unsupported_media_type", "a document in JSON is one string, no other value")
    return value


def _key(request: Request, vault_id: str, memory_id: str) -> ConversationKey:
    """Return the key of a document. Raises `ApiError` 400 for names of another form, and 403 if the caller may not
    read it."""
    connector, separator, external_id = memory_id.partition(":")
    if not separator:
        connector, external_id = NAMELESS, memory_id
    elif not _CONNECTOR.fullmatch(connector):
        external_id = ""
    if not external_id.strip() or len(memory_id) > _LONGEST_ID:
        raise ApiError(400, "bad_request", "a memory is named like a context, e.g. slack:C123 or notes:42")
    try:
        key = ConversationKey(vault_id, connector, external_id)
    except InvalidWorkspaceId as error:
        raise ApiError(400, "invalid_vault", str(error).replace("workspace id", "vault")) from None
    require_reader(caller_of(request), key)
    return key


def _precondition(request: Request) -> Callable[[ContextDocument | None], bool]:
    """Return the condition that ``If-Match`` and ``If-None-Match`` set for replacing the stored document."""
    match = request.headers.getlist("if-match")
    none_match = request.headers.getlist("if-none-match")

    def holds(current: ContextDocument | None) -> bool:
        if match and not _matches(match, current):
            return False
        return not (none_match and _matches(none_match, current))

    return holds


def _matches(headers: list[str], current: ContextDocument | None) -> bool:
    """Compare strongly (RFC 9110, section 8.8.3.2): a weak tag matches nothing."""
    tags = [tag.strip() for tag in ",".join(headers).split(",")]
    return current is not None and ("*" in tags or current.etag in tags or current.etag.strip('"') in tags)


def _respond(request: Request, document: ContextDocument, section: str = "") -> Response:
    text, headers = document.text, {"Vary": "Accept"}
    if section:
        text = _section(document, section)
    else:
        headers["ETag"] = document.etag
        if _matches(request.headers.getlist("if-none-match") or [""], document):
            return Response(None, 304, headers)
    if "application/json" in request.headers.get("accept", ""):
        return reply({**_row(document), "text": text}, headers=headers)
    return text_reply(text, headers=headers)


def _section(document: ContextDocument, name: str) -> str:
    title = section_named(name)
    if title is None:
        raise ApiError(404, "not_found", f"there is no section {name[:40]!r}; the sections are {', '.join(SECTIONS)}")
    body = bodies(document.text).get(title)
    if body is None:
        raise ApiError(404, "not_found", f"the document says nothing under {title}")
    return body


def _row(document: ContextDocument) -> dict[str, Any]:
    problem = document.lasting_problem
    return {
        "id": document.id,
        "created_at": document.at,
        "author": document.author or document.made_by,
        "bytes": len(document.text.encode("utf-8", "surrogatepass")),
        "etag": document.etag,
        **({"problem": f"{problem.text}.", "advice": problem.advice} if problem else {}),
    }


def _check_version_id(version_id: str) -> None:
    if not _VERSION_ID.fullmatch(version_id):
        raise ApiError(404, "not_found", "there is no such version; GET …/contexts lists them")


def _not_found(key: ConversationKey) -> ApiError:
    name = key.external_id if key.connector == NAMELESS else key.context_id
    return ApiError(404, "not_found", f"there is no context document of {name} in {key.workspace_id}")
