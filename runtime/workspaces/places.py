"""What was settled for single places of the platforms: when the bot answers there, which model it asks, what it does
with messages that arrive while it answers, and whether replies end with their sources.

Keys (owner ``places``, under the workspace's tag): ``settled``, a hash of place to its settings. A place is a context
id (``slack:C1/1712.0001``), a route key (``slack:T1/C1``), or ``*`` for the whole workspace.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from connectors.message import ConversationKey, InboundMessage, Scope, redis_key
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


_OWNER = "places"
_FORMAT = 1

Answering = Literal["addressed", "all", "never"]
"""In a group: what is addressed to the bot, everything, or nothing (commands always are)."""
QueueMode = Literal["collect", "interrupt", "followup"]
"""What arrives while an answer is made is answered together in the next turn (``collect``), made part of this one,
which begins again (``interrupt``), or answered one by one (``followup``)."""
QUEUE_MODES: tuple[QueueMode, ...] = get_args(QueueMode)
EVERYWHERE = "*"
"""The place that stands for all of a workspace."""
MAX_PLACE_CHARACTERS = 1000
"""Of a place that a program names."""
ANSWERING: tuple[Answering, ...] = get_args(Answering)


@dataclass(frozen=True, slots=True)
class Settled:
    """What holds in a place; None where nothing was settled, so that the settings decide."""

    answering: Answering | None = None
    model: str | None = None
    """The configured model that is asked first."""
    queue: QueueMode | None = None
    sources: bool | None = None
    """Whether replies end with the sources they used."""


class Places:
    """The settings of all places. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def of_message(self, key: ConversationKey, message: InboundMessage) -> Settled:
        """What holds where *message* was said: each setting as the most specific place has it. One round trip.

        Raises `runtime.stores.NewerFormat`.
        """
        settled = Settled()
        for one in await self._stored(key.scope, tuple(dict.fromkeys((key.context_id, *message.routes, EVERYWHERE)))):
            settled = Settled(
                answering=one.answering if settled.answering is None else settled.answering,
                model=one.model if settled.model is None else settled.model,
                queue=one.queue if settled.queue is None else settled.queue,
                sources=one.sources if settled.sources is None else settled.sources,
            )
        return settled

    async def get(self, scope: Scope, place: str) -> Settled:
        """What was settled for *place* itself. Raises `runtime.stores.NewerFormat`."""
        (found,) = await self._stored(scope, (place,))
        return found

    async def put(self, scope: Scope, place: str, settled: Settled) -> None:
        """Let *settled* hold in *place*; nothing settled forgets the place."""
        if settled == Settled():
            await self._redis.hdel(_key(scope), place)
            return
        await self._redis.hset(_key(scope), place, pack(_FORMAT, **asdict(settled)))

    async def settle(self, key: ConversationKey, message: InboundMessage, **changes: Any) -> str:
        """Change fields of `Settled` for the place in which *message* was said; that place.

        For a thread that is its channel, where the platform names it so in ``routes``. Of two changes at the same
        moment the later one wins.
        """
        place = place_of(key, message)
        await self.put(key.scope, place, replace(await self.get(key.scope, place), **changes))
        if place != key.context_id:
            # What was settled for the conversation itself would hide it.
            own = await self.get(key.scope, key.context_id)
            if own != Settled():
                await self.put(key.scope, key.context_id, replace(own, **dict.fromkeys(changes)))
        return place

    async def all(self, scope: Scope) -> dict[str, Settled]:
        """Every place of a workspace for which something was settled, by name."""
        stored: Any = await self._redis.hgetall(_key(scope))
        return {place: _unpacked(stored[place]) for place in sorted(stored)}

    async def forget_workspace(self, scope: Scope) -> None:
        """Drop what was settled in a workspace that is deleted."""
        await self._redis.delete(_key(scope))

    async def _stored(self, scope: Scope, places: tuple[str, ...]) -> list[Settled]:
        stored: Any = await self._redis.hmget(_key(scope), list(places))
        return [_unpacked(one) for one in stored]


def place_of(key: ConversationKey, message: InboundMessage) -> str:
    """The place that people mean by "here": the most specific route, else the conversation itself."""
    return message.routes[0] if message.routes else key.context_id


def _unpacked(text: str | None) -> Settled:
    if text is None:
        return Settled()
    fields = unpack(text, _FORMAT, "a place's settings")
    return Settled(fields["answering"], fields["model"], fields.get("queue"), fields.get("sources"))


def _key(scope: Scope) -> str:
    return redis_key(_OWNER, scope.tag, "settled")
