"""Slack's Web API and WebSockets through slack_sdk and aiohttp, as the rest of the package wants them.

The SDK's own client repeats a call when its connection breaks, which would post a message twice, and takes
a proxy for every host, loopback too. Both are turned off here; aiohttp heeds ``NO_PROXY``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import ClientSession, ClientTimeout, ClientWebSocketResponse, ClientWSTimeout
from pydantic import SecretStr
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.slack import errors

Ask = Callable[[AsyncWebClient], Awaitable[AsyncSlackResponse]]

_CLOSE_SECONDS = 5.0


class Api:
    """Calls with one bot token. ``timeout_seconds`` bounds each of them."""

    def __init__(self, token: SecretStr, base_url: str, timeout_seconds: float) -> None:
        self._token = token
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._client: AsyncWebClient | None = None
        self._session: ClientSession | None = None
        self._closed = False

    async def call(self, ask: Ask) -> AsyncSlackResponse:
        """What Slack answers. Raises one of `connectors.slack.errors.SLACK_ERRORS`."""
        client, _ = self._opened()
        async with asyncio.timeout(self._timeout_seconds):
            return await ask(client)

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

    def describe(self, error: Exception, *secrets: SecretStr | None) -> str:
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
        for secret in (self._token, *secrets):
            if secret is not None:
                said = said.replace(secret.get_secret_value(), "**********")
        return said

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
