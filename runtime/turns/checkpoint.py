"""Checkpoints: what a turn has paid for already, so that another worker can resume it without paying again.

A turn goes accepted → grounded → (model round → tools)* → completed → stored for delivery → recorded. Its messages are
in the mailbox, its prompt in the manifest, its reply in the outbox. The checkpoint has the results in between.

Keys (owner ``journal``, in the conversation's partition): ``turn``, one hash per turn with the fields

- ``words:<n>``: the transcribed text of its n-th message, if that was a voice message.
- ``round:<n>``: the answer of its n-th model call, which wants tools or got a warning, and how many messages that
  answers. If the question has grown since, the answer is not used. The last answer is stored as the reply.
- ``tool:<messages>:<round>:<place>``: the result of one tool call of such an answer, or which process began it.

A repeated write changes nothing.
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
    """The progress of a turn: the transcribed words of its messages by their place, the model's answers, and the
    results of tool calls by round and place. A result is None if the call was begun and its end is not known."""

    words: Mapping[int, str] = field(default_factory=dict)
    completions: tuple[Completion, ...] = ()
    results: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)

    @property
    def rounds(self) -> list[Round]:
        """The answers with tool calls, each with its results if all are known, and the drafts that got a warning."""
        return [
            Round(completion, self._results_of(number, len(completion.tool_calls)))
            for number, completion in enumerate(self.completions)
            if completion.tool_calls or completion.warned
        ]

    def _results_of(self, number: int, calls: int) -> tuple[Result, ...]:
        results = [self.results.get((number, place)) for place in range(calls)]
        known = tuple(result for result in results if result is not None)
        return known if len(known) == calls else ()


class Checkpoints:
    """The checkpoints of all turns. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(_WRITE)
        self._begin = redis.register_script(_BEGIN)

    async def load(self, batch: Batch) -> TurnCheckpoint:
        """Return the checkpoint of *batch*. Raises `runtime.stores.NewerFormat`."""
        stored: Any = await self._redis.hgetall(_key(batch))
        words: dict[int, str] = {}
        completions: list[Completion] = []
        results: dict[tuple[int, int], Result | None] = {}
        tools = f"tool:{len(batch.envelopes)}:"
        for step in sorted(stored):
            if step.startswith("words"):
                by_place = unpack(stored[step], _VERSION, "a turn's checkpoint")["words"]
                words |= {int(place): text for place, text in by_place.items()}
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
        """Save the transcribed words of messages, by their place. Raises `connectors.message.Superseded`."""
        step = f"words:{min(words)}"  # those of earlier places are stored already
        await self._save(batch, step, pack(_VERSION, words={str(place): text for place, text in words.items()}))

    async def save_answer(self, batch: Batch, number: int, completion: Completion) -> None:
        """Save the answer of the model's call *number* (from 0). Raises `connectors.message.Superseded`."""
        answer = _COMPLETION.dump_python(completion, mode="json")
        await self._save(batch, f"round:{number}", pack(_VERSION, completion=answer, messages=len(batch.envelopes)))

    async def begin_tool(self, batch: Batch, number: int, place: int) -> bool:
        """Note that the call at *place* of round *number* begins. Return False if another process noted that before.
        Repeats until it is stored. Raises `connectors.message.Superseded`."""
        mine = pack(_VERSION, result=None, by=uuid.uuid4().hex)
        args: list[str | int] = [batch.fence.token, _tool(batch, number, place), mine, _KEPT_SECONDS]
        begun = await retry_until_stored(lambda: self._begin(keys=[_key(batch), batch.fence.name], args=args))
        if begun == -1:
            raise Superseded("another worker holds the conversation now")
        return bool(begun)

    async def save_tool_result(self, batch: Batch, number: int, place: int, result: Result) -> None:
        """Save the result of that call. Raises `connectors.message.Superseded`."""
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
