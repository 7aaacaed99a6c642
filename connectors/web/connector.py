"""A chat page of the runtime's own, at ``/chat``: server-sent events to the page, plain requests from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from config.settings import Settings
from connectors.connector import Accept, Capabilities, CommandHint, Health, State
from connectors.message import (
    AgentRuntimeError,
    ConversationKey,
    InvalidWorkspaceId,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
)
from connectors.text.outgoing import outbound_parts
from connectors.web import convert
from connectors.web.channel import ITEMS_KEPT, Channel, Channels, rendered
from connectors.web.convert import RequestError
from connectors.web.page import HEADERS, ROOT, Page
from connectors.web.sessions import (
    COOKIE,
    SESSION_SECONDS,
    Authenticate,
    CheckPlace,
    KnowsWorkspace,
    Recent,
    Session,
    Sessions,
)
from connectors.web.stream import OpenPage, stream

DEFAULT_WORKSPACE = "sample"
BODY_SECONDS = 30.0
MAX_STREAMS = 5
"""Open pages of one person: browsers make six connections to a host, and one is needed for saying something."""
MAX_PART_CHARACTERS = 100_000_000

_CODES = {401: "unauthenticated", 403: "forbidden", 404: "not_found"}
Handler = Callable[[Request], Awaitable[Response]]
log = structlog.get_logger()


class WebConnector:
    """The connector whose platform is a page in a browser.

    People sign in with an API token, which is checked by *authenticate* and not kept; from then on a cookie that no
    script can read stands for them. What they say carries an id that the page made, so that it may be sent again.
    """

    name = convert.NAME
    capabilities = Capabilities(max_part_units=MAX_PART_CHARACTERS, idempotency="nonce", local=True)
    typing_lasts_seconds = 4.0

    def __init__(
        self,
        authenticate: Authenticate,
        check_place: CheckPlace,
        sessions: Sessions,
        recent: Recent,
        knows_workspace: KnowsWorkspace,
        *,
        max_body_bytes: int,
        default_workspace: str = DEFAULT_WORKSPACE,
    ) -> None:
        self._authenticate = authenticate
        self._check_place = check_place
        self._sessions = sessions
        self._recent = recent
        self._knows_workspace = knows_workspace
        self._max_body_bytes = max_body_bytes
        self._default_workspace = default_workspace
        self._channels = Channels()
        self._commands: tuple[CommandHint, ...] = ()
        self._accept: Accept | None = None
        self._state = State.CONNECTING

    @classmethod
    def of(
        cls,
        settings: Settings,
        authenticate: Authenticate,
        check_place: CheckPlace,
        sessions: Sessions,
        recent: Recent,
        knows_workspace: KnowsWorkspace,
    ) -> WebConnector:
        """The connector as *settings* want it."""
        return cls(
            authenticate,
            check_place,
            sessions,
            recent,
            knows_workspace,
            max_body_bytes=settings.http_max_body_bytes,
            default_workspace=settings.default_workspace or DEFAULT_WORKSPACE,
        )

    @property
    def health(self) -> Health:
        return Health(self._state, "" if self._state is State.CONNECTED else f"the chat page is {self._state}")

    async def run(self, accept: Accept) -> None:
        self._accept = accept
        self._state = State.CONNECTED
        try:
            await asyncio.Event().wait()
        finally:
            self._accept = None
            self._state = State.STOPPED
            for channel in self._channels:
                channel.wake()  # pages that wait for nothing are let go, so that the process can stop

    async def close(self) -> None:
        self._state = State.STOPPED
        for channel in self._channels:
            channel.close()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return outbound_parts(message, [message.text] if message.text else [], "markdown", 1)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Show *part* to whoever has the page open. Where nobody has, it is there when the page is opened next."""
        channel = self._channel(message.key)
        if message.silent:
            channel.settled(convert.place(message.key)[1], message.answers)
        else:
            channel.answered(await self._item(message, part, part.token))
        return Receipt(part.token)

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

    def routes(self) -> Sequence[BaseRoute]:
        calls: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "session", self._show_session),
            ("POST", "session", self._sign_in),
            ("DELETE", "session", self._sign_out),
            ("GET", "commands", self._list_commands),
            ("GET", "messages", self._list_messages),
            ("POST", "messages", self._post),
            ("GET", "events", self._open_stream),
        )
        return [
            *Page().routes(),
            *(
                Route(f"{ROOT}/{path}", self._guarded(handler), methods=[method], include_in_schema=False)
                for method, path, handler in calls
            ),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._check_origin(request)
                return await handler(request)
            except RequestError as error:
                return _error_response(error)
            except HTTPException as error:
                return _error_response(
                    RequestError(error.status_code, _CODES.get(error.status_code, "refused"), error.detail)
                )
            except InvalidWorkspaceId as error:
                return _error_response(RequestError(404, "unknown_workspace", error.user_text))
            except AgentRuntimeError as error:
                failure = convert.failure(error)
                if failure.status >= 500:  # else it is the caller's mistake, and told to them
                    log.warning("http.failed", error=type(error).__name__, connector=self.name)
                return _error_response(failure)

        return guarded

    def _check_origin(self, request: Request) -> None:
        """Our own page only: the cookie also goes along when another port of this machine asks.

        Browsers say where a request comes from; a body that is JSON no form of another site can send.
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
        fields = convert.parse_object(await self._read_body(request))
        name, workspace_id = convert.parse_sign_in(fields, caller.workspace_id, self._default_workspace)
        if not await self._knows_workspace(workspace_id):
            raise RequestError(404, "unknown_workspace", f"There is no workspace {workspace_id!r}.")
        session = Session(caller.id, caller.role, workspace_id, name)
        _, _, token = request.headers["authorization"].partition(" ")
        secret = await self._sessions.begin(token.strip(), session)
        response = _json_response(_session_object(session))
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, secret, max_age=SESSION_SECONDS, path=ROOT, httponly=True, secure=secure, samesite="strict"
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        session = await self._session(request)
        await self._sessions.end(request.cookies[COOKIE])
        channel = self._channels.known(session.workspace_id, convert.person(session))
        if channel is not None:
            channel.close()  # pages of other browsers come back at once by their own sessions
        response = _json_response({})
        response.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")
        return response

    async def _show_session(self, request: Request) -> Response:
        return _json_response(_session_object(await self._session(request)))

    async def _list_commands(self, request: Request) -> Response:
        await self._session(request)
        return _json_response({"commands": [convert.hint_object(hint) for hint in self._commands]})

    async def _list_messages(self, request: Request) -> Response:
        """The last messages of a conversation, and the place in the events from which to go on."""
        session = await self._session(request)
        conversation = request.query_params.get("conversation", "")
        key = convert.conversation_key(session, conversation)
        if not await self._knows_workspace(session.workspace_id):
            raise RequestError(404, "unknown_workspace", f"There is no workspace {session.workspace_id!r} any more.")
        channel = self._channel(key)
        cursor = channel.cursor  # before anything is read: an event may come twice, and none is missed
        past = []
        for said in await self._recent(key, ITEMS_KEPT):
            nodes = await rendered(said.text) if said.reply is not None else []
            past.append(convert.past_item(said, conversation, nodes))
        items = convert.merged(past, channel.items(conversation), ITEMS_KEPT)
        return _json_response({"messages": items, "cursor": cursor})

    async def _post(self, request: Request) -> Response:
        session = await self._session(request)
        sent_at = datetime.now(UTC)
        fields = convert.parse_object(await self._read_body(request))
        message = convert.to_inbound(fields, session, sent_at, [hint.name for hint in self._commands])
        if self._accept is None:
            raise RequestError(503, "not_ready", "The runtime is starting or stopping.", retry_after_seconds=1)
        accepted = await self._accept(message)
        if accepted.outcome == "refused":
            raise convert.refusal(accepted)
        key = ConversationKey(session.workspace_id, self.name, message.external_id)
        conversation = convert.place(key)[1]
        item = convert.spoken_item(message.message_id, conversation, fields["text"], _rfc3339(sent_at))
        if accepted.outcome != "duplicate":
            self._channel(key).said(item, stored=accepted.outcome == "stored")
        return _json_response({"outcome": accepted.outcome, "why": accepted.why, "message": item}, 202)

    async def _open_stream(self, request: Request) -> Response:
        session = await self._session(request)
        channel = self._channels.of(session.workspace_id, convert.person(session))
        if channel.pages >= MAX_STREAMS:
            raise RequestError(429, "too_many_pages", "The chat is open in too many tabs.", retry_after_seconds=10)
        cursor = request.headers.get("last-event-id", "") or channel.cursor
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        secret = request.cookies[COOKIE]
        events = stream(channel, cursor, running=lambda: self._accept is not None, lasts=lambda: self._lasts(secret))
        return OpenPage(channel, events, headers)

    async def _lasts(self, secret: str) -> bool:
        """Whether the session is still good; also while nobody can tell."""
        try:
            return await self._sessions.find(secret) is not None
        except StoreUnavailable:
            return True

    async def _item(self, message: OutboundMessage, part: OutboundPart, item_id: str) -> dict[str, Any]:
        nodes = await rendered(part.text)
        return convert.reply_item(item_id, message, nodes, part.text, _rfc3339(datetime.now(UTC)))

    def _channel(self, key: ConversationKey) -> Channel:
        return self._channels.of(key.workspace_id, convert.place(key)[0])

    async def _read_body(self, request: Request) -> bytes:
        """The body, JSON by its own word and within the limit. Raises `RequestError`."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "bad_request", "send JSON, with Content-Type: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._max_body_bytes:
                        raise RequestError(
                            413, "too_large", f"The message is larger than {self._max_body_bytes} bytes."
                        )
        except TimeoutError:
            raise RequestError(408, "timeout", "the body did not come in time") from None
        except ClientDisconnect:
            raise RequestError(400, "bad_request", "the body ended early") from None
        return bytes(body)


def _session_object(session: Session) -> dict[str, str]:
    return {
        "name": session.name,
        "workspace": session.workspace_id,
        "role": session.role.value,
        "person": convert.person(session),
    }


def _rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _error_response(error: RequestError) -> Response:
    response = _json_response(error.body, error.status)
    response.headers.update(error.headers)
    return response


def _json_response(value: Any, status: int = 200) -> Response:
    # Half a surrogate pair in a model's text becomes a JSON escape, where a plain encoder would fail.
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, status, {**HEADERS, "Cache-Control": "no-store"}, media_type="application/json")
