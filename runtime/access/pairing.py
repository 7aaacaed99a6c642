"""Requests of strangers to be let in: what they asked, the code that an admin approves, and what became of it.

Keys (owner ``pairing``, tag ``{access}``): ``request``, one per workspace and person, which ends by itself with the
code's time; ``requests``, a set of the ends of those keys; ``unsettled``, a set of those that were decided, until the
person was told; ``attempts``, the number of wrong codes.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, InboundKind, InboundMessage, Role, encode_id, redis_key
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


CODE_SECONDS = 24 * 3600
"""How long a pairing code can be approved, and what was decided of it is remembered."""
CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without the letters and digits that look like each other (0 O, 1 I L, U V)."""
CODE_LENGTH = 8
"""About 39 bits; guessing is bounded by `MAX_WRONG_CODES`."""
ATTEMPT_SECONDS = 600
MAX_WRONG_CODES = 20
"""Wrong codes that are looked at within `ATTEMPT_SECONDS`; then none is, right or wrong."""
MAX_PENDING = 1000
"""Requests at a time; whoever asks beyond that is told nothing until some end."""
MAX_MESSAGES = 3
"""Messages of one stranger that are kept to be answered."""
MAX_BYTES = 64_000
"""Size of one request with them."""

_VERSION = 1
_INDEX = redis_key("pairing", "{access}", "requests")
_UNSETTLED = redis_key("pairing", "{access}", "unsettled")
_ATTEMPTS = redis_key("pairing", "{access}", "attempts")

# Of several who change a request at once one wins; the others look again.
_SWAP = (
    "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end "
    "redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) redis.call('SADD', KEYS[2], ARGV[4]) "
    "if ARGV[5] == '1' then redis.call('SADD', KEYS[3], ARGV[4]) end return 1"
)
_COUNT = "local n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end return n"


class UnknownCode(AgentRuntimeError):
    """The pairing code is wrong or expired."""

    user_text = "This code is not valid, or it has expired."


class AlreadyDecided(UnknownCode):
    """Somebody has approved or denied the request; the text says who."""

    def __init__(self, request: Request) -> None:
        done = "let in" if request.state == "approved" else "turned away"
        super().__init__(f"{request.name or request.user} was {done} already, by {request.by or 'an admin'}")
        self.user_text = f"{self}."
        self.request = request


class TooManyAttempts(AgentRuntimeError):
    """Too many wrong codes were tried: none is looked at until `ATTEMPT_SECONDS` after the first of them."""

    user_text = "Too many wrong codes; please try again later."


@dataclass(frozen=True, slots=True)
class Request:
    """A stranger asks to talk to the bot. ``messages`` are what they said so far, to be answered once they are let
    in, as ``role``; ``by`` is who decided."""

    user: str
    name: str
    workspace_id: str
    code: str
    expires_at: float
    messages: tuple[InboundMessage, ...] = ()
    state: Literal["waiting", "approved", "denied"] = "waiting"
    by: str = ""
    role: Role = Role.MEMBER
    expires_in_seconds: int = 0
    v: int = _VERSION

    @property
    def id(self) -> str:
        """Names the request where its code must not be seen, as in events."""
        return sha256(self.code.encode()).hexdigest()[:16]

    @property
    def asked_in(self) -> tuple[str, ...]:
        """Where they asked: context ids, of direct messages empty."""
        places = ("" if one.direct else f"{one.connector}:{one.place or one.external_id}" for one in self.messages)
        return tuple(dict.fromkeys(places))


_REQUEST = TypeAdapter(Request)


class Pairing:
    """The requests. Every method raises `StoreUnavailable` when Redis cannot be reached.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock

    async def ask(
        self, user: str, name: str, workspace_id: str, message: InboundMessage | None = None
    ) -> Request | None:
        """The request of *user* (``connector:user_id``), begun where there is none, with *message* kept in it. An edit
        changes what is kept. None where too many wait already."""
        end = _end(workspace_id, user)
        while True:
            stored, request = await self._load(end)
            if request is None or request.state == "approved":
                if not stored and await self._redis.scard(_INDEX) >= MAX_PENDING and not await self._drop_ended():
                    return None
                code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))
                request = Request(user, name, workspace_id, code, self._clock() + CODE_SECONDS)
            if request.state == "denied":
                return request
            wanted = request if message is None else _with(request, message)
            if (stored and wanted == request) or await self._swap(end, stored, wanted):
                return self._aged(wanted)

    async def withdraw(self, workspace_id: str, message: InboundMessage) -> None:
        """Keep a message no longer that was deleted. Not every platform says whose it was."""
        for request in await self._all():
            if request.workspace_id == workspace_id and any(_is_same(one, message) for one in request.messages):
                await self._withdraw(_end(workspace_id, request.user), message)

    async def _withdraw(self, end: str, message: InboundMessage) -> None:
        while True:
            stored, request = await self._load(end)
            if request is None:
                return
            kept = tuple(one for one in request.messages if not _is_same(one, message))
            if kept == request.messages or await self._swap(end, stored, replace(request, messages=kept)):
                return

    async def pending(self) -> list[Request]:
        """Who waits for approval; who waits longest first."""
        waiting = [self._aged(one) for one in await self._all() if one.state == "waiting"]
        return sorted(waiting, key=lambda one: one.expires_at)

    async def decide(
        self,
        code: str,
        workspace_id: str | None,
        state: Literal["approved", "denied"],
        by: str,
        role: Role = Role.MEMBER,
    ) -> Request:
        """Approve, as *role*, or deny the request with *code*. With *workspace_id*, a code for another workspace counts
        as wrong. Raises `UnknownCode`, `AlreadyDecided` and `TooManyAttempts`."""
        tried = await self._redis.get(_ATTEMPTS)
        if tried is not None and int(tried) >= MAX_WRONG_CODES:
            raise TooManyAttempts(
                f"more than {MAX_WRONG_CODES} wrong codes were tried; wait {ATTEMPT_SECONDS // 60} minutes"
            )
        given = code.strip().upper().encode("utf-8", "surrogatepass")
        found = None
        for request in await self._all():
            if hmac.compare_digest(given, request.code.encode()) and workspace_id in (None, request.workspace_id):
                found = request
        if found is None:
            await count_within(self._redis, _ATTEMPTS, ATTEMPT_SECONDS)
            raise UnknownCode("there is no such pairing code; it may have expired")
        return await self._decide(_end(found.workspace_id, found.user), found.code, state, by, role)

    async def decide_for(self, user: str, workspace_id: str, state: Literal["approved", "denied"], by: str) -> None:
        """Likewise for the request of *user*, if one waits."""
        _, request = await self._load(end := _end(workspace_id, user))
        if request is not None and request.state == "waiting":
            await self._decide(end, request.code, state, by)

    async def _decide(
        self, end: str, code: str, state: Literal["approved", "denied"], by: str, role: Role = Role.MEMBER
    ) -> Request:
        while True:
            stored, request = await self._load(end)
            if request is None or request.code != code:
                raise UnknownCode("there is no such pairing code; it may have expired")
            if request.state != "waiting":
                raise AlreadyDecided(request)
            decided = replace(request, state=state, by=by, role=role, expires_at=self._clock() + CODE_SECONDS)
            if await self._swap(end, stored, decided, unsettled=True):
                return decided

    async def unsettled(self) -> list[Request]:
        """Requests that were decided, and whose people were not told yet, or not answered."""
        found = []
        for end in [str(end) for end in await self._redis.smembers(_UNSETTLED)]:
            _, request = await self._load(end)
            if request is None or request.state == "waiting":
                await self._redis.srem(_UNSETTLED, end)
            else:
                found.append(request)
        return found

    async def settled(self, request: Request) -> None:
        """The person of *request* was told, and what they asked is being answered: its messages are forgotten."""
        end = _end(request.workspace_id, request.user)
        stored, now = await self._load(end)
        if now is not None and now.code == request.code:
            await self._swap(end, stored, replace(now, messages=()))
        await self._redis.srem(_UNSETTLED, end)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Drop the requests to a workspace that is deleted."""
        for request in await self._all():
            if request.workspace_id == workspace_id:
                await self._drop([_end(workspace_id, request.user)])

    async def _all(self) -> list[Request]:
        """All requests whose time is not over."""
        ends = sorted(str(end) for end in await self._redis.smembers(_INDEX))
        stored = await self._redis.mget([_key(end) for end in ends]) if ends else []
        return [one for one in map(self._read, stored) if one is not None]

    async def _load(self, end: str) -> tuple[str, Request | None]:
        stored = await self._redis.get(_key(end))
        return "" if stored is None else str(stored), self._read(stored)

    def _read(self, stored: str | bytes | None) -> Request | None:
        if stored is None:
            return None
        request = _REQUEST.validate_json(stored)
        if request.v > _VERSION:
            raise NewerFormat(f"a pairing request has version {request.v}; this runtime reads {_VERSION}: upgrade it")
        return request if request.expires_at > self._clock() else None

    def _aged(self, request: Request) -> Request:
        return replace(request, expires_in_seconds=math.ceil(request.expires_at - self._clock()))

    async def _swap(self, end: str, stored: str, request: Request, *, unsettled: bool = False) -> bool:
        """Put *request* in the place of what was *stored*; False where that has changed meanwhile."""
        left = max(1, math.ceil(request.expires_at - self._clock()))
        packed = _REQUEST.dump_json(request).decode()
        mark = "1" if unsettled else "0"
        keys = (_key(end), _INDEX, _UNSETTLED)
        return bool(await self._redis.eval(_SWAP, 3, *keys, stored, packed, str(left), end, mark))

    async def _drop_ended(self) -> bool:
        """Whether there is room for another request, once those are dropped whose time is over."""
        alive = {_end(one.workspace_id, one.user) for one in await self._all()}
        await self._drop([end for one in await self._redis.smembers(_INDEX) if (end := str(one)) not in alive])
        return len(alive) < MAX_PENDING

    async def _drop(self, ends: list[str]) -> None:
        if ends:
            await self._redis.srem(_INDEX, *ends)
            await self._redis.srem(_UNSETTLED, *ends)
            await self._redis.delete(*map(_key, ends))


def _with(request: Request, message: InboundMessage) -> Request:
    """*request* with *message* kept in it, as far as there is room."""
    if any(_is_same(one, message) for one in request.messages):
        same = replace(message, kind=InboundKind.MESSAGE)
        kept = tuple(same if _is_same(one, message) else one for one in request.messages)
        if message.kind is not InboundKind.EDIT:
            return request
    elif message.kind is InboundKind.EDIT or len(request.messages) >= MAX_MESSAGES:
        return request
    else:
        kept = (*request.messages, message)
    wanted = replace(request, messages=kept)
    return wanted if len(_REQUEST.dump_json(wanted)) <= MAX_BYTES else request


def _is_same(one: InboundMessage, other: InboundMessage) -> bool:
    """Platforms number messages anew in each place."""
    return (one.connector, one.external_id, one.message_id) == (other.connector, other.external_id, other.message_id)


async def count_within(redis: Redis, key: str, seconds: int) -> int:
    """Count one more under *key*; how many there were since the first, at most *seconds* ago."""
    return int(await redis.eval(_COUNT, 1, key, str(seconds)))


def person_field(user: str) -> str:
    """*user* (``connector:user_id``) as part of a key or a hash's field."""
    connector, _, rest = user.partition(":")
    return f"{connector}:{encode_id(rest)}"


def _end(workspace_id: str, user: str) -> str:
    return f"{workspace_id}/{person_field(user)}"


def _key(end: str) -> str:
    return redis_key("pairing", "{access}", "request", end)
