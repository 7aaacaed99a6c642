"""Hands work to one of many processes: Redis streams with a consumer group, as mailbox and outbox use them.

An entry stays with the process that was given it until it is done. One that has not been renewed for a while is given
to whoever asks for what was abandoned.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

GROUP = "workers"
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Given:
    """An entry of *stream* that this process was given."""

    stream: str
    id: str
    fields: Mapping[str, str]

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the entries of one stream by their age."""
        milliseconds, _, number = self.id.partition("-")
        return int(milliseconds), int(number)


class WorkStreams:
    """Streams by name; *consumer* is this process's name in their groups.

    Raises `connectors.message.StoreUnavailable` throughout.
    """

    def __init__(self, redis: Redis, consumer: str = "") -> None:
        self._redis = redis
        self.consumer = consumer or uuid.uuid4().hex

    async def prepare(self, streams: Iterable[str]) -> None:
        """Make the groups that are not there yet: reading makes what it misses, this saves it the detour."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xgroup_create(stream, GROUP, id="0", mkstream=True)
            # A group that is there already is an error reply; every other trouble shows when it is read.
            await pipe.execute(raise_on_error=False)

    async def offered(self, streams: Sequence[str], each: int) -> list[Given]:
        """Entries that nobody was given yet: at most *each* of every stream."""
        found = await self._each(
            streams, lambda pipe, stream: pipe.xreadgroup(GROUP, self.consumer, {stream: ">"}, count=each)
        )
        return [
            Given(stream, entry_id, fields)
            for stream, answer in zip(streams, found, strict=True)
            for entry_id, fields in _entries(answer)
        ]

    async def abandoned(self, streams: Sequence[str], silent_seconds: float) -> list[Given]:
        """Entries that were not renewed for *silent_seconds*: now given to this process."""
        idle = round(silent_seconds * 1000)
        found = await self._each(
            streams,
            lambda pipe, stream: pipe.xautoclaim(
                stream, GROUP, self.consumer, min_idle_time=idle, start_id="0-0", count=_AT_ONCE
            ),
        )
        return [
            Given(stream, entry_id, fields)
            for stream, claimed in zip(streams, found, strict=True)
            for entry_id, fields in claimed[1]
        ]

    async def renew(self, given: Iterable[Given]) -> None:
        """Say that what was given is still worked on."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for one in given:
                pipe.xclaim(one.stream, GROUP, self.consumer, 0, [one.id], justid=True)
            await pipe.execute()

    async def done(self, given: Given) -> None:
        """Take an entry away for good."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(given.stream, GROUP, given.id)
            pipe.xdel(given.stream, given.id)
            await pipe.execute()

    async def before(self, given: Given) -> list[Given]:
        """The entries of its stream that are older than *given*, whoever was given them."""
        found: Any = await self._redis.xrange(given.stream, max=f"({given.id}")
        return [Given(given.stream, entry_id, fields) for entry_id, fields in found]

    async def all(self, streams: Sequence[str]) -> list[Given]:
        """Every entry of the streams, whoever was given it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xrange(stream)
            found = await pipe.execute()
        return [
            Given(stream, entry_id, fields)
            for stream, entries in zip(streams, found, strict=True)
            for entry_id, fields in entries
        ]

    async def _each(self, streams: Sequence[str], command: Callable[[Any, str], object]) -> list[Any]:
        """The answers to *command* for each of *streams*, with a group made wherever the server has none."""
        if not streams:
            return []
        answers = dict(zip(streams, await self._asked(streams, command), strict=True))
        groupless = [stream for stream, answer in answers.items() if str(answer).startswith("NOGROUP")]
        if groupless:
            await self.prepare(groupless)
            answers |= dict(zip(groupless, await self._asked(groupless, command), strict=True))
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return [answers[stream] for stream in streams]

    async def _asked(self, streams: Sequence[str], command: Callable[[Any, str], object]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                command(pipe, stream)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        return answers


def _entries(answer: Any) -> Sequence[tuple[str, Mapping[str, str]]]:
    """The entries in the answer of a read of one stream, in whichever of redis-py's shapes."""
    if not answer:
        return []
    ((_, entries),) = answer.items() if isinstance(answer, dict) else answer
    if entries and isinstance(entries[0], list):  # wrapped once more under RESP3
        entries = entries[0]
    found: Sequence[tuple[str, Mapping[str, str]]] = entries
    return found
