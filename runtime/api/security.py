"""Who may call the HTTP face: a bearer token on everything that is not public, a known host, our own origin."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from config.settings import Settings
from runtime.tokens import Caller, InvalidTokenName, Tokens, Unauthenticated, check_token_name

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_LONGEST_SHOWN = 255
USER_HEADER = "X-Agent-Runtime-User"
"""The name of the person who uses the admin's token, percent-encoded; commands send it."""


class Security:
    """Checks requests. Called as ``await security(request)`` it returns the caller behind the token."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._tokens = tokens
        self._hosts = _LOOPBACK | {settings.http_host.lower(), *(host.lower() for host in settings.http_allowed_hosts)}
        if settings.http_public_url:
            self._hosts |= {(urlsplit(settings.http_public_url).hostname or "").lower()}

    async def __call__(self, request: HTTPConnection) -> Caller:
        """The caller; asked again of the same request, as it was found out the first time. Raises HTTPException (401,
        403) and `connectors.message.StoreUnavailable`."""
        found: Caller | None = getattr(request.state, "caller", None)
        if found is None:
            found = request.state.caller = await self._found(request)
        return found

    async def _found(self, request: HTTPConnection) -> Caller:
        self.check_place(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not bearer.strip():
            raise HTTPException(401, "send the token as 'Authorization: Bearer …'", {"WWW-Authenticate": "Bearer"})
        try:
            caller = await self._tokens.authenticate(bearer.strip())
        except Unauthenticated as error:
            raise HTTPException(401, error.user_text, {"WWW-Authenticate": "Bearer"}) from None
        return _named(caller, request)

    def check_place(self, request: HTTPConnection) -> None:
        """Refuse names that are not ours (DNS rebinding) and other sites' pages. Raises HTTPException 403."""
        host = request.headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts and host not in self._hosts:
            raise HTTPException(
                403, f"host {host[:_LONGEST_SHOWN]!r} is not served here; add it to AGENT_RUNTIME_HTTP_ALLOWED_HOSTS"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"{request.url.scheme}://{host}":
            raise HTTPException(403, "requests from other sites' pages are refused")


def _named(caller: Caller, request: HTTPConnection) -> Caller:
    """The admin's token is shared: who uses it may say who they are, so that changes name them. They gain nothing."""
    said = unquote(request.headers.get(USER_HEADER, ""))
    if caller.workspace_id is not None or not said:
        return caller
    try:
        return replace(caller, name=check_token_name(said) or caller.name)
    except InvalidTokenName:
        return caller
