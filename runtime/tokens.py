"""The tokens of the HTTP face: the admin's, and those made for one workspace and role.

Key (owner ``tokens``): ``by_digest`` under ``{tokens}``, a hash of a token's SHA-256 to what it allows. No
token is ever stored as such.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import structlog

from connectors.message import CALLER_PREFIX, AgentRuntimeError, Role, redis_key
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_FORMAT = 1
_TOKENS = redis_key("tokens", "{tokens}", "by_digest")
_TOKEN_BYTES = 32

log = structlog.get_logger()


class Unauthenticated(AgentRuntimeError):
    """The bearer token is missing or none of ours."""

    code = "unauthenticated"
    user_text = "A valid bearer token is needed."


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a token. ``workspace_id`` is None for one that holds everywhere.

    ``id`` stands for the caller where no author is named; no person's id looks like it.
    """

    role: Role
    workspace_id: str | None
    id: str

    def may_enter(self, workspace_id: str) -> bool:
        """Whether the token is good for that workspace at all."""
        return self.workspace_id in (None, workspace_id)


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What is known of a token after it was shown: ``id`` names it in lists and for `Tokens.revoke`."""

    id: str
    workspace_id: str
    role: Role


class Tokens:
    """All tokens. Every method raises `StoreUnavailable` when Redis is needed and cannot be reached.

    *admin_token* is what `runtime.admin_token.admin_token` gives.
    """

    def __init__(self, redis: Redis, admin_token: str) -> None:
        self._redis = redis
        self._admin_digest = _digest(admin_token)

    async def create(self, workspace_id: str, role: Role, *, by: str = "") -> str:
        """A new bearer token for one workspace and role: shown now and never again. *by* is who made it, for the event
        ``access.changed``, which names the token by its id."""
        token = "art_" + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = _digest(token).hex()
        await self._redis.hset(_TOKENS, digest, pack(_FORMAT, workspace_id=workspace_id, role=role.value))
        id_ = _token_id(digest)
        log.info("access.changed", action="token", workspace_id=workspace_id, token_id=id_, role=role.value, by=by)
        return token

    async def of_workspace(self, workspace_id: str) -> list[ApiToken]:
        """The tokens for *workspace_id*, by id."""
        found = []
        for digest, stored in (await self._redis.hgetall(_TOKENS)).items():
            values = unpack(stored, _FORMAT, "a token")
            if values["workspace_id"] == workspace_id:
                found.append(ApiToken(_token_id(str(digest)), workspace_id, Role(values["role"])))
        return sorted(found, key=lambda token: token.id)

    async def revoke(self, token_id: str, *, by: str = "") -> bool:
        """Make the token worthless from now on; False if there was none of that id."""
        digests = [digest for digest in await self._redis.hkeys(_TOKENS) if _token_id(str(digest)) == token_id]
        if not digests or not await self._redis.hdel(_TOKENS, *digests):
            return False
        log.info("access.changed", action="revoked", token_id=token_id, by=by)
        return True

    async def authenticate(self, bearer: str) -> Caller:
        """Who holds *bearer* (the token alone). Raises `Unauthenticated`.

        The admin's token is compared without Redis. Others are found by their SHA-256, so that the
        time of the look-up tells nothing about a token.
        """
        return await self.holder(fingerprint(bearer))

    async def holder(self, token_fingerprint: str) -> Caller:
        """Who holds the token of that `fingerprint` now. Raises `Unauthenticated` where it is worth nothing."""
        if hmac.compare_digest(token_fingerprint, self._admin_digest.hex()):
            return Caller(Role.ADMIN, None, CALLER_PREFIX + "admin")
        stored = await self._redis.hget(_TOKENS, token_fingerprint)
        if stored is None:
            raise Unauthenticated("the bearer token is not valid")
        values = unpack(stored, _FORMAT, "a token")
        return Caller(Role(values["role"]), values["workspace_id"], CALLER_PREFIX + _token_id(token_fingerprint))

    async def still_holds(self, caller: Caller) -> bool:
        """Whether the token by which *caller* came is worth anything still."""
        if caller.workspace_id is None:
            return True  # the admin's, which only a start changes
        known = await self.of_workspace(caller.workspace_id)
        return any(caller.id == CALLER_PREFIX + token.id for token in known)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Make the tokens for a workspace that is deleted worthless."""
        for token in await self.of_workspace(workspace_id):
            await self.revoke(token.id)


def fingerprint(token: str) -> str:
    """By what a token is known here: its SHA-256 in hexadecimal, from which nobody gets it back."""
    return _digest(token).hex()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token_id(digest: str) -> str:
    return digest[:12]
