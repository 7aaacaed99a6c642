"""Slack's Web API, uploads and WebSockets through slack_sdk and aiohttp, as the rest of the package wants them.

The SDK's own client repeats a call when its connection breaks, which would post a message twice, and takes
a proxy for every host, loopback too. Both are turned off here; aiohttp heeds ``NO_PROXY``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientSession, ClientTimeout, ClientWebSocketResponse, ClientWSTimeout
from pydantic import SecretStr
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.slack import errors

Ask = Callable[[AsyncWebClient], Awaitable[AsyncSlackResponse]]

_CLOSE_SECONDS = 5.0
_ANSWER_BYTES = 10_000


class Api:
    """Calls with one bot token. ``timeout_seconds`` bounds each of them; *secrets* are never part of a description.

    ``doubt`` is set when something says that the bot token may be void.
    """

    def __init__(self, token: SecretStr, base_url: str, timeout_seconds: float, *secrets: SecretStr | None) -> None:
        self._token = token
        self._secrets = (token, *(secret for secret in secrets if secret is not None))
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._client: AsyncWebClient | None = None
        self._session: ClientSession | None = None
        self._closed = False
        self.host = urlsplit(base_url).hostname or ""
        """The host of the API base that the operator set."""
        self.scopes: frozenset[str] | None = None
        """What the token may do, as Slack last said; None until it did."""
        self.doubt = asyncio.Event()

    @property
    def authorization(self) -> dict[str, str]:
        """The header by which Slack's file servers know the bot. Secret."""
        return {"Authorization": f"Bearer {self._token.get_secret_value()}"}

    async def call(self, ask: Ask) -> AsyncSlackResponse:
        """What Slack answers. Raises one of `connectors.slack.errors.SLACK_ERRORS`."""
        client, _ = self._opened()
        async with asyncio.timeout(self._timeout_seconds):
            answer = await ask(client)
        self._note_scopes(answer.headers)
        return answer

    async def ask(self, ask: Ask) -> AsyncSlackResponse:
        """As `call`, for what the runtime wants done. Raises `connectors.connector.SendFailed`."""
        try:
            return await self.call(ask)
        except errors.SLACK_ERRORS as error:
            if errors.meaning(error).bad_token:
                self.doubt.set()
            raise errors.send_failed(error, self.describe(error)) from error

    async def post(
        self, url: str, *, data: bytes | None = None, json: Any = None
    ) -> tuple[int, str, Mapping[str, str]]:
        """Post to a URL that Slack gave, without the token: status, text and headers of the answer; no redirects.

        Raises one of `connectors.slack.errors.SLACK_ERRORS`.
        """
        _, session = self._opened()
        async with asyncio.timeout(self._timeout_seconds):
            async with session.post(url, data=data, json=json, allow_redirects=False) as answer:
                said = await answer.content.read(_ANSWER_BYTES)
                return answer.status, said.decode("utf-8", "replace"), answer.headers

    async def websocket(self, url: str, heartbeat_seconds: float) -> ClientWebSocketResponse:
        """A WebSocket that breaks when a ping is not answered in half of *heartbeat_seconds*. Raises as `call`."""
        _, session = self._opened()
        async with asyncio.timeout(self._timeout_seconds):
            return await session.ws_connect(
                url, heartbeat=heartbeat_seconds, timeout=ClientWSTimeout(ws_close=_CLOSE_SECONDS)
            )

    async def close(self) -> None:
        """Let go of connections. Bounded; raises `TimeoutError`, `OSError` or aiohttp's errors."""
        self._closed = True
        session, self._session, self._client = self._session, None, None
        if session is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await session.close()

    def describe(self, error: Exception) -> str:
        """*error* in a line, without tokens."""
        if isinstance(error, TimeoutError):
            said = f"no answer in {self._timeout_seconds:g} s"
        elif found := errors.word(error):
            said = found
        elif found_status := errors.status(error):
            said = f"HTTP {found_status}"
        elif isinstance(error, AttributeError | ValueError | aiohttp.ContentTypeError):
            said = "an answer that is none of Slack's"
        else:
            said = (str(error).splitlines() or [""])[0] or type(error).__name__
        for secret in self._secrets:
            said = said.replace(secret.get_secret_value(), "**********")
        return said

    def _note_scopes(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            if name.lower() == "x-oauth-scopes":
                self.scopes = frozenset(scope.strip() for scope in value.split(",") if scope.strip())

    def _opened(self) -> tuple[AsyncWebClient, ClientSession]:
        if self._closed:
            raise errors.Closed("the connector was closed")
        if self._client is None or self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=self._timeout_seconds), trust_env=True)
            self._client = AsyncWebClient(
                token=self._token.get_secret_value(),
                base_url=self._base_url,
                session=self._session,
                retry_handlers=[],
            )
            self._client.proxy = None
        return self._client, self._session


# ---- recent ----
#
# A mapping that does not grow for ever.


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_REMEMBERED = 5000


class Recent(Generic[_Key, _Value]):
    """A mapping that keeps the newest *size* entries."""

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._size = size
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def drop(self, key: _Key) -> None:
        """Forget *key*, if it is known."""
        self._entries.pop(key, None)

    def newest(self, count: int) -> list[tuple[_Key, _Value]]:
        """The *count* entries that were put or read last, the newest first."""
        return [(key, self._entries[key]) for key, _ in zip(reversed(self._entries), range(count), strict=False)]

    def __contains__(self, key: _Key) -> bool:
        return key in self._entries
