"""Calls of Redis that travel together: those of several stores, in one round trip.

A store describes what it asks for as a `RedisCall`: commands, and how their answers are understood. `RoundTrip` sends
the calls of several stores as one pipeline; `ask` sends one call alone. The commands of a trip are not atomic: each
call succeeds or fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from connectors.message import StoreUnavailable

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
    """The answer to a call; there is none before its trip was sent."""

    def __init__(self, call: RedisCall[T]) -> None:
        self._call = call
        self._answers: Sequence[Any] | None = None
        self._error: Exception | None = None

    def fill(self, answers: Sequence[Any]) -> None:
        """Take what Redis answered to the commands; an exception among *answers* fails the call."""
        self._answers = answers
        self._error = next((answer for answer in answers if isinstance(answer, Exception)), None)

    def fail(self, error: Exception) -> None:
        """Let the call fail with *error*."""
        self._error = error

    def result(self) -> T:
        """Return the call's result. Raises what its parsing raises, `connectors.message.StoreUnavailable` if Redis was
        away, and `LookupError` before the trip was sent."""
        if self._error is not None:
            raise self._error
        if self._answers is None:
            raise LookupError("the trip was not sent yet")
        return self._call.parse(self._answers)


class RoundTrip:
    """Calls that are sent together, once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._answers: list[tuple[RedisCall[Any], Answer[Any]]] = []

    def add(self, call: RedisCall[T]) -> Answer[T]:
        """Add *call*. Its answer can be read after `send`."""
        answer = Answer(call)
        self._answers.append((call, answer))
        return answer

    async def send(self) -> None:
        """Send all calls. Never raises an error of the store: each `Answer.result` does."""
        calls, self._answers = self._answers, []
        if not calls:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for call, _ in calls:
                    for command in call.commands:
                        pipe.execute_command(*command)
                found = iter(await pipe.execute(raise_on_error=False))
        except StoreUnavailable as error:
            for _, answer in calls:
                answer.fail(error)
            return
        for call, answer in calls:
            answer.fill([next(found) for _ in call.commands])


async def ask(redis: Redis, call: RedisCall[T]) -> T:
    """Send *call* alone and return its result. Raises what `Answer.result` raises."""
    trip = RoundTrip(redis)
    answer = trip.add(call)
    await trip.send()
    return answer.result()
