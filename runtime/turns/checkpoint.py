"""What a turn has paid for already, so that it is not paid for again when another worker goes on with it.

A turn goes accepted → grounded → (model round → tools)* → completed → stored for delivery → recorded. What it was
accepted with is in the mailbox, what it was grounded on in its manifest, its reply in the outbox; here stands what lies
between.

Keys (owner ``journal``, in the conversation's partition): ``turn`` one hash per turn: ``words:<n>`` of its n-th message
if voice was written down, ``round:<n>`` the answer of its n-th model call and how many messages that answers: a
question that has grown since is another one, and its answer has to be asked for; ``tool:<messages>:<round>:<place>``
what came of one tool call of such an answer, or by whom it was begun.

Each write may be done again, and changes nothing then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import Superseded, redis_key
from runtime.llm import Completion
from runtime.stores import pack, retry_until_stored, unpack
from runtime.turns.batch import Batch
from runtime.turns.rounds import Result, Round

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "journal"
_VERSION = 1
_KEPT_SECONDS = 24 * 3600
_COMPLETION = TypeAdapter(Completion)
_RESULT = TypeAdapter(Result)
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


@dataclass(frozen=True, slots=True)
class TurnCheckpoint:
    """How far a turn has come: the words of its messages by their place, the answers it has from the model, and what
    their tool calls brought by round and place; None for one that was begun and of which nobody knows the end."""

    words: Mapping[int, str] = field(default_factory=dict)
    completions: tuple[Completion, ...] = ()
    results: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)

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


class Checkpoints:
    """The checkpoints of all turns. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(_WRITE)
        self._begin = redis.register_script(_BEGIN)

    async def load(self, batch: Batch) -> TurnCheckpoint:
        """Load how far the turn of *batch* has come. Raises `runtime.stores.NewerFormat`."""
        stored: Any = await self._redis.hgetall(_key(batch))
        words: dict[int, str] = {}
        completions: list[Completion] = []
        results: dict[tuple[int, int], Result | None] = {}
        tools = f"tool:{len(batch.envelopes)}:"
        for step in sorted(stored):
            if step.startswith("words"):
                said = unpack(stored[step], _VERSION, "a turn's checkpoint")["words"]
                words |= {int(place): text for place, text in said.items()}
            elif step.startswith(tools):
                number, place = map(int, step.removeprefix(tools).split(":"))
                result = unpack(stored[step], _VERSION, "a turn's checkpoint")["result"]
                results[number, place] = None if result is None else _RESULT.validate_json(json.dumps(result))
        while (text := stored.get(f"round:{len(completions)}")) is not None:
            fields = unpack(text, _VERSION, "a turn's checkpoint")
            if fields.get("messages", len(batch.envelopes)) != len(batch.envelopes):
                break
            completions.append(_COMPLETION.validate_python(fields["completion"]))
        return TurnCheckpoint(words, tuple(completions), results)

    async def save_words(self, batch: Batch, words: Mapping[int, str]) -> None:
        """Save what the messages of *batch* say, by their place. Raises `connectors.message.Superseded`."""
        step = f"words:{min(words)}"  # those before stand there already
        await self._save(batch, step, pack(_VERSION, words={str(place): said for place, said in words.items()}))

    async def save_answer(self, batch: Batch, number: int, completion: Completion) -> None:
        """Save the answer of the model's call *number* (from 0). Raises `connectors.message.Superseded`."""
        answer = _COMPLETION.dump_python(completion, mode="json")
        await self._save(batch, f"round:{number}", pack(_VERSION, completion=answer, messages=len(batch.envelopes)))

    async def begin_tool(self, batch: Batch, number: int, place: int) -> bool:
        """Say that a tool is called for the *place*-th call of round *number*; False if another said so. Repeats until
        the store has it. Raises `connectors.message.Superseded`."""
        mine = pack(_VERSION, result=None, by=uuid.uuid4().hex)
        args: list[str | int] = [batch.fence.token, _tool(batch, number, place), mine, _KEPT_SECONDS]
        begun = await retry_until_stored(lambda: self._begin(keys=[_key(batch), batch.fence.name], args=args))
        if begun == -1:
            raise Superseded("another worker holds the conversation now")
        return bool(begun)

    async def save_tool_result(self, batch: Batch, number: int, place: int, result: Result) -> None:
        """Save what came of that call. Raises `connectors.message.Superseded`."""
        dumped = _RESULT.dump_python(result, mode="json")
        await self._save(batch, _tool(batch, number, place), pack(_VERSION, result=dumped))

    async def delete(self, batch: Batch) -> None:
        """Delete the checkpoint: the turn is over."""
        await self._redis.delete(_key(batch))

    async def _save(self, batch: Batch, step: str, text: str) -> None:
        written = await self._write(
            keys=[_key(batch), batch.fence.name], args=[batch.fence.token, step, text, _KEPT_SECONDS]
        )
        if written == -1:
            raise Superseded("another worker holds the conversation now")


def _tool(batch: Batch, number: int, place: int) -> str:
    return f"tool:{len(batch.envelopes)}:{number}:{place}"


def _key(batch: Batch) -> str:
    return redis_key(_OWNER, batch.key.tag, "turn", batch.key.encoded, batch.turn_id)
