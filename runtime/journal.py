"""What a turn has paid for already, so that it is not paid for again when another worker goes on with it.

A turn goes accepted → grounded → (model round → tools)* → completed → stored for delivery → recorded. What it was
accepted with is in the mailbox, what it was grounded on in its manifest, its reply in the outbox; here stands what lies
between.

Keys (owner ``journal``, in the conversation's partition): ``turn`` one hash per turn: ``words:<n>`` of its n-th message
where voice was written down, ``round:<n>`` the answer of its n-th model call and how many messages that answers: a
question that has grown since is another one, and its answer has to be asked for; ``asked:<id>`` a call of the model
that was begun (`Begun`), but for the first one, which the turn's manifest tells; ``lost:<name>`` what an attempt took
that brought none, or whose answer nobody knew to be kept; ``tool:<messages>:<round>:<place>`` what came of one tool
call of such an answer, or by whom it was begun.

Each write may be done again, and changes nothing then: where an answer of the store is lost, `surely` does it again.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from pydantic import TypeAdapter

from connectors.message import StoreUnavailable, Superseded, Usage, redis_key
from runtime.envelopes import Batch
from runtime.llm import Completion
from runtime.rounds import Result, Round, total
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "journal"
_VERSION = 1
_KEPT_SECONDS = 24 * 3600
RETRY_SECONDS = (0.1, 2.0)
"""The first and the longest pause of `surely`."""
T = TypeVar("T")
_COMPLETION = TypeAdapter(Completion)
_RESULT = TypeAdapter(Result)
_USAGE = TypeAdapter(Usage)
_WRITE = """
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] then return -1 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
_BEGIN = """
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] then return -1 end
if redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3]) == 0 then
  return redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[3] and 1 or 0
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
_log = structlog.get_logger()


async def surely(step: Callable[[], Awaitable[T]]) -> T:
    """Do *step* until the store has done it: what it keeps was paid for, and would be asked for again. It must be
    possible to do it again where only the answer was lost.

    Raises what *step* raises but for `connectors.message.StoreUnavailable`.
    """
    wait, longest = RETRY_SECONDS
    while True:
        try:
            return await step()
        except StoreUnavailable as error:
            _log.warning("store.degraded", store="redis", why=str(error))
        await asyncio.sleep(wait)
        wait = min(wait * 2, longest)


@dataclass(frozen=True, slots=True)
class Begun:
    """A call of the model that was begun: its id (`runtime.llm.Tries.id`), the model that was asked first, and how
    many tokens it was sent, by our estimate."""

    id: str
    model: str
    sent: int


_BEGUN = TypeAdapter(Begun)


@dataclass(frozen=True, slots=True)
class Done:
    """How far a turn has come: the words of its messages by their place, the answers it has from the model, and what
    their tool calls brought by round and place; None for one that was begun and of which nobody knows the end."""

    words: Mapping[int, str] = field(default_factory=dict)
    completions: tuple[Completion, ...] = ()
    results: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)
    lost: Usage = field(default_factory=Usage)
    """What attempts took that brought no answer."""
    asked: tuple[Begun, ...] = ()
    """The calls that were begun, as far as they are told here."""
    ended: frozenset[str] = frozenset()
    """The ids of those whose end is known."""

    @property
    def last(self) -> Completion | None:
        """The answer that ended the rounds, if it is there."""
        last = self.completions[-1] if self.completions else None
        return last if last is not None and not (last.tool_calls or last.warned) else None

    @property
    def rounds(self) -> list[Round]:
        """The answers that wanted tools, each with the results that are known of its first calls."""
        return [
            Round(completion, self._results_of(number, len(completion.tool_calls)))
            for number, completion in enumerate(self.completions)
            if completion.tool_calls or completion.warned
        ]

    def _results_of(self, number: int, calls: int) -> tuple[Result, ...]:
        found: list[Result] = []
        for place in range(calls):
            if (result := self.results.get((number, place))) is None:
                break
            found.append(result)
        return tuple(found) if len(found) == calls else ()


class Journal:
    """The journals of all turns. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(_WRITE)
        self._begin = redis.register_script(_BEGIN)

    async def read(self, batch: Batch) -> Done:
        """How far the turn of *batch* has come. Raises `runtime.stored.NewerFormat`."""
        stored: Any = await self._redis.hgetall(_key(batch))
        words: dict[int, str] = {}
        completions: list[Completion] = []
        lost: dict[str, Usage] = {}
        asked: list[Begun] = []
        ended: set[str] = set()
        results: dict[tuple[int, int], Result | None] = {}
        tools = f"tool:{len(batch.envelopes)}:"
        for step in sorted(stored):
            if step.startswith("words"):
                said = unpack(stored[step], _VERSION, "a turn's journal")["words"]
                words |= {int(place): text for place, text in said.items()}
            elif step.startswith("lost:"):
                usage = unpack(stored[step], _VERSION, "a turn's journal")["usage"]
                lost[step.removeprefix("lost:")] = _USAGE.validate_python(usage)
                ended.add(call_of(step.removeprefix("lost:")))
            elif step.startswith("asked:"):
                asked.append(_BEGUN.validate_python(unpack(stored[step], _VERSION, "a turn's journal")["asked"]))
            elif step.startswith("round:"):  # also those of a question that has grown since
                completion = unpack(stored[step], _VERSION, "a turn's journal")["completion"]
                ended.add(call_of(completion.get("call", "")))
            elif step.startswith(tools):
                number, place = map(int, step.removeprefix(tools).split(":"))
                result = unpack(stored[step], _VERSION, "a turn's journal")["result"]
                results[number, place] = None if result is None else _RESULT.validate_json(json.dumps(result))
        while (text := stored.get(f"round:{len(completions)}")) is not None:
            fields = unpack(text, _VERSION, "a turn's journal")
            if fields.get("messages", len(batch.envelopes)) != len(batch.envelopes):
                break
            completions.append(_COMPLETION.validate_python(fields["completion"]))
        for one in completions:  # kept after all, by a write whose answer was lost
            lost.pop(one.call, None)
        return Done(words, tuple(completions), results, total(lost.values()), tuple(asked), frozenset(ended))

    async def heard(self, batch: Batch, words: Mapping[int, str]) -> None:
        """Keep what the messages of *batch* say, by their place. Raises `connectors.message.Superseded`."""
        step = f"words:{min(words)}"  # those before stand there already
        await self._keep(batch, step, pack(_VERSION, words={str(place): said for place, said in words.items()}))

    async def completed(self, batch: Batch, number: int, completion: Completion) -> None:
        """Keep the answer of the model's call *number* (from 0). Raises `connectors.message.Superseded`."""
        answer = _COMPLETION.dump_python(completion, mode="json")
        await self._keep(batch, f"round:{number}", pack(_VERSION, completion=answer, messages=len(batch.envelopes)))

    async def asked(self, batch: Batch, begun: Begun) -> None:
        """Keep that the model is asked: should nobody see how that ends, whoever takes the turn up counts it. Raises
        `connectors.message.Superseded`."""
        await self._keep(batch, f"asked:{begun.id}", pack(_VERSION, asked=_BEGUN.dump_python(begun, mode="json")))

    async def lost(self, batch: Batch, name: str, usage: Usage) -> None:
        """Keep what an attempt took that brought no answer, by its *name* (`Completion.call`). Raises
        `connectors.message.Superseded`."""
        await self._keep(batch, f"lost:{name}", pack(_VERSION, usage=_USAGE.dump_python(usage, mode="json")))

    async def begin_tool(self, batch: Batch, number: int, place: int) -> bool:
        """Say that a tool is called for the *place*-th call of round *number*, `surely`; False where another said so.

        Raises `connectors.message.Superseded`."""
        mine = pack(_VERSION, result=None, by=uuid.uuid4().hex)
        args: list[str | int] = [batch.fence.token, _tool(batch, number, place), mine, _KEPT_SECONDS]
        begun = await surely(lambda: self._begin(keys=[_key(batch), batch.fence.name], args=args))
        if begun == -1:
            raise Superseded("another worker holds the conversation now")
        return bool(begun)

    async def tool_told(self, batch: Batch, number: int, place: int, result: Result) -> None:
        """Keep what came of that call. Raises `connectors.message.Superseded`."""
        told = _RESULT.dump_python(result, mode="json")
        await self._keep(batch, _tool(batch, number, place), pack(_VERSION, result=told))

    async def forget(self, batch: Batch) -> None:
        """The turn is over."""
        await self._redis.delete(_key(batch))

    async def _keep(self, batch: Batch, step: str, text: str) -> None:
        written = await self._write(
            keys=[_key(batch), batch.fence.name], args=[batch.fence.token, step, text, _KEPT_SECONDS]
        )
        if written == -1:
            raise Superseded("another worker holds the conversation now")


def call_of(name: str) -> str:
    """The id of the call whose attempt is called *name*. Pure."""
    return name.rpartition(".")[0]


def _tool(batch: Batch, number: int, place: int) -> str:
    return f"tool:{len(batch.envelopes)}:{number}:{place}"


def _key(batch: Batch) -> str:
    return redis_key(_OWNER, batch.key.tag, "turn", batch.key.encoded, batch.turn_id)
