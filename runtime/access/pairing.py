"""Pairing requests: what a stranger asked, the code by which an admin approves, and the decision.

Keys (owner ``pairing``, tag ``{access}``): ``request``, one for each workspace and person, which expires with the code;
``requests``, the set of their ids (``<workspace>/<person>``); ``unsettled``, the set of ids that were decided and whose
person is not told yet; ``attempts``, the number of wrong codes.
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
"""How long a pairing code is valid, and then how long the decision is remembered."""
CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without the letters and digits that look alike (0 O, 1 I L, U V)."""
CODE_LENGTH = 8
"""About 39 bits; `MAX_WRONG_CODES` bounds guessing."""
ATTEMPT_SECONDS = 600
MAX_WRONG_CODES = 20
"""Wrong codes within `ATTEMPT_SECONDS`; after that no code is compared, right or wrong."""
MAX_PENDING = 1000
"""Requests at a time; further strangers get no answer until one ends."""
MAX_MESSAGES = 3
"""Messages of one stranger that are kept until the decision."""
MAX_BYTES = 64_000
"""The size of one request with its messages."""

_VERSION = 1
_INDEX = redis_key("pairing", "{access}", "requests")
_UNSETTLED = redis_key("pairing", "{access}", "unsettled")
_ATTEMPTS = redis_key("pairing", "{access}", "attempts")

# Replace a request if nobody else has changed it meanwhile (compare and swap).
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[4])
if ARGV[5] == '1' then redis.call('SADD', KEYS[3], ARGV[4]) end
return 1
"""
_COUNT = """
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return n
"""


class UnknownCode(AgentRuntimeError):
    """The pairing code is wrong or expired."""

    user_text = "This code is not valid, or it has expired."


class AlreadyDecided(UnknownCode):
    """An admin has approved or denied the request; the text says who."""

    def __init__(self, request: PairingRequest) -> None:
        done = "let in" if request.state == "approved" else "turned away"
        super().__init__(f"{request.name or request.user} was {done} already, by {request.by or 'an admin'}")
        self.user_text = f"{self}."
        self.request = request


class TooManyAttempts(AgentRuntimeError):
    """Too many wrong codes were tried: none is compared until `ATTEMPT_SECONDS` after the first."""

    user_text = "Too many wrong codes; please try again later."


@dataclass(frozen=True, slots=True)
class PairingRequest:
    """A stranger's request to talk to the bot.

    ``messages`` are answered once the stranger is let in, as ``role``. ``by`` names the admin who decided.
    """

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
        """A name for the request that does not show its code, for events and keys."""
        return sha256(self.code.encode()).hexdigest()[:16]

    @property
    def asked_in(self) -> tuple[str, ...]:
        """The context ids in which they asked; empty for a direct message."""
        places = ("" if one.direct else f"{one.connector}:{one.place or one.external_id}" for one in self.messages)
        return tuple(dict.fromkeys(places))


_REQUEST = TypeAdapter(PairingRequest)


class Pairing:
    """The requests. All methods raise `connectors.message.StoreUnavailable`.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock

    async def ask(
        self, user: str, name: str, workspace_id: str, message: InboundMessage | None = None
    ) -> PairingRequest | None:
        """Return the request of *user* (``connector:user_id``), new if there is none, with *message* added.

        An edit changes the kept message. Returns None if `MAX_PENDING` requests wait.
        """
        request_id = _request_id(workspace_id, user)
        while True:
            stored, request = await self._load(request_id)
            if request is None or request.state == "approved":
                if not stored and await self._redis.scard(_INDEX) >= MAX_PENDING and not await self._drop_ended():
                    return None
                code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))
                request = PairingRequest(user, name, workspace_id, code, self._clock() + CODE_SECONDS)
            if request.state == "denied":
                return request
            updated = request if message is None else _add_message(request, message)
            if (stored and updated == request) or await self._swap(request_id, stored, updated):
                return self._with_time_left(updated)

    async def withdraw(self, workspace_id: str, message: InboundMessage) -> None:
        """Drop a deleted message from the requests of a workspace; not every platform names its author."""
        for request in await self._all():
            if request.workspace_id == workspace_id and any(_is_same(one, message) for one in request.messages):
                await self._withdraw(_request_id(workspace_id, request.user), message)

    async def _withdraw(self, request_id: str, message: InboundMessage) -> None:
        while True:
            stored, request = await self._load(request_id)
            if request is None:
                return
            messages = tuple(one for one in request.messages if not _is_same(one, message))
            if messages == request.messages or await self._swap(
                request_id, stored, replace(request, messages=messages)
            ):
                return

    async def pending(self) -> list[PairingRequest]:
        """Return the requests that wait for a decision, the oldest first."""
        waiting = [self._with_time_left(one) for one in await self._all() if one.state == "waiting"]
        return sorted(waiting, key=lambda one: one.expires_at)

    async def decide(
        self,
        code: str,
        workspace_id: str | None,
        state: Literal["approved", "denied"],
        by: str,
        role: Role = Role.MEMBER,
    ) -> PairingRequest:
        """Approve, as *role*, or deny the request with *code*.

        With *workspace_id*, a code for another workspace counts as wrong. Raises `UnknownCode`, `AlreadyDecided` and
        `TooManyAttempts`.
        """
        attempts = await self._redis.get(_ATTEMPTS)
        if attempts is not None and int(attempts) >= MAX_WRONG_CODES:
            raise TooManyAttempts(
                f"more than {MAX_WRONG_CODES} wrong codes were tried; wait {ATTEMPT_SECONDS // 60} minutes"
            )
        typed = code.strip().upper().encode("utf-8", "surrogatepass")
        found = None
        for request in await self._all():
            if hmac.compare_digest(typed, request.code.encode()) and workspace_id in (None, request.workspace_id):
                found = request
        if found is None:
            await count_within(self._redis, _ATTEMPTS, ATTEMPT_SECONDS)
            raise UnknownCode("there is no such pairing code; it may have expired")
        return await self._decide(_request_id(found.workspace_id, found.user), found.code, state, by, role)

    async def approve_user(self, user: str, workspace_id: str, by: str) -> None:
        """Approve the request of *user*, if one waits."""
        request_id = _request_id(workspace_id, user)
        _, request = await self._load(request_id)
        if request is not None and request.state == "waiting":
            await self._decide(request_id, request.code, "approved", by)

    async def _decide(
        self, request_id: str, code: str, state: Literal["approved", "denied"], by: str, role: Role = Role.MEMBER
    ) -> PairingRequest:
        while True:
            stored, request = await self._load(request_id)
            if request is None or request.code != code:
                raise UnknownCode("there is no such pairing code; it may have expired")
            if request.state != "waiting":
                raise AlreadyDecided(request)
            decided = replace(request, state=state, by=by, role=role, expires_at=self._clock() + CODE_SECONDS)
            if await self._swap(request_id, stored, decided, unsettled=True):
                return decided

    async def unsettled(self) -> list[PairingRequest]:
        """Return decided requests whose people are not told, or not answered, yet."""
        found = []
        for request_id in [str(request_id) for request_id in await self._redis.smembers(_UNSETTLED)]:
            _, request = await self._load(request_id)
            if request is None or request.state == "waiting":
                await self._redis.srem(_UNSETTLED, request_id)
            else:
                found.append(request)
        return found

    async def settled(self, request: PairingRequest) -> None:
        """Store that the person of *request* was told, and forget the messages."""
        request_id = _request_id(request.workspace_id, request.user)
        stored, now = await self._load(request_id)
        if now is not None and now.code == request.code:
            await self._swap(request_id, stored, replace(now, messages=()))
        await self._redis.srem(_UNSETTLED, request_id)

    async def forget_person(self, user: str, workspace_id: str) -> None:
        """Delete the request of a person, decided or not."""
        await self._drop([_request_id(workspace_id, user)])

    async def forget_workspace(self, workspace_id: str) -> None:
        """Delete the requests to a workspace that is deleted."""
        for request in await self._all():
            if request.workspace_id == workspace_id:
                await self._drop([_request_id(workspace_id, request.user)])

    async def _all(self) -> list[PairingRequest]:
        request_ids = sorted(str(request_id) for request_id in await self._redis.smembers(_INDEX))
        stored = await self._redis.mget([_key(request_id) for request_id in request_ids]) if request_ids else []
        return [one for one in map(self._read, stored) if one is not None]

    async def _load(self, request_id: str) -> tuple[str, PairingRequest | None]:
        stored = await self._redis.get(_key(request_id))
        return "" if stored is None else str(stored), self._read(stored)

    def _read(self, stored: str | bytes | None) -> PairingRequest | None:
        if stored is None:
            return None
        request = _REQUEST.validate_json(stored)
        if request.v > _VERSION:
            raise NewerFormat(f"a pairing request has version {request.v}; this runtime reads {_VERSION}: upgrade it")
        return request if request.expires_at > self._clock() else None

    def _with_time_left(self, request: PairingRequest) -> PairingRequest:
        return replace(request, expires_in_seconds=math.ceil(request.expires_at - self._clock()))

    async def _swap(self, request_id: str, stored: str, request: PairingRequest, *, unsettled: bool = False) -> bool:
        """Store *request* if the store still has *stored*; return whether it had."""
        left = max(1, math.ceil(request.expires_at - self._clock()))
        packed = _REQUEST.dump_json(request).decode()
        mark = "1" if unsettled else "0"
        keys = (_key(request_id), _INDEX, _UNSETTLED)
        return bool(await self._redis.eval(_SWAP, 3, *keys, stored, packed, str(left), request_id, mark))

    async def _drop_ended(self) -> bool:
        """Delete expired requests; return whether there is room for another one."""
        alive = {_request_id(one.workspace_id, one.user) for one in await self._all()}
        await self._drop([str(stored) for stored in await self._redis.smembers(_INDEX) if str(stored) not in alive])
        return len(alive) < MAX_PENDING

    async def _drop(self, request_ids: list[str]) -> None:
        if request_ids:
            await self._redis.srem(_INDEX, *request_ids)
            await self._redis.srem(_UNSETTLED, *request_ids)
            await self._redis.delete(*map(_key, request_ids))


def _add_message(request: PairingRequest, message: InboundMessage) -> PairingRequest:
    """Return *request* with *message* added, or an edit applied, if there is room."""
    is_known = any(_is_same(one, message) for one in request.messages)
    if is_known != (message.kind is InboundKind.EDIT):
        return request
    if is_known:
        edited = replace(message, kind=InboundKind.MESSAGE)
        messages = tuple(edited if _is_same(one, message) else one for one in request.messages)
    elif len(request.messages) < MAX_MESSAGES:
        messages = (*request.messages, message)
    else:
        return request
    updated = replace(request, messages=messages)
    return updated if len(_REQUEST.dump_json(updated)) <= MAX_BYTES else request


def _is_same(one: InboundMessage, other: InboundMessage) -> bool:
    """Compare with the place: platforms number messages anew in each."""
    return (one.connector, one.external_id, one.message_id) == (other.connector, other.external_id, other.message_id)


async def count_within(redis: Redis, key: str, seconds: int) -> int:
    """Count one more under *key*, and return the count since the first, which expires after *seconds*."""
    return int(await redis.eval(_COUNT, 1, key, str(seconds)))


def person_field(user: str) -> str:
    """Return *user* (``connector:user_id``) as part of a key or as the field of a hash."""
    connector, _, user_id = user.partition(":")
    return f"{connector}:{encode_id(user_id)}"


def _request_id(workspace_id: str, user: str) -> str:
    return f"{workspace_id}/{person_field(user)}"


def _key(request_id: str) -> str:
    return redis_key("pairing", "{access}", "request", request_id)
