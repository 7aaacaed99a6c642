"""Codes by which a stranger is made known to the bot: given to the person, approved by an admin.

Keys (owner ``pairing``, tag ``{access}``): ``pending``, a hash of workspace, person and the beginning of a
code's SHA-256 to all of that and who they are; ``attempts``, the number of wrong codes. No code is ever
stored as such. Whoever writes several times is given as many codes, and cannot know which of them an admin
will be told: each is good for its time, until one of them is used.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from connectors.message import AgentRuntimeError, encode_id, redis_key
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

CODE_SECONDS = 600
"""How long a pairing code can be approved."""
CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without the letters and digits that look like each other (0 O, 1 I L, U V)."""
CODE_LENGTH = 8
"""About 39 bits; guessing is bounded by `MAX_WRONG_CODES`."""
MAX_WRONG_CODES = 20
"""Wrong codes that are looked at within `CODE_SECONDS`; then none is, right or wrong."""
MAX_PENDING = 1000
"""Codes that wait at a time; whoever asks beyond that is told nothing until some expire."""

_FORMAT = 1
_PENDING = redis_key("pairing", "{access}", "pending")
_ATTEMPTS = redis_key("pairing", "{access}", "attempts")

# Of two who use one code one wins. With it go the other codes of the same person (the rest of ARGV).
_TAKE = (
    "if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end "
    "redis.call('HDEL', KEYS[1], ARGV[1], unpack(ARGV, 3)) return 1"
)
_COUNT = "local n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end return n"


class UnknownCode(AgentRuntimeError):
    """The pairing code is wrong, used, or expired."""

    user_text = "That code is not valid (any more)."


class TooManyAttempts(AgentRuntimeError):
    """Too many wrong codes were tried: none is looked at until `CODE_SECONDS` after the first of them."""

    user_text = "Too many wrong codes; please try again later."


@dataclass(frozen=True, slots=True)
class Pending:
    """A person who was given a pairing code and waits for approval."""

    user: str
    name: str
    workspace_id: str
    expires_in_seconds: int


class Pairing:
    """The codes. Every method raises `StoreUnavailable` when Redis cannot be reached.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock

    async def issue(self, user: str, name: str, workspace_id: str) -> str:
        """A new code for *user* (``connector:user_id``), beside those that they were given before.

        Empty where too many codes wait already.
        """
        now = self._clock()
        if await self._redis.hlen(_PENDING) >= MAX_PENDING:
            await self._drop_expired()
            if await self._redis.hlen(_PENDING) >= MAX_PENDING:
                return ""
        code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))
        digest = _digest(code).hex()
        waiting = pack(
            _FORMAT,
            sha256=digest,
            user=user,
            name=name,
            workspace_id=workspace_id,
            expires_at=now + CODE_SECONDS,
        )
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset(_PENDING, f"{workspace_id}/{person_field(user)}/{digest[:16]}", waiting)
        pipeline.expire(_PENDING, CODE_SECONDS)
        await pipeline.execute()
        return code

    async def pending(self) -> list[Pending]:
        """Who waits for approval, each with the time of their newest code; who waits longest first."""
        newest: dict[tuple[str, str], Pending] = {}
        for _, _, _, who in sorted(await self._waiting(), key=lambda one: one[3].expires_in_seconds):
            newest[who.workspace_id, who.user] = who
        return sorted(newest.values(), key=lambda who: who.expires_in_seconds)

    async def take(self, code: str, workspace_id: str | None = None) -> Pending:
        """Who was given *code*, which is worthless from now on, with all others that they were given for the same
        workspace. With *workspace_id*, a code for another workspace counts as wrong and stays good. Raises
        `UnknownCode` and `TooManyAttempts`."""
        tried = await self._redis.get(_ATTEMPTS)
        if tried is not None and int(tried) >= MAX_WRONG_CODES:
            raise TooManyAttempts(
                f"more than {MAX_WRONG_CODES} wrong codes were tried; wait {CODE_SECONDS // 60} minutes"
            )
        digest = _digest(code.strip().upper()).hex()
        waiting = await self._waiting()
        found = None
        for field, stored, stored_digest, who in waiting:
            if hmac.compare_digest(digest, stored_digest) and workspace_id in (None, who.workspace_id):
                found = (field, stored, who)
        if found is not None:
            of = (found[2].workspace_id, found[2].user)
            others = [field for field, _, _, who in waiting if (who.workspace_id, who.user) == of]
            if await self._redis.eval(_TAKE, 1, _PENDING, found[0], found[1], *others):
                return found[2]
        await count_within(self._redis, _ATTEMPTS, CODE_SECONDS)
        raise UnknownCode("no such pairing code; it may have expired or been used")

    async def _waiting(self) -> list[tuple[str, str, str, Pending]]:
        """(field, stored value, SHA-256 of the code, who) of each code that can still be approved."""
        now = self._clock()
        waiting = []
        for field, stored in (await self._redis.hgetall(_PENDING)).items():
            values = unpack(stored, _FORMAT, "a pairing request")
            left = math.ceil(values["expires_at"] - now)
            if left > 0:
                who = Pending(values["user"], values["name"], values["workspace_id"], left)
                waiting.append((str(field), str(stored), str(values["sha256"]), who))
        return waiting

    async def _drop_expired(self) -> None:
        alive = {field for field, _, _, _ in await self._waiting()}
        expired = [field for field in await self._redis.hkeys(_PENDING) if field not in alive]
        if expired:
            await self._redis.hdel(_PENDING, *expired)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Drop the requests to a workspace that is deleted."""
        for field, _, _, who in await self._waiting():
            if who.workspace_id == workspace_id:
                await self._redis.hdel(_PENDING, field)


async def count_within(redis: Redis, key: str, seconds: int) -> int:
    """Count one more under *key*; how many there were since the first, at most *seconds* ago."""
    return int(await redis.eval(_COUNT, 1, key, str(seconds)))


def person_field(user: str) -> str:
    """*user* (``connector:user_id``) as part of a key or a hash's field."""
    connector, _, rest = user.partition(":")
    return f"{connector}:{encode_id(rest)}"


def _digest(code: str) -> bytes:
    return sha256(code.encode("utf-8", "surrogatepass")).digest()
