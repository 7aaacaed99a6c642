"""Calls of Redis that travel together: those of several stores, in one round trip.

A store describes what it asks for as a `RedisCall`: commands, and how their answers are understood. `RoundTrip` sends
the calls of several stores as one pipeline; `ask` sends one call alone. The commands of a trip are not atomic: each
call succeeds or fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T]):
    """What a store asks of Redis: ``commands``, and ``parse``, which makes the result of their answers."""

    commands: tuple[tuple[Any, ...], ...]
    parse: Callable[[Sequence[Any]], T]

    @classmethod
    def of(cls, *command: Any, parse: Callable[[Any], T]) -> RedisCall[T]:
        """Return the call of one *command*; *parse* gets its answer."""
        return cls((command,), lambda answers: parse(answers[0]))

    @classmethod
    def script(cls, text: str, keys: Sequence[str], args: Sequence[Any], parse: Callable[[Any], T]) -> RedisCall[T]:
        """Return the call of the Lua script *text*. Redis keeps the compiled script by its text."""
        return cls.of("EVAL", text, len(keys), *keys, *args, parse=parse)


class Answer(Generic[T]):
    """The answer to ``call``; there is none before its trip was sent."""

    def __init__(self, call: RedisCall[T]) -> None:
        self.call = call
        self._answers: Sequence[Any] | None = None

    def fill(self, answers: Sequence[Any]) -> None:
        """Take what Redis answered to the commands; an exception among *answers* fails the call."""
        self._answers = answers

    def result(self) -> T:
        """Return the call's result. Raises what its parsing raises, `connectors.message.StoreUnavailable` if Redis was
        away, and `LookupError` before the trip was sent."""
        if self._answers is None:
            raise LookupError("the trip was not sent yet")
        for answer in self._answers:
            if isinstance(answer, Exception):
                raise answer
        return self.call.parse(self._answers)


class RoundTrip:
    """Calls that are sent together, once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._answers: list[Answer[Any]] = []

    def add(self, call: RedisCall[T]) -> Answer[T]:
        """Add *call*. Its answer can be read after `send`."""
        answer = Answer(call)
        self._answers.append(answer)
        return answer

    def join(self, other: RoundTrip) -> None:
        """Add the calls of *other*: their answers come with this trip."""
        self._answers += other._answers

    async def send(self) -> None:
        """Send all calls. Never raises an error of the store: `check` and each `Answer.result` do."""
        commands = [command for answer in self._answers for command in answer.call.commands]
        if not commands:
            found: list[Any] = []
        else:
            try:
                async with self._redis.pipeline(transaction=False) as pipe:
                    for command in commands:
                        pipe.execute_command(*command)
                    found = await pipe.execute(raise_on_error=False)
            except Exception as error:  # noqa: BLE001 - whoever needs an answer meets it, and can do without
                found = [error] * len(commands)
        rest = iter(found)
        for answer in self._answers:
            answer.fill([next(rest) for _ in answer.call.commands])

    def check(self) -> None:
        """Raise the first error among the results."""
        for answer in self._answers:
            answer.result()


async def ask(redis: Redis, call: RedisCall[T]) -> T:
    """Send *call* alone and return its result. Raises what `Answer.result` raises."""
    trip = RoundTrip(redis)
    answer = trip.add(call)
    await trip.send()
    return answer.result()
