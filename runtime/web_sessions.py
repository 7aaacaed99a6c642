"""Who is signed in to the chat page.

Keys (owner ``web``): ``session`` under ``{web}``, one per sign-in, named by a hash of the cookie's secret. Neither the
secret nor the API token is stored; a session ends with its token.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from connectors.message import redis_key
from connectors.web.sessions import SESSION_SECONDS, Session
from runtime.stored import pack, unpack
from runtime.tokens import Tokens, Unauthenticated, fingerprint

if TYPE_CHECKING:
    from redis.asyncio import Redis

_FORMAT = 1
_SECRET_BYTES = 32


class WebSessions:
    """Sessions in Redis. Every method raises `StoreUnavailable` when it cannot be reached."""

    def __init__(self, redis: Redis, tokens: Tokens) -> None:
        self._redis = redis
        self._tokens = tokens

    async def begin(self, token: str, session: Session) -> str:
        """Keep *session*, begun with *token*; the secret by which it is found."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        stored = pack(
            _FORMAT,
            token=fingerprint(token),
            workspace_id=session.workspace_id,
        )
        await self._redis.set(_key(secret), stored, ex=SESSION_SECONDS)
        return secret

    async def find(self, secret: str) -> Session | None:
        """The session of *secret*, with what its token allows now; None where either is gone."""
        return await self._session(secret)

    async def move(self, secret: str, workspace_id: str) -> Session | None:
        """Let the session be in another workspace from now on; None where its token is not for that one."""
        session = await self._session(secret, workspace_id)
        stored = await self._redis.get(_key(secret))
        if session is not None and stored is not None:
            moved = {**unpack(stored, _FORMAT, "a sign-in"), "workspace_id": workspace_id}
            await self._redis.set(_key(secret), pack(_FORMAT, **moved), xx=True, keepttl=True)
        return session

    async def _session(self, secret: str, workspace_id: str = "") -> Session | None:
        stored = await self._redis.get(_key(secret))
        if stored is None:
            return None
        values = unpack(stored, _FORMAT, "a sign-in")
        try:
            caller = await self._tokens.holder(values["token"])
        except Unauthenticated:
            await self.end(secret)
            return None
        here = workspace_id or values["workspace_id"]
        return Session(caller.id, caller.role, here, caller.name, caller.person) if caller.may_enter(here) else None

    async def end(self, secret: str) -> None:
        """Forget the session."""
        await self._redis.delete(_key(secret))


def _key(secret: str) -> str:
    return redis_key("web", "{web}", "session", sha256(secret.encode("utf-8", "surrogatepass")).hexdigest())
