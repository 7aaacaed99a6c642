"""Slack's Web API and uploads, through slack_sdk and aiohttp.

The SDK's own client repeats a call when its connection breaks, which would post a message twice, and uses a proxy for
every host, loopback too. Both are turned off here; aiohttp heeds ``NO_PROXY``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

import aiohttp
import structlog
from aiohttp import ClientSession, ClientTimeout
from pydantic import SecretStr
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import SendFailed
from connectors.slack import errors

log = structlog.get_logger()

ApiCall = Callable[[AsyncWebClient], Awaitable[AsyncSlackResponse]]

_CLOSE_SECONDS = 5.0
_ANSWER_BYTES = 10_000

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Api:
    """Calls with one bot token. ``timeout_seconds`` bounds each of them; `describe` never shows one of *secrets*."""

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
        """The scopes of the token, by Slack's last answer; None before the first one."""
        self.token_suspect = asyncio.Event()
        """Set when an error or event says that the bot token may be void."""

    @property
    def authorization(self) -> dict[str, str]:
        """The header that Slack's file servers require. Secret."""
        return {"Authorization": f"Bearer {self._token.get_secret_value()}"}

    def is_slacks(self, url: str) -> bool:
        """Return whether *url* is on one of Slack's hosts."""
        parts = _split(url)
        return parts.scheme == "https" and (parts.hostname or "").endswith(".slack.com") and parts.username is None

    def is_operators(self, url: str) -> bool:
        """Return whether *url* is on the host of the API base that the operator set."""
        parts = _split(url)
        return parts.scheme in {"http", "https"} and parts.hostname == self.host and bool(self.host)

    async def call(self, call: ApiCall) -> AsyncSlackResponse:
        """Return Slack's answer. Raises one of `connectors.slack.errors.SLACK_ERRORS`."""
        client, _ = self._connection()
        async with asyncio.timeout(self._timeout_seconds):
            answer = await call(client)
        scopes = next((value for name, value in answer.headers.items() if name.lower() == "x-oauth-scopes"), None)
        if scopes is not None:
            self.scopes = frozenset(scope.strip() for scope in scopes.split(",") if scope.strip())
        return answer

    async def request(self, call: ApiCall) -> AsyncSlackResponse:
        """Return Slack's answer, as `call` does. Raises `connectors.connector.SendFailed`."""
        try:
            return await self.call(call)
        except errors.SLACK_ERRORS as error:
            if errors.meaning(error).needs_person:
                self.token_suspect.set()
            raise errors.send_failed(error, self.describe(error)) from error

    async def request_lossy(self, call: ApiCall) -> str:
        """Request something that may be lost. Returns Slack's word for why it refused, empty if it did not.

        Raises `SendFailed` only if Slack demands a wait.
        """
        try:
            await self.request(call)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector="slack", why=str(failed))
            if failed.retry_after_seconds:
                raise
            return errors.word(failed.__cause__)
        return ""

    async def messages(
        self, channel: str, thread: str | None, *, max_pages: int, **page: Any
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield pages of the messages of a channel (newest first) or of one of its threads (oldest first).

        *page* are further arguments of ``conversations.history`` or ``conversations.replies``. Raises `SendFailed`.
        """
        if thread is not None:
            page["ts"] = thread
        for _ in range(max_pages):
            answer = await self.request(
                lambda client: (
                    client.conversations_history(channel=channel, **page)
                    if thread is None
                    else client.conversations_replies(channel=channel, **page)
                )
            )
            yield answer.get("messages") or []
            page["cursor"] = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not page["cursor"]:
                return

    async def post(
        self, url: str, *, data: bytes | None = None, json: Any = None
    ) -> tuple[int, str, Mapping[str, str]]:
        """Post to a URL that Slack gave, without the token. Returns status, text and headers; follows no redirect.

        Raises one of `connectors.slack.errors.SLACK_ERRORS`.
        """
        _, session = self._connection()
        async with asyncio.timeout(self._timeout_seconds):
            async with session.post(url, data=data, json=json, allow_redirects=False) as answer:
                body = await answer.content.read(_ANSWER_BYTES)
                return answer.status, body.decode("utf-8", "replace"), answer.headers

    async def close(self) -> None:
        """Close all connections. Bounded; raises `TimeoutError`, `OSError` or aiohttp's errors."""
        self._closed = True
        session, self._session, self._client = self._session, None, None
        if session is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await session.close()

    def describe(self, error: Exception) -> str:
        """Describe *error* in a line without tokens."""
        if isinstance(error, TimeoutError):
            text = f"no answer in {self._timeout_seconds:g} s"
        elif word := errors.word(error):
            text = word
        elif status := errors.status(error):
            text = f"HTTP {status}"
        elif isinstance(error, AttributeError | ValueError | aiohttp.ContentTypeError):
            text = "an answer that is none of Slack's"
        else:
            text = (str(error).splitlines() or [""])[0] or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret.get_secret_value(), "**********")
        return text

    def _connection(self) -> tuple[AsyncWebClient, ClientSession]:
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


def _split(url: str) -> SplitResult:
    """Return the parts of *url*; empty ones if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


class Recent(Generic[_Key, _Value]):
    """A mapping that keeps the *size* entries that were written or read last."""

    def __init__(self, size: int = 5000) -> None:
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
        """Remove *key* if it is there."""
        self._entries.pop(key, None)

    def __contains__(self, key: _Key) -> bool:
        return key in self._entries
