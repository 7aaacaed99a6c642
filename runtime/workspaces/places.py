"""Settings of single places: when the bot answers there, which model it asks first, what it does with messages that
arrive while it answers, and whether replies end with their sources.

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
"""What the bot answers in a group: what is addressed to it, everything, or nothing; commands always."""
QueueMode = Literal["collect", "interrupt", "followup"]
"""Messages that arrive while an answer is written are answered together in the next turn (``collect``), become part of
this turn, which begins again (``interrupt``), or are answered one by one (``followup``)."""
QUEUE_MODES: tuple[QueueMode, ...] = get_args(QueueMode)
EVERYWHERE = "*"
"""The place that stands for the whole workspace."""
MAX_PLACE_CHARACTERS = 1000
"""The longest place that a program may name."""
ANSWERING: tuple[Answering, ...] = get_args(Answering)


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """The settings of a place; None leaves a field to the next larger place, and at last to the configuration."""

    answering: Answering | None = None
    model: str | None = None
    """The configured model that is asked first."""
    queue: QueueMode | None = None
    sources: bool | None = None
    """Whether replies end with the sources they used."""


class Places:
    """The settings of all places. All methods raise `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def settings_for(self, key: ConversationKey, message: InboundMessage) -> PlaceSettings:
        """Return the settings for *message*: each field from the most specific place that sets it.

        Raises `runtime.stores.NewerFormat`.
        """
        places = tuple(dict.fromkeys((key.context_id, *message.routes, EVERYWHERE)))
        fields: dict[str, Any] = {}
        for settings in reversed(await self._load(key.scope, places)):
            fields |= {name: value for name, value in asdict(settings).items() if value is not None}
        return PlaceSettings(**fields)

    async def get(self, scope: Scope, place: str) -> PlaceSettings:
        """Return the settings of *place* itself. Raises `runtime.stores.NewerFormat`."""
        (settings,) = await self._load(scope, (place,))
        return settings

    async def put(self, scope: Scope, place: str, settled: PlaceSettings) -> None:
        """Store the settings of *place*; empty ones are deleted."""
        if settled == PlaceSettings():
            await self._redis.hdel(_key(scope), place)
            return
        await self._redis.hset(_key(scope), place, pack(_FORMAT, **asdict(settled)))

    async def settle(self, key: ConversationKey, message: InboundMessage, **changes: Any) -> str:
        """Change fields of `PlaceSettings` for the place of *message* (`place_of`), and return that place."""
        place = place_of(key, message)
        await self.put(key.scope, place, replace(await self.get(key.scope, place), **changes))
        if place != key.context_id:
            # Settings of the conversation itself would hide the change.
            own = await self.get(key.scope, key.context_id)
            if own != PlaceSettings():
                await self.put(key.scope, key.context_id, replace(own, **dict.fromkeys(changes)))
        return place

    async def all(self, scope: Scope) -> dict[str, PlaceSettings]:
        """Return the settings of all places of a workspace that have any, by name."""
        stored: Any = await self._redis.hgetall(_key(scope))
        return {place: _unpack(stored[place]) for place in sorted(stored)}

    async def forget_workspace(self, scope: Scope) -> None:
        """Delete the settings of a workspace that is deleted."""
        await self._redis.delete(_key(scope))

    async def _load(self, scope: Scope, places: tuple[str, ...]) -> list[PlaceSettings]:
        stored: Any = await self._redis.hmget(_key(scope), list(places))
        return [_unpack(text) for text in stored]


def place_of(key: ConversationKey, message: InboundMessage) -> str:
    """Return the place that people mean by "here": the most specific route, else the conversation itself."""
    return message.routes[0] if message.routes else key.context_id


def _unpack(text: str | None) -> PlaceSettings:
    if text is None:
        return PlaceSettings()
    fields = unpack(text, _FORMAT, "a place's settings")
    return PlaceSettings(fields["answering"], fields["model"], fields.get("queue"), fields.get("sources"))


def _key(scope: Scope) -> str:
    return redis_key(_OWNER, scope.tag, "settled")
