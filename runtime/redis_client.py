"""The client of one Redis server: what is asked of it in one pass of the event loop shares a round trip.

Its errors are those of `runtime.stores`: `connectors.message.StoreUnavailable` where the store cannot be reached.
"""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from redis import exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.commands.core import AsyncScript

from connectors.message import StoreUnavailable
from runtime.ahead import MISSING, Command, reading
from runtime.batching import Batching, Told
from runtime.redis_connections import Pool, as_unavailable, blocking_seconds, translated, why_unavailable

MOST_TOGETHER = 64
"""A pipeline of more commands has a round trip of its own: short questions do not wait for long answers."""
MAX_BATCHES = 8
"""Round trips for commands that may be on their way at a time, and at most half of the connections: however many are
issued, the rest is left to pipelines, subscriptions and commands that wait. What comes meanwhile gathers: fewer and
larger round trips, where there is much to do."""


class _PubSub(PubSub):
    async def connect(self) -> None:
        with translated():
            await super().connect()

    async def _execute(self, *args: Any, **options: Any) -> Any:
        with translated():
            return await super()._execute(*args, **options)


class _Pipeline(Pipeline):
    """What it gathers goes out with what others ask for in the same pass, unless it is a transaction."""

    def __init__(self, client: Client, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        with translated():
            return await super().immediate_execute_command(*args, **options)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = self.command_stack
        turn = reading()
        with translated():
            by_itself = self.is_transaction or self.explicit_transaction or self.watching or self.scripts or not stack
            if by_itself or len(stack) > MOST_TOGETHER or not all(_goes_together(*command) for command in stack):
                if turn is not None:
                    turn.end()
                return await super().execute(raise_on_error)
            try:
                answers = [MISSING] if turn is None else [turn.answer(*command) for command in stack]
                if any(answer is MISSING for answer in answers):
                    answers = await self._client.together([(args, options) for args, options in stack])
            finally:
                await self.reset()
            if raise_on_error:
                self.raise_first_error(stack, answers)
            return answers

    async def reset(self) -> None:  # type: ignore[override]
        if self.connection is None and not self.watching:  # nothing to tell the server of, and nothing to give back
            self.command_stack, self.scripts, self.explicit_transaction = [], set(), False
            return
        with translated():
            await super().reset()

    def annotate_exception(self, exception: Exception, number: int, command: Any) -> None:
        """Name the command, but not its arguments: they may hold what people wrote."""
        name = next(iter(command), "")
        exception.args = (f"{exception} (command {number} of the pipeline, {name})", *exception.args[1:])


class Client(Redis):
    """Redis whose outages are `StoreUnavailable`. Commands that are issued in the same pass of the event loop share a
    round trip, as in a pipeline: each still succeeds or fails by itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        half = self.connection_pool.max_connections // 2
        self._batching = Batching(self._execute_all, max(1, min(half, MAX_BATCHES)), self._begin_all)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if (turn := reading()) is not None and (known := turn.answer(args, options)) is not MISSING:
            return known
        if not _goes_together(args, options):
            with translated():
                return await super().execute_command(*args, **options)
        (answer,) = await self._batching.call([(args, options)])
        if isinstance(answer, Exception):
            raise _told_alone(answer)
        return answer

    def hasten(self) -> None:
        """See `runtime.batching.Batching.hasten`."""
        self._batching.hasten()

    async def together(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to *commands*, in their order; for each an error where it failed."""
        answers: list[Any] = await self._batching.call(commands)
        return answers

    def beside(self, commands: Sequence[Command], told: Callable[[Sequence[Any]], None]) -> Beside:
        """A client for one script that asks *commands* behind it; *told* is given their answers with the script's."""
        return Beside(self, commands, told)

    async def _execute_all(self, asked: list[Sequence[Command]]) -> list[Any]:
        """The answers to what each caller asks. Raises `StoreUnavailable` and what cannot be sent."""
        try:
            answers = iter(await self._exchange([command for commands in asked for command in commands]))
        except (errors.DataError, UnicodeEncodeError):  # one that cannot be sent; none of them was
            if len(asked) == 1:
                raise
            return [await self._answers_or_error(commands) for commands in asked]
        return [[next(answers) for _ in commands] for commands in asked]

    def _begin_all(self, asked: list[Sequence[Command]], told: Told) -> bool:
        """`_execute_all` without a task, where a connection is at hand; False where there is none, or what is asked
        cannot be sent: the other way says so to whoever asked it."""
        pool: Any = self.connection_pool  # by redis-py's declaration any that it has
        if not isinstance(pool, Pool) or (connection := pool.at_hand()) is None:
            return False
        commands = [command for of_one in asked for command in of_one]

        def read(result: list[Any] | Exception) -> None:
            if under_way.pushed:
                self._batching.aside(connection.heed(under_way.pushed))
            if not pool.take_back(connection):
                self._batching.aside(pool.release(connection))
            if isinstance(result, Exception):
                told(as_unavailable(result) or result)
                return
            answers = iter(result)
            try:
                found = [self._read_all(answers, of_one) for of_one in asked]
            except Exception as error:  # noqa: BLE001 - redis-py cannot read an answer: whoever asked is told
                told(error)
            else:
                told(found)

        try:
            under_way = connection.begin([args for args, _ in commands], read)
        except Exception:  # noqa: BLE001 - the other way raises it, to whoever it concerns
            if not pool.take_back(connection):
                self._batching.aside(pool.release(connection))
            return False
        return True

    async def _answers_or_error(self, commands: Sequence[Command]) -> list[Any] | Exception:
        try:
            return await self._exchange(commands)
        except Exception as error:  # noqa: BLE001 - it is raised by whoever issued the commands
            return error

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        with translated():
            connection: Any = await self.connection_pool.get_connection()
            try:
                answers = await connection.exchange([args for args, _ in commands])
            finally:
                await self.connection_pool.release(connection)
        return self._read_all(iter(answers), commands)

    def _read_all(self, answers: Iterator[Any], commands: Sequence[Command]) -> list[Any]:
        """As many of *answers* as there are *commands*, each as redis-py gives it to whoever asks by its methods."""
        callbacks: Any = self.response_callbacks
        found: list[Any] = []
        for args, options in commands:
            answer = next(answers)
            if isinstance(answer, Exception):
                answer = options.get(EMPTY_RESPONSE, answer)
            # By names in capitals: that is all that redis-py's own method adds, for a call of Python each.
            elif (callback := dict.get(callbacks, args[0].upper())) is not None:
                rest = options and {name: one for name, one in options.items() if name not in (EMPTY_RESPONSE, "keys")}
                answer = callback(answer, **rest)
            found.append(answer)
        return found

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _Pipeline(self, transaction, shard_hint)

    def register_script(self, script: Any) -> AsyncScript:  # type: ignore[override]
        return _Script(self, script)

    def pubsub(self, **options: Any) -> PubSub:
        return _PubSub(self.connection_pool, event_dispatcher=self._event_dispatcher, **options)


class _Script(AsyncScript):
    """A script that is asked for in one step. Redis-py's own way has an import and two more calls between, and a turn
    asks for ten."""

    async def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        if client is not None:
            return await super().__call__(keys, args, client)
        keys, ask = keys or (), self.registered_client.execute_command
        try:
            return await ask("EVALSHA", self.sha, len(keys), *keys, *(args or ()))
        except errors.NoScriptError:
            return await super().__call__(keys, args)


class Beside:
    """What redis-py's scripts need of a client; see `Client.beside`."""

    def __init__(self, client: Client, commands: Sequence[Command], told: Callable[[Sequence[Any]], None]) -> None:
        self._client = client
        self._commands = commands
        self._told = told

    async def evalsha(self, *args: Any) -> Any:
        answer, *others = await self._client.together([(("EVALSHA", *args), {}), *self._commands])
        if isinstance(answer, Exception):
            raise _told_alone(answer)
        self._told(others)
        return answer

    async def script_load(self, script: Any) -> Any:
        return await self._client.script_load(script)


def _goes_together(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a command may share a round trip: not if the server may hold its answer back, or if that is no text."""
    return NEVER_DECODE not in options and not blocking_seconds(args)


def _told_alone(answer: Any) -> Any:
    """*answer* of a pipeline as it would have been of the command alone."""
    why = why_unavailable(answer) if isinstance(answer, Exception) else None
    return answer if why is None else StoreUnavailable(f"Redis: {why}")
