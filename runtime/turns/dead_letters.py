"""Dead letters: turns that failed for good, kept until a person tries them again or drops them.

A turn becomes a dead letter when the worker gives it up: after ``TURN_MAX_ATTEMPTS`` unexpected errors or
``TURN_MAX_CRASHES`` crashes. If only the model failed, the turn is answered by an apology, and is no dead letter.

Keys (owner ``dead``, under the workspace's tag): ``letters``, a hash of turns to their messages and why they were given
up. The newest `KEPT` of a workspace are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, ConversationKey, Scope, redis_key
from runtime.coordination import Hub
from runtime.stores import pack, unpack
from runtime.turns.batch import Batch, Envelope, Lane
from runtime.turns.mailbox import Mailbox
from runtime.turns.worker import notify_worker

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "dead"
_VERSION = 1
KEPT = 1000
_PAGE = 1000
"""The workspaces whose letters are counted by one command."""
_ENVELOPES = TypeAdapter(tuple[Envelope, ...])
_log = structlog.get_logger()


class UnknownLetter(AgentRuntimeError):
    """The workspace has no dead letter of that turn, or a person has dealt with it already."""

    user_text = "No turn with this turn id has failed for good."


@dataclass(frozen=True, slots=True)
class Letter:
    """A turn that was given up: its messages, why, after how many attempts, and when (epoch seconds)."""

    turn_id: str
    key: ConversationKey
    why: str
    attempts: int
    at: float
    envelopes: tuple[Envelope, ...]
    lane: Lane = Lane.TURNS


class DeadLetters:
    """The letters of all workspaces. Raises `connectors.message.StoreUnavailable` throughout.

    *mailboxes* get the messages that are tried again; *hub* announces them to the workers. The newest *kept* of a
    workspace are kept.
    """

    def __init__(self, redis: Redis, mailboxes: Mapping[Lane, Mailbox], hub: Hub, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._redis = redis
        self._mailboxes = mailboxes
        self._hub = hub

    async def add(self, batch: Batch, why: str, lane: Lane = Lane.TURNS) -> None:
        """Store *batch* as a dead letter. Calling it again does no harm."""
        packed = pack(
            _VERSION,
            key=batch.key.encoded,
            why=why,
            attempts=batch.attempt,
            at=time.time(),
            lane=lane.value,
            envelopes=_ENVELOPES.dump_python(batch.envelopes, mode="json"),
        )
        name = _key(batch.key.scope)
        await self._redis.hset(name, batch.turn_id, packed)
        if await self._redis.hlen(name) > self._kept:
            oldest = min(await self._redis.hkeys(name))  # turn ids sort by time
            if await self._redis.hdel(name, oldest):
                _log.warning("letter.dropped", workspace_id=batch.key.workspace_id, turn_id=oldest, why="too_many")

    async def all(self, scope: Scope) -> list[Letter]:
        """Return the letters of a workspace, the oldest first. Raises `runtime.stores.NewerFormat`."""
        stored: Any = await self._redis.hgetall(_key(scope))
        return [_letter(turn_id, stored[turn_id]) for turn_id in sorted(stored)]

    async def get(self, scope: Scope, turn_id: str) -> Letter:
        """Return one letter. Raises `UnknownLetter` and `runtime.stores.NewerFormat`."""
        stored: Any = await self._redis.hget(_key(scope), turn_id)
        if stored is None:
            raise _unknown(scope, turn_id)
        return _letter(turn_id, stored)

    async def retry(self, scope: Scope, turn_id: str) -> Letter:
        """Put the messages of a letter back into their mailbox, so that a new turn answers them, and delete the letter.

        The new turn has an id of its own, so that the apology, which is stored under the old id, is not taken for its
        reply. A retry that is interrupted and repeated, or made twice, is answered once. Raises `UnknownLetter`,
        `runtime.turns.batch.MailboxFull` (the letter stays) and `runtime.stores.NewerFormat`.
        """
        letter = await self.get(scope, turn_id)
        if await self._mailboxes[letter.lane].put_back(letter.key, turn_id, letter.envelopes):
            await notify_worker(self._hub, letter.lane, letter.key)
            _log.info("letter.retried", **_about(letter), collected=len(letter.envelopes))
        await self._redis.hdel(_key(scope), turn_id)
        return letter

    async def drop(self, scope: Scope, turn_id: str) -> None:
        """Delete a letter. Raises `UnknownLetter`."""
        if not await self._redis.hdel(_key(scope), turn_id):
            raise _unknown(scope, turn_id)
        _log.info("letter.dropped", workspace_id=scope.workspace_id, turn_id=turn_id, why="asked")

    async def forget(self, key: ConversationKey, turn_id: str = "") -> None:
        """Delete the letter of a turn of *key*, or without a turn id all letters of *key*: people want it forgotten."""
        if turn_id:
            await self._redis.hdel(_key(key.scope), turn_id)
            return
        # It reads all letters of the workspace, at most `KEPT`.
        stored: Any = await self._redis.hgetall(_key(key.scope))
        own = [turn for turn, text in stored.items() if key.encoded in text and _letter(turn, text).key == key]
        if own:
            await self._redis.hdel(_key(key.scope), *own)

    async def counts(self, workspace_ids: Iterable[str]) -> dict[str, int]:
        """Return how many letters each workspace has, without workspaces that have none."""
        names = list(workspace_ids)
        counts: dict[str, int] = {}
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in page:
                    pipe.hlen(_key(Scope(name)))
                counts |= dict(zip(page, await pipe.execute(), strict=True))
        return {name: number for name, number in counts.items() if number}


def _unknown(scope: Scope, turn_id: str) -> UnknownLetter:
    return UnknownLetter(f"no turn {turn_id!r} is among the dead letters of workspace {scope.workspace_id!r}")


def _about(letter: Letter) -> dict[str, str]:
    key = letter.key
    return {
        "workspace_id": key.workspace_id,
        "context_id": key.context_id,
        "connector": key.connector,
        "turn_id": letter.turn_id,
    }


def _letter(turn_id: str, text: str) -> Letter:
    fields = unpack(text, _VERSION, "a dead letter")
    return Letter(
        turn_id,
        ConversationKey.decode(fields["key"]),
        fields["why"],
        fields["attempts"],
        fields["at"],
        _ENVELOPES.validate_python(fields["envelopes"]),
        Lane(fields.get("lane", "")),
    )


def _key(scope: Scope) -> str:
    return redis_key(_OWNER, scope.tag, "letters")
