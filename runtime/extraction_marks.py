"""How far each conversation was looked through for records, and what of that is still to be kept.

Keys (owner ``extraction``, in the conversation's partition): ``mark`` a hash with the turns and entries that were
looked through, and what was found in the last of them until all of it is kept. So a job that is done again asks nobody
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, redis_key
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import Provenance, Type
from grounding.memory.records.said import Extracted
from grounding.transcript.entry import Reach
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "extraction"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was found, and whose it is to be: a person's, or, empty, the workspace's."""

    owner: str
    record: Extracted


@dataclass(frozen=True, slots=True)
class Mark:
    """What was looked through, and what is still to be kept of it."""

    reach: Reach = field(default_factory=Reach)
    waiting: tuple[Found, ...] = ()


class ExtractionMarks:
    """The marks of all conversations. Raises `connectors.message.StoreUnavailable` and `runtime.stored.NewerFormat`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def read(self, keys: Sequence[ConversationKey]) -> list[Mark]:
        """The mark of each of *keys*; an empty one where there is none."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(_name(key), ["turns", "entries", "waiting"])
            found: Any = await pipe.execute() if keys else []
        return [Mark(Reach(int(turns or 0), int(entries or 0)), _read(waiting)) for turns, entries, waiting in found]

    async def looked(self, key: ConversationKey, reach: Reach, found: Sequence[Found]) -> None:
        """*key* was looked through as far as *reach*, and *found* is to be kept."""
        mark: dict[Any, Any] = {
            "turns": reach.turns,
            "entries": reach.entries,
            "waiting": _packed(found) if found else "",
        }
        await self._redis.hset(_name(key), mapping=mark)

    async def kept(self, key: ConversationKey) -> None:
        """What was found is kept."""
        await self._redis.hset(_name(key), "waiting", "")

    async def forget_turn(self, key: ConversationKey, turn_id: str, reach: Reach) -> None:
        """*key* is *reach* since that turn of it was forgotten: what is said from now on is not looked through yet, and
        what was found in the turn is not kept."""
        (mark,) = await self.read([key])
        if mark != Mark():
            shorter = Reach(min(mark.reach.turns, reach.turns), min(mark.reach.entries, reach.entries))
            await self.looked(key, shorter, [one for one in mark.waiting if one.record.by.turn_id != turn_id])

    async def forget(self, key: ConversationKey) -> None:
        """Drop the mark, and what was found and is not kept yet."""
        await self._redis.delete(_name(key))


def _name(key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "mark", key.encoded)


def _packed(found: Sequence[Found]) -> str:
    rows = [
        {
            "owner": one.owner,
            "new": asdict(one.record.new),
            "by": one.record.by.model_dump(mode="json"),
            "key": one.record.key,
        }
        for one in found
    ]
    return pack(_VERSION, found=rows)


def _read(packed: str | None) -> tuple[Found, ...]:
    if not packed:
        return ()
    rows: list[dict[str, Any]] = unpack(packed, _VERSION, "what was found in a conversation")["found"]
    return tuple(
        Found(
            row["owner"],
            Extracted(
                NewRecord(**{**row["new"], "type": Type(row["new"]["type"])}),
                Provenance.model_validate_json(json.dumps(row["by"])),
                row["key"],
            ),
        )
        for row in rows
    )
