"""Tells people which of their messages were not taken, so that they know what to send again: the first at once, those
that come soon after it together.

What is still to be told is kept in this process, and told at its orderly end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from connectors.message import ConversationKey, InboundMessage, StoreUnavailable
from connectors.text.split import cluster_edge
from runtime.identifiers import new_turn_id

QUIET_SECONDS = 4.0
"""How long after the last one nothing more may come before people are told of all of them."""
LONGEST_SECONDS = 30.0
"""How long somebody who goes on writing waits to be told."""
TICK_SECONDS = 0.5
LAST_SECONDS = 2.0
"""How long telling may take at the end of the process."""
MOST_NAMED = 5
BEGINNING_CHARACTERS = 80
_log = structlog.get_logger()

Say = Callable[[ConversationKey, str, Sequence[InboundMessage], str], Awaitable[None]]
"""Says something in a place, because of messages; once for an id, if given. Raises
`connectors.message.StoreUnavailable`."""


@dataclass
class _Later:
    """What was not taken of one person in one place; by the loop's clock: since when, lately, and when to try again."""

    key: ConversationKey
    since: float
    messages: list[InboundMessage] = field(default_factory=list)
    last: float = 0.0
    again_at: float = 0.0
    id: str = ""
    """Of these messages, so that they are told once, though the store's answer be lost."""


class Refusals:
    """What is said of messages that were not taken, by *say*."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._later: dict[tuple[str, str], _Later] = {}
        self._news = asyncio.Event()

    async def tell(self, key: ConversationKey, message: InboundMessage, why: str, seconds: int, *, first: bool) -> None:
        """Tell whoever wrote *message* that it was not taken, and *why*; that it is to be sent again in *seconds*.
        Where they know why, because it is not the *first*, they are told a little later.

        Raises `connectors.message.StoreUnavailable`.
        """
        if first:
            await self._say(key, f"{why} {_not_taken([message], seconds)}", [message], "")
            return
        now = asyncio.get_running_loop().time()
        one = self._later.setdefault((key.encoded, message.author.id), _Later(key, since=now))
        if all(known.message_id != message.message_id for known in one.messages):  # platforms bring some twice
            one.messages.append(message)
            one.id = new_turn_id()
        one.last, one.again_at = now, now + seconds
        self._news.set()

    async def run(self) -> None:
        """Tell what is due until cancelled; then all that is left."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._later:
                    await asyncio.sleep(TICK_SECONDS)
                    await self._tell_due()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._tell_due(at_once=True)

    async def _tell_due(self, *, at_once: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        for who, one in list(self._later.items()):
            if at_once or now - one.last >= QUIET_SECONDS or now - one.since >= LONGEST_SECONDS:
                del self._later[who]
                text = _not_taken(one.messages, max(0, round(one.again_at - now)), either=True)
                try:
                    await self._say(one.key, text, one.messages, one.id)
                except StoreUnavailable as error:
                    _log.warning("store.degraded", store="redis", why=str(error))
                    self._tell_again(who, one)

    def _tell_again(self, who: tuple[str, str], one: _Later) -> None:
        """Have *one* told when the store may be back, with what was not taken meanwhile."""
        meanwhile = self._later.get(who)
        if meanwhile is not None:
            meanwhile.messages[:0] = one.messages
        else:
            one.since = one.last = asyncio.get_running_loop().time()
            self._later[who] = one


def _not_taken(messages: list[InboundMessage], seconds: int, *, either: bool = False) -> str:
    """That *messages* were not taken, with how each begins."""
    many, also = len(messages) > 1, " either" if either else ""
    what = f"these {len(messages)} messages" if many else "this message"
    when = f" in {seconds} s" if seconds else ""
    named = [f"> `{beginning(one)}`" for one in messages[:MOST_NAMED]]
    if len(messages) > MOST_NAMED:
        named.append(f"> and {len(messages) - MOST_NAMED} more")
    lines = "\n>\n".join(named)
    return f"I have not taken {what}{also}. Please send {'them' if many else 'it'} again{when}:\n\n{lines}"


def beginning(message: InboundMessage) -> str:
    """How *message* begins, in a line without marks of Markdown that end a quotation. Pure."""
    words = " ".join(message.text.replace("`", "'").split())
    words = words or ", ".join(one.name.replace("`", "'") for one in message.attachments) or "…"
    if len(words) <= BEGINNING_CHARACTERS:
        return words
    return words[: cluster_edge(words, BEGINNING_CHARACTERS)].rstrip() + " …"
