"""The chat page at ``/chat``. The runtime sends server-sent events to it; it sends plain requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from config.settings import Settings
from connectors.connector import (
    Accept,
    AttachmentUnavailable,
    Capabilities,
    CommandHint,
    ConnectionState,
    Health,
    Location,
)
from connectors.http_requests import (
    HANDLED_ERRORS,
    STREAM_HEADERS,
    RequestError,
    error_response,
    json_response,
    read_body,
    refusal,
)
from connectors.message import (
    CALLER_PREFIX,
    Attachment,
    ConversationKey,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
)
from connectors.text import outbound_parts, remove_breaks
from connectors.web import convert
from connectors.web.backend import COOKIE, SESSION_SECONDS, Authenticate, Backend, CheckPlace, Session, Sessions
from connectors.web.channel import ITEMS_KEPT, Channel, Channels, OpenPage, render, stream

# ---- page ----
#
# The static files of the chat page, and its security headers.


ROOT = "/chat"
FILES = {
    "chat.css": "text/css",
    "icon.svg": "image/svg+xml",
    "app.js": "text/javascript",
    "api.js": "text/javascript",
    "conversations.js": "text/javascript",
    "files.js": "text/javascript",
    "composer.js": "text/javascript",
    "log.js": "text/javascript",
    "outbox.js": "text/javascript",
    "render.js": "text/javascript",
}

HEADERS = {
    # Only resources of this server, no inline scripts or styles, and no text that becomes HTML or script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page_routes() -> list[BaseRoute]:
    """Return the routes of ``/chat`` and its files. They need no sign-in, because they contain no data."""
    return [
        Route("/", _redirect_to_chat, methods=["GET"], include_in_schema=False),
        _file_route(ROOT, "index.html", "text/html"),
        *(_file_route(f"{ROOT}/static/{name}", name, media_type) for name, media_type in FILES.items()),
    ]


def _file_route(path: str, name: str, media_type: str) -> BaseRoute:
    async def serve(request: Request) -> Response:
        content, tag = await asyncio.to_thread(_read, name)
        headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route(path, serve, methods=["GET"], include_in_schema=False)


async def _redirect_to_chat(_request: Request) -> Response:
    return RedirectResponse(ROOT.removeprefix("/"), headers=HEADERS)


@cache
def _read(name: str) -> tuple[bytes, str]:
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'


# ---- connector ----


DEFAULT_WORKSPACE = "sample"
MAX_STREAMS = 5
"""Most open pages of one person. Browsers open six connections to a host, and one must stay free for requests."""
MAX_PART_CHARACTERS = 100_000_000
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types that the page may show. Browsers save all other files."""
ADMIN = CALLER_PREFIX + "admin"

_NOT_STORED = {**HEADERS, "Cache-Control": "no-store"}
Handler = Callable[[Request], Awaitable[Response]]


class WebConnector:
    """The connector of the chat page.

    People sign in with a token, which *authenticate* checks and nobody stores. After that, a cookie identifies them;
    scripts cannot read it. The page gives each message an id, so that it can send the message again.

    The wiring sets ``backend`` before the first request.
    """

    backend: Backend

    name = convert.NAME
    capabilities = Capabilities(max_part_units=MAX_PART_CHARACTERS, idempotency="nonce", local=True)
    typing_lasts_seconds = 4.0

    def __init__(
        self,
        authenticate: Authenticate,
        check_host: CheckPlace,
        sessions: Sessions,
        *,
        max_body_bytes: int,
        max_file_bytes: int,
        default_workspace: str = DEFAULT_WORKSPACE,
    ) -> None:
        self._authenticate = authenticate
        self._check_place = check_host
        self._sessions = sessions
        self._max_body_bytes = max_body_bytes
        self._max_file_bytes = max_file_bytes
        self._default_workspace = default_workspace
        self._channels = Channels()
        self._commands: tuple[CommandHint, ...] = ()
        self._accept: Accept | None = None
        self._state = ConnectionState.CONNECTING

    @classmethod
    def of(
        cls,
        settings: Settings,
        authenticate: Authenticate,
        check_host: CheckPlace,
        sessions: Sessions,
    ) -> WebConnector:
        """Create the connector with the limits of *settings*."""
        return cls(
            authenticate,
            check_host,
            sessions,
            max_body_bytes=settings.http_max_body_bytes,
            max_file_bytes=settings.attachment_max_bytes,
            default_workspace=settings.default_workspace or DEFAULT_WORKSPACE,
        )

    @property
    def health(self) -> Health:
        return Health(
            self._state, "" if self._state is ConnectionState.CONNECTED else f"the chat page is {self._state}"
        )

    async def run(self, accept: Accept) -> None:
        self._accept = accept
        self._state = ConnectionState.CONNECTED
        try:
            await asyncio.Event().wait()
        finally:
            self._accept = None
            self._state = ConnectionState.STOPPED
            for channel in self._channels:
                channel.wake()  # streams of pages that expect no answer end, so that the process can stop

    async def close(self) -> None:
        self._state = ConnectionState.STOPPED
        for channel in self._channels:
            channel.close()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return outbound_parts(message, [message.text] if message.text else [], "markdown", 1)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Show *part* on the person's open pages. A page that is opened later loads it."""
        channel = self._channel(message.key)
        if message.silent:
            channel.settled(convert.place(message.key)[1], message.answers)
        else:
            channel.answered(await self._item(message, part, part.token))
        return Receipt(part.token)

    def edits(self, message: OutboundMessage) -> bool:
        return True

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        self._channel(message.key).edited(await self._item(message, part, receipt.message_id))

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        self._channel(message.key).removed(convert.place(message.key)[1], receipt.message_id)

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        channel = self._channels.known(key.workspace_id, convert.place(key)[0])
        return channel is not None and bool(channel.subscriptions)

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        self._channel(key).grow(convert.place(key)[1], answers, delta)

    async def typing(self, key: ConversationKey) -> None:
        self._channel(key).typing(convert.place(key)[1])

    async def register_commands(self, commands: Sequence[CommandHint]) -> None:
        self._commands = tuple(commands)

    async def locate(self, attachment: Attachment) -> Location:
        file_id, key = convert.parse_handle(attachment.handle)
        path = await self.backend.find_file(key, file_id)
        if path is None:
            raise AttachmentUnavailable("it was deleted")
        return Location(path=str(path))

    def routes(self) -> Sequence[BaseRoute]:
        calls: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "session", self._show_session),
            ("POST", "session", self._sign_in),
            ("PUT", "session", self._change_workspace),
            ("DELETE", "session", self._sign_out),
            ("GET", "commands", self._list_commands),
            ("GET", "conversations", self._list_conversations),
            ("PATCH", "conversations", self._rename),
            ("DELETE", "conversations", self._delete),
            ("GET", "messages", self._list_messages),
            ("POST", "messages", self._post),
            ("POST", "stop", self._stop),
            ("POST", "marks", self._mark),
            ("GET", "sections", self._show_section),
            ("POST", "files", self._store_file),
            ("GET", "files", self._show_file),
            ("GET", "events", self._open_stream),
        )
        return [
            *page_routes(),
            *(
                Route(f"{ROOT}/{path}", self._with_error_responses(handler), methods=[method], include_in_schema=False)
                for method, path, handler in calls
            ),
        ]

    def _with_error_responses(self, handler: Handler) -> Handler:
        """Wrap *handler* so that it checks the origin and turns errors into responses."""

        async def handle(request: Request) -> Response:
            try:
                self._check_origin(request)
                return await handler(request)
            except HANDLED_ERRORS as error:
                return error_response(error, self.name, _NOT_STORED)

        return handle

    def _check_origin(self, request: Request) -> None:
        """Refuse requests from pages other than this one. Raises `RequestError` and `HTTPException` (403).

        The cookie alone is not enough, because browsers also send it with requests from other ports of this machine.
        Browsers report a request's origin. In addition, forms of other sites cannot send JSON bodies.
        """
        self._check_place(request)
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise RequestError(403, "forbidden", "requests from other sites' pages are refused")

    async def _session(self, request: Request) -> Session:
        secret = request.cookies.get(COOKIE, "")
        session = await self._sessions.find(secret) if secret else None
        if session is None:
            raise RequestError(401, "unauthenticated", "Please sign in.")
        return session

    async def _sign_in(self, request: Request) -> Response:
        caller = await self._authenticate(request)
        fields = convert.parse_object(await self._read_json(request))
        workspace_id = convert.parse_workspace(fields, caller.workspace_id, self._default_workspace)
        await self._require_workspace(workspace_id)
        session = Session(caller.id, caller.role, workspace_id, caller.name, caller.person)
        _, _, token = request.headers["authorization"].partition(" ")
        secret = await self._sessions.begin(token.strip(), session)
        response = _json_response(await self._session_object(session))
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, secret, max_age=SESSION_SECONDS, path=ROOT, httponly=True, secure=secure, samesite="strict"
        )
        return response

    async def _change_workspace(self, request: Request) -> Response:
        """Change the workspace of the session. Only the admin can, whose token is for all workspaces."""
        await self._session(request)
        fields = convert.parse_object(await self._read_json(request))
        workspace_id = convert.parse_workspace(fields, None, self._default_workspace)
        await self._require_workspace(workspace_id)
        session = await self._sessions.move(request.cookies[COOKIE], workspace_id)
        if session is None:
            raise RequestError(403, "forbidden", "This sign-in is for another workspace.")
        return _json_response(await self._session_object(session))

    async def _require_workspace(self, workspace_id: str) -> None:
        if not await self.backend.has_workspace(workspace_id):
            raise RequestError(404, "unknown_workspace", f"There is no workspace {workspace_id!r}.")

    async def _sign_out(self, request: Request) -> Response:
        session = await self._session(request)
        await self._sessions.end(request.cookies[COOKIE])
        channel = self._channels.known(session.workspace_id, convert.person_id(session))
        if channel is not None:
            channel.close()  # pages in other browsers reconnect at once with their own sessions
        response = _json_response({})
        response.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")
        return response

    async def _show_session(self, request: Request) -> Response:
        return _json_response(await self._session_object(await self._session(request)))

    async def _list_commands(self, request: Request) -> Response:
        await self._session(request)
        return _json_response({"commands": [convert.hint_object(hint) for hint in self._commands]})

    async def _list_conversations(self, request: Request) -> Response:
        """List the signed-in person's conversations; with ``?q=``, only those that contain the words."""
        session = await self._session(request)
        words = request.query_params.get("q", "")
        person = convert.person_id(session)
        cursor = self._channels.of(session.workspace_id, person).cursor
        conversations = await self.backend.conversations(session.workspace_id, person, words)
        return _json_response(
            {"conversations": list(map(convert.conversation_object, conversations)), "cursor": cursor}
        )

    async def _rename(self, request: Request) -> Response:
        fields, key, _ = await self._read_conversation_request(request)
        title = fields.get("title")
        if not isinstance(title, str) or not title.strip():
            raise RequestError(400, "bad_request", "The title is empty.")
        conversation = convert.conversation_object(await self.backend.rename(key, title))
        self._channel(key).listed(conversation)
        return _json_response(conversation)

    async def _delete(self, request: Request) -> Response:
        _, key, session = await self._read_conversation_request(request)
        await self.backend.delete(key, convert.person_of(session))
        self._channel(key).deleted(convert.place(key)[1])
        return _json_response({})

    async def _list_messages(self, request: Request) -> Response:
        """List the last messages of a conversation, with the cursor for the events that follow."""
        session = await self._session(request)
        conversation = request.query_params.get("conversation", "")
        key = convert.conversation_key(session, conversation)
        await self._require_workspace(session.workspace_id)
        channel = self._channel(key)
        cursor = channel.cursor  # read first: then an event may come twice, but none is missed
        past = []
        for message in await self.backend.recent(key, convert.person_of(session), ITEMS_KEPT):
            nodes = await render(message.text) if message.reply is not None else []
            past.append(convert.past_item(message, conversation, nodes))
        items = convert.merge_items(past, channel.items(conversation), ITEMS_KEPT)
        return _json_response({"messages": items, "cursor": cursor})

    async def _post(self, request: Request) -> Response:
        """Accept a message. With ``replaces``, deletes the last turn, whose messages it replaces."""
        sent_at = datetime.now(UTC)
        fields, key, session = await self._read_conversation_request(request)
        message = convert.to_inbound(fields, session, sent_at, [hint.name for hint in self._commands])
        files = convert.parse_files(fields.get("files"))
        replaced = convert.message_ids(fields.get("replaces"))
        if self._accept is None:
            raise RequestError(503, "not_ready", "The runtime is starting or stopping.", retry_after_seconds=1)
        for file in files:
            if await self.backend.find_file(key, file.id) is None:
                raise RequestError(404, "unknown_file", f"{file.name} is no longer stored. Please attach it again.")
        channel, conversation = self._channel(key), convert.place(key)[1]
        if replaced:
            person = convert.person_of(session)
            removed = await self.backend.replace(key, person, replaced, message.message_id, files)
            channel.replaced(conversation, [*replaced, *removed])
        accepted = await self._accept(message)
        if accepted.outcome == "refused":
            raise refusal(accepted)
        listed = await self.backend.add_message(key, message.message_id, fields["text"], files)
        item = convert.spoken_item(message.message_id, conversation, fields["text"], _rfc3339(sent_at), files)
        if accepted.outcome != "duplicate":
            channel.listed(convert.conversation_object(listed))
            channel.said(item, stored=accepted.outcome == "stored")
        return _json_response({"outcome": accepted.outcome, "why": accepted.why, "message": item}, 202)

    async def _stop(self, request: Request) -> Response:
        _, key, _ = await self._read_conversation_request(request)
        return _json_response({"stopped": await self.backend.stop(key)})

    async def _mark(self, request: Request) -> Response:
        """Set the mark of an answer: ``{"conversation", "turn", "mark": "good" | "bad" | null}``."""
        fields, key, session = await self._read_conversation_request(request)
        turn_id, mark = fields.get("turn"), fields.get("mark")
        if not isinstance(turn_id, str) or mark not in ("good", "bad", None):
            raise RequestError(400, "bad_request", "a mark needs a turn, and good, bad or null")
        await self.backend.mark(key, convert.person_of(session), turn_id, mark)
        self._channel(key).marked(convert.place(key)[1], turn_id, mark)
        return _json_response({"turn": turn_id, "mark": mark})

    async def _show_section(self, request: Request) -> Response:
        """Show the text of a source below its heading."""
        session = await self._session(request)
        query = request.query_params
        key = convert.conversation_key(session, query.get("conversation", ""))
        await self._require_workspace(session.workspace_id)
        source, heading = query.get("source", ""), query.get("heading", "")
        text = await self.backend.section(key, source, heading)
        return _json_response({"source": source, "heading": heading, "nodes": remove_breaks(await render(text))})

    async def _store_file(self, request: Request) -> Response:
        """Store the body as a file of a conversation. A later message names it."""
        session = await self._session(request)
        key = convert.conversation_key(session, request.query_params.get("conversation", ""))
        await self._require_workspace(session.workspace_id)
        # Forms of other sites cannot send this content type.
        if request.headers.get("content-type") != "application/octet-stream":
            raise RequestError(415, "bad_request", "send the file as application/octet-stream")
        megabytes = self._max_file_bytes / 1_000_000
        data = await read_body(request, self._max_file_bytes, f"The file is larger than {megabytes:g} MB.")
        if not data:
            raise RequestError(400, "empty", "The file is empty.")
        return _json_response({"id": await self.backend.keep_file(key, data), "size": len(data)}, 201)

    async def _show_file(self, request: Request) -> Response:
        """Send a file of a message. Browsers show pictures and save all other files."""
        session = await self._session(request)
        query = request.query_params
        key = convert.conversation_key(session, query.get("conversation", ""))
        path = await self.backend.find_file(key, query.get("file", ""))
        if path is None:
            raise RequestError(404, "not_found", "This file is no longer stored.")
        media_type = query.get("type", "")
        is_picture = media_type in PICTURES
        return FileResponse(
            path,
            headers={**HEADERS, "Cache-Control": "private, max-age=3600"},
            media_type=media_type if is_picture else "application/octet-stream",
            filename=query.get("name", "file"),
            content_disposition_type="inline" if is_picture else "attachment",
        )

    async def _read_conversation_request(self, request: Request) -> tuple[dict[str, Any], ConversationKey, Session]:
        """Return the body's fields, the key of the conversation that it names, and the session.

        Raises `RequestError`.
        """
        session = await self._session(request)
        fields = convert.parse_object(await self._read_json(request))
        return fields, convert.conversation_key(session, fields.get("conversation")), session

    async def _open_stream(self, request: Request) -> Response:
        session = await self._session(request)
        channel = self._channels.of(session.workspace_id, convert.person_id(session))
        if channel.pages >= MAX_STREAMS:
            raise RequestError(429, "too_many_pages", "The chat is open in too many tabs.", retry_after_seconds=10)
        cursor = request.headers.get("last-event-id", "") or channel.cursor
        secret = request.cookies[COOKIE]
        events = stream(
            channel, cursor, running=lambda: self._accept is not None, lasts=lambda: self._is_signed_in(secret)
        )
        return OpenPage(channel, events, {**HEADERS, **STREAM_HEADERS})

    async def _is_signed_in(self, secret: str) -> bool:
        """Return whether the session is still valid. True if the store is unavailable."""
        try:
            return await self._sessions.find(secret) is not None
        except StoreUnavailable:
            return True

    async def _item(self, message: OutboundMessage, part: OutboundPart, item_id: str) -> dict[str, Any]:
        nodes = await render(part.text)
        return convert.reply_item(item_id, message, nodes, part.text, _rfc3339(datetime.now(UTC)))

    def _channel(self, key: ConversationKey) -> Channel:
        return self._channels.of(key.workspace_id, convert.place(key)[0])

    async def _read_json(self, request: Request) -> bytes:
        """Read a body that is declared as JSON and within the limit. Raises `RequestError`."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "bad_request", "send JSON, with Content-Type: application/json")
        limit = self._max_body_bytes
        return await read_body(request, limit, f"The message is larger than {limit} bytes.")

    async def _session_object(self, session: Session) -> dict[str, Any]:
        """Return the page's object for its session. ``workspaces`` are those that the person can choose."""
        is_admin = session.caller_id == ADMIN
        return {
            "name": session.name,
            "workspace": session.workspace_id,
            "workspaces": await self.backend.workspaces() if is_admin else [session.workspace_id],
            "role": session.role.value,
            "person": convert.person_id(session),
            "max_file_bytes": self._max_file_bytes,
            "max_files": convert.MAX_FILES,
        }


def _rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json_response(value: Any, status: int = 200) -> Response:
    return json_response(value, status, _NOT_STORED)
