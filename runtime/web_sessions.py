"""Who is signed in to the chat page.

Keys (owner ``web``): ``session`` under ``{web}``, one per sign-in, named by a hash of the cookie's secret. Neither the
secret nor the API token is stored; a session ends with its token.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from connectors.message import Role, redis_key
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
            caller_id=session.caller_id,
            role=session.role.value,
            workspace_id=session.workspace_id,
            name=session.name,
        )
        await self._redis.set(_key(secret), stored, ex=SESSION_SECONDS)
        return secret

    async def find(self, secret: str) -> Session | None:
        """The session of *secret*, with the role that its token has now; None where either is gone."""
        stored = await self._redis.get(_key(secret))
        if stored is None:
            return None
        values = unpack(stored, _FORMAT, "a sign-in")
        session = Session(values["caller_id"], Role(values["role"]), values["workspace_id"], values["name"])
        try:
            caller = await self._tokens.holder(values["token"])
        except Unauthenticated:
            await self.end(secret)
            return None
        return replace(session, role=caller.role) if caller.may_enter(session.workspace_id) else None

    async def end(self, secret: str) -> None:
        """Forget the session."""
        await self._redis.delete(_key(secret))


def _key(secret: str) -> str:
    return redis_key("web", "{web}", "session", sha256(secret.encode("utf-8", "surrogatepass")).hexdigest())
