"""Marked turns in Redis.

Keys (owner ``karma``, under the workspace's tag): ``kept`` is a hash of turns to their marks and exchanges. ``version``
grows with every change. ``said`` is a hash of messages (conversation and platform id) to the marked turn that they
asked for or are the reply of.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from connectors.message import AgentRuntimeError, ConversationKey, Scope, encode_id, redis_key
from connectors.redis_calls import RedisCall
from grounding.memory.karma.marks import Marked, read
from grounding.transcript import UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


_OWNER = "karma"
KEPT_AT_MOST = 1000
"""Most marked turns of a workspace. Turns without a counting mark are dropped first, then the oldest that are no
examples, then the oldest."""
_ATTEMPTS = 16
_MANY = 50
"""More turns than this are parsed in a thread."""

_WRITE = """
-- KEYS: kept, version, said. ARGV: turn, its stored value now or '', its new value or '', number of messages to remove
-- and these messages, then messages to add
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
local gone = tonumber(ARGV[4])
for at = 5, 4 + gone do redis.call('HDEL', KEYS[3], ARGV[at]) end
for at = 5 + gone, #ARGV do redis.call('HSET', KEYS[3], ARGV[at], ARGV[1]) end
local clock = redis.call('TIME')
local now, was = clock[1] * 1000000 + clock[2], tonumber(redis.call('GET', KEYS[2]) or '0')
redis.call('SET', KEYS[2], string.format('%.0f', math.max(now, was + 1)))
return 1
"""


class MarkBusy(AgentRuntimeError):
    """Many are marking the turn at this moment; try again."""

    retryable = True


class MarkStore:
    """The marked turns of all workspaces, *most* of each.

    Every method raises `connectors.message.StoreUnavailable` and `grounding.transcript.entry.UnknownFormat`.
    """

    def __init__(self, redis: Redis, most: int = KEPT_AT_MOST) -> None:
        self._redis = redis
        self._most = most
        self._write = redis.register_script(_WRITE)

    def version_call(self, scope: Scope) -> RedisCall[int]:
        """Return the call that reads the version, which grows with every change; 0 if nothing was ever marked.

        It is a time, so a workspace that was deleted and created again never returns to an old version.
        """
        return RedisCall.of("GET", _key(scope, "version"), parse=lambda version: int(version or 0))

    async def all(self, scope: Scope) -> tuple[int, list[Marked]]:
        """Return the version and all marked turns."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(_key(scope, "version"))
            pipe.hgetall(_key(scope, "kept"))
            version, kept = await pipe.execute()
        packed = [kept[turn_id] for turn_id in sorted(kept)]
        if len(packed) > _MANY:
            return int(version or 0), await asyncio.to_thread(lambda: [_read(one) for one in packed])
        return int(version or 0), [_read(one) for one in packed]

    async def get(self, scope: Scope, turn_id: str) -> Marked | None:
        """Return a marked turn, or None."""
        return (await self._read_turn(scope, turn_id))[1]

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """Return the marked turn of the platform's message *message_id*; empty if there is none."""
        return str(await self._redis.hget(_key(key.scope, "said"), _message(key, message_id)) or "")

    async def change(self, scope: Scope, turn_id: str, step: Callable[[Marked | None], Marked | None]) -> Marked | None:
        """Replace a stored turn by the result of *step* (None deletes it) and return that result.

        *step* may be called several times. Raises `MarkBusy`.
        """
        for _ in range(_ATTEMPTS):
            packed, before = await self._read_turn(scope, turn_id)
            after = step(before)
            if after == before:
                return before
            gone = _messages(before) - _messages(after)
            written = await self._write(
                keys=[_key(scope, name) for name in ("kept", "version", "said")],
                args=[
                    turn_id,
                    packed,
                    "" if after is None else after.model_dump_json(),
                    len(gone),
                    *sorted(gone),
                    *sorted(_messages(after)),
                ],
            )
            if written:
                if before is None:
                    await self._trim(scope)
                return after
        raise MarkBusy("this reply is being marked by many at once: try again")

    async def unsettled(self, scope: Scope) -> list[Marked]:
        """Return the turns whose audience an earlier version did not store."""
        kept: Any = await self._redis.hgetall(_key(scope, "kept"))
        return [_read(packed) for packed in kept.values() if "reach" in (json.loads(packed).get("exchange") or ())]

    async def settle(self, scope: Scope, marked: Marked, place: str) -> bool:
        """Set the audience of one of `unsettled` to *place*. Returns False if it no longer exists."""

        def settled(before: Marked | None) -> Marked | None:
            exchange = before.exchange if before else None
            if before is None or exchange is None:
                return before
            return before.model_copy(update={"exchange": exchange.model_copy(update={"audience": place})})

        return await self.change(scope, marked.turn_id, settled) is not None

    async def forget(self, scope: Scope, turn_ids: Iterable[str]) -> int:
        """Delete the marks of turns; return how many turns had some."""
        count = 0
        for turn_id in turn_ids:
            count += await self.get(scope, turn_id) is not None
            await self.change(scope, turn_id, lambda _: None)
        return count

    async def forget_conversation(self, key: ConversationKey) -> int:
        """Delete all marks of a conversation; return their number."""
        _, kept = await self.all(key.scope)
        return await self.forget(key.scope, [one.turn_id for one in kept if one.conversation == key.encoded])

    async def _read_turn(self, scope: Scope, turn_id: str) -> tuple[str, Marked | None]:
        """Return a turn in stored and in parsed form."""
        packed: Any = await self._redis.hget(_key(scope, "kept"), turn_id)
        return packed or "", None if packed is None else _read(packed)

    async def _trim(self, scope: Scope) -> None:
        if await self._redis.hlen(_key(scope, "kept")) <= self._most:
            return
        _, kept = await self.all(scope)
        kept.sort(key=lambda one: (one.is_marked, one.is_good, one.marked_on, one.turn_id))
        await self.forget(scope, [one.turn_id for one in kept[: len(kept) - self._most]])


def _messages(marked: Marked | None) -> set[str]:
    if marked is None:
        return set()
    asked_in = marked.exchange.asked_in if marked.exchange else ()
    return {_message(marked.key, one) for one in (*marked.messages, *asked_in)}


def _message(key: ConversationKey, message_id: str) -> str:
    return f"{key.encoded}/{encode_id(message_id)}"


def _key(scope: Scope, name: str) -> str:
    return redis_key(_OWNER, scope.tag, name)


def _read(packed: str) -> Marked:
    try:
        return read(packed)
    except ValidationError as error:
        version = json.loads(packed).get("v")
        if version == 1:
            raise
        raise UnknownFormat(f"a mark has version {version!r}; this runtime reads 1: upgrade it") from error
