"""What a turn is likely to read is read in the round trip of the step that begins it.

The turns of a conversation mostly begin by asking the store for the same things, word for word. What the last two of
them asked is asked for the next one behind the step that begins it, and answers whoever asks for it then: each module
goes on asking for what is its own, and need not know of the others, nor of this.

An answer holds until its turn writes anything, and for `FRESH_SECONDS` at most: after that the store itself is asked,
as it is for all that nobody foresaw. What is asked ahead changes nothing, or nothing that a turn does
not change anyway. On a cluster nothing is asked ahead: there a round trip is a partition's.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from connectors.message import ConversationKey

FRESH_SECONDS = 1.0
"""As old may be what a turn goes by: what was so when it began."""
MOST_AHEAD = 32
"""Commands of one turn."""
KNOWN_AT_MOST = 1000
"""Conversations of which it is known what their turns ask."""

Words = tuple[Any, ...]
Command = tuple[Words, Mapping[str, Any]]
"""A command's words, and what is needed to read its answer; see `runtime.redis_client`."""
MISSING = object()
"""What stands for an answer that was not foreseen."""

_READS = frozenset(
    {
        "EXISTS", "GET", "GETEX", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HVALS", "LLEN", "LRANGE",
        "MGET", "SCARD", "SISMEMBER", "SMEMBERS", "STRLEN", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZRANGE", "ZSCORE",
    }
)  # fmt: skip
"""Commands that change nothing but how long something is kept."""
_TELLS = frozenset({"PUBLISH", "SPUBLISH"})
"""Those that neither read nor write."""


class AsksBeside(Protocol):
    """A client that asks further commands in the round trip of a script."""

    def beside(self, commands: Sequence[Command], told: Callable[[Sequence[Any]], None]) -> Any: ...


class Ahead:
    """What is known beforehand of one turn's reads, and what it does read until it writes: then it is over."""

    __slots__ = ("_answers", "_is_over", "_is_read", "_read_at", "asked", "commands")

    def __init__(self, commands: Sequence[Command], is_read: Callable[[Words], bool]) -> None:
        self.commands = commands
        self.asked: dict[Words, Mapping[str, Any]] = {}
        """What the turn has read so far, in its order."""
        self._is_read = is_read
        self._answers: dict[Words, Any] = {}
        self._read_at = 0.0
        self._is_over = False

    def told(self, answers: Sequence[Any]) -> None:
        """Take *answers* to all ``commands``. One that failed is asked for again by whoever wants it."""
        self._read_at = time.monotonic()
        pairs = zip(self.commands, answers, strict=True)
        self._answers = {words: answer for (words, _), answer in pairs if not isinstance(answer, Exception)}

    def answer(self, words: Words, options: Mapping[str, Any]) -> Any:
        """The answer to a command of the turn, or `MISSING`. One that writes ends this."""
        if self._is_over:
            return MISSING
        try:
            if not self._is_read(words):
                if words[0] not in _TELLS:
                    self.end()
                return MISSING
            if len(self.asked) < MOST_AHEAD:
                self.asked[words] = options
            answer = self._answers.get(words, MISSING)
            if isinstance(answer, list | dict | set):  # whoever is given it may change it
                del self._answers[words]
        except TypeError:  # what cannot be compared was not foreseen
            return MISSING
        return answer if time.monotonic() - self._read_at < FRESH_SECONDS else MISSING

    def end(self) -> None:
        """From now on the store is asked."""
        self._is_over, self._answers = True, {}


class Foresight:
    """What the turns of conversations are likely to read. *client* asks it; of scripts those of *scripts* may be asked
    ahead, by their text."""

    def __init__(self, client: AsksBeside, scripts: Collection[str] = ()) -> None:
        self._client = client
        self._scripts = frozenset(hashlib.sha1(one.encode()).hexdigest() for one in scripts)  # noqa: S324 - their name
        self._habits: OrderedDict[ConversationKey, tuple[tuple[Command, ...], Mapping[Words, Mapping[str, Any]]]] = (
            OrderedDict()
        )
        """By conversation: what its last two turns read, and what the last one did."""

    def of(self, key: ConversationKey) -> Ahead:
        """What the next turn of *key* is likely to read; nobody has asked for it yet."""
        habit = self._habits.get(key)
        return Ahead(habit[0] if habit else (), self._is_read)

    def beside(self, ahead: Ahead) -> Any:
        """A client by which a script is to be run, so that *ahead* is asked for behind it; None where there is nothing
        to ask."""
        return self._client.beside(ahead.commands, ahead.told) if ahead.commands else None

    @contextmanager
    def turn(self, key: ConversationKey, ahead: Ahead | None) -> Iterator[None]:
        """Inside a turn of *key* is answered: by *ahead*, as far as that goes."""
        reading = ahead or Ahead((), self._is_read)
        before = _READING.set(reading)
        try:
            yield
        finally:
            _READING.reset(before)
            reading.end()
            self._learn(key, reading.asked)

    def _learn(self, key: ConversationKey, asked: Mapping[Words, Mapping[str, Any]]) -> None:
        _, last = self._habits.pop(key, ((), {}))
        self._habits[key] = tuple(one for one in asked.items() if one[0] in last), asked
        if len(self._habits) > KNOWN_AT_MOST:
            self._habits.popitem(last=False)

    def _is_read(self, words: Words) -> bool:
        return words[0] in _READS or (words[0] == "EVALSHA" and words[1] in self._scripts)


_READING: ContextVar[Ahead | None] = ContextVar("reading", default=None)


def reading() -> Ahead | None:
    """What is known beforehand of the turn in which this is asked; None outside of turns."""
    return _READING.get()
