"""Tells people which of their messages were not taken, so that they know what to send again: the first at once, those
that come soon after it together.

What is still to be told waits in this process, and in the store, from where another tells it should this one die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from connectors.message import ConversationKey, InboundMessage, StoreUnavailable
from connectors.text.split import cluster_edge
from runtime.identifiers import new_turn_id
from runtime.not_taken import NotTaken, Refused
from runtime.stored import NewerFormat
from runtime.waits import in_words

QUIET_SECONDS = 4.0
"""How long after the last one nothing more may come before people are told of all of them."""
LONGEST_SECONDS = 30.0
"""How long somebody who goes on writing waits to be told."""
TICK_SECONDS = 0.5
LAST_SECONDS = 2.0
"""How long telling may take at the end of the process."""
LOOK_SECONDS = 60.0
"""How often it is looked for what was left untold; what is younger somebody who lives may still tell."""
AGAIN_SECONDS = 1.0
EXACT_SECONDS = 90
"""What is longer is told as people say it."""
MOST_NAMED = 5
BEGINNING_CHARACTERS = 80
_log = structlog.get_logger()

Say = Callable[[ConversationKey, str, Refused, str], Awaitable[None]]
"""Says something in a place, because of a message and perhaps others before it; once for an id. Raises
`connectors.message.StoreUnavailable`."""


@dataclass
class _Later:
    """What was not taken of one person in one place; by the loop's clock: since when, lately, and when to try again.
    ``why`` is empty where they know it."""

    key: ConversationKey
    since: float
    why: str = ""
    messages: list[Refused] = field(default_factory=list)
    last: float = 0.0
    again_at: float = 0.0
    id: str = field(default_factory=new_turn_id)
    """Of these messages, so that they are told once, whoever tells them and though the store's answer be lost."""
    keeping: int = 0
    """How many of them are being kept; what is told under the id is told with all of them."""


class Refusals:
    """What is said of messages that were not taken, by *say*; *kept* has those of which nobody was told yet.

    *alone* says that what another process has kept is left of one that ended.
    """

    def __init__(self, kept: NotTaken, say: Say, *, alone: bool) -> None:
        self._kept = kept
        self._say = say
        self._alone = alone
        self._later: dict[tuple[str, str], _Later] = {}
        self._due: dict[str, _Later] = {}
        """What is to be told now, by its id."""
        self._news = asyncio.Event()

    async def tell(self, key: ConversationKey, message: InboundMessage, why: str, seconds: int, *, first: bool) -> None:
        """Tell whoever wrote *message* that it was not taken, and *why*; that it is to be sent again in *seconds*.
        Where they know why, because it is not the *first*, they are told a little later. Once, though a platform bring
        it twice: when this returns it is certain that they will be told.

        Raises `connectors.message.StoreUnavailable`.
        """
        now = asyncio.get_running_loop().time()
        one = _Later(key, now, why) if first else self._of(key, message, now)
        refused = Refused(message.message_id, beginning(message), None if message.direct else message.message_id)
        is_known = refused in one.messages
        if not is_known:
            one.messages.append(refused)  # it may be kept though nobody is told so: then it is told with these
        one.last, one.again_at = now, now + seconds
        self._news.set()
        one.keeping += 1
        try:
            is_new = await self._kept.keep(key, refused, one.id, one.why, seconds)
        finally:
            one.keeping -= 1
        if not is_new and not is_known:
            one.messages.remove(refused)
        elif is_new and first:
            self._due[one.id] = one
            await self._tell(one)

    def _of(self, key: ConversationKey, message: InboundMessage, now: float) -> _Later:
        """Those with which *message* is told. Of what a process that stood still for long has not told, another has."""
        who = key.encoded, message.author.id
        one = self._later.get(who)
        if one is None or now - one.since >= LONGEST_SECONDS:
            if one is not None:
                self._due[one.id] = one
            one = self._later[who] = _Later(key, now, last=now)
        return one

    async def run(self) -> None:
        """Tell what is due, and what processes that ended have left, until cancelled; then all that is left."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell_what_is_left())
                group.create_task(self._tell_in_time())
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._tell_due(at_once=True)

    async def _tell_in_time(self) -> NoReturn:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._later or self._due:
                await asyncio.sleep(TICK_SECONDS)
                await self._tell_due()

    async def _tell_what_is_left(self) -> NoReturn:
        while True:
            wait = LOOK_SECONDS
            try:
                for left in await self._kept.left(LOOK_SECONDS, 0.0 if self._alone else LOOK_SECONDS):
                    text = _not_taken(left.refused, left.seconds, left.why)
                    await self._say(left.key, text, left.refused[-1], left.id)
                    await self._kept.over(left.key, left.refused)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
                wait = AGAIN_SECONDS
            except NewerFormat as error:
                _log.warning("store.degraded", store="missed", why=str(error))
            await asyncio.sleep(wait)

    async def _tell_due(self, *, at_once: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        for who, one in list(self._later.items()):
            is_due = at_once or now - one.last >= QUIET_SECONDS or now - one.since >= LONGEST_SECONDS
            if is_due and not one.keeping:
                del self._later[who]
                self._due[one.id] = one
        for one in list(self._due.values()):
            await self._tell(one)

    async def _tell(self, one: _Later) -> None:
        """Tell *one*, or leave it due until the store is back: under its id, for it may be stored all the same."""
        if one.keeping:
            return
        seconds = max(0, round(one.again_at - asyncio.get_running_loop().time()))
        try:
            if one.messages:  # else all of them were told before
                await self._say(one.key, _not_taken(one.messages, seconds, one.why), one.messages[-1], one.id)
                await self._kept.over(one.key, one.messages)
        except StoreUnavailable as error:
            _log.warning("store.degraded", store="redis", why=str(error))
        else:
            self._due.pop(one.id, None)


def _not_taken(messages: Sequence[Refused], seconds: int, why: str) -> str:
    """That *messages* were not taken, and *why*, with how each begins."""
    many = len(messages) > 1
    what = f"these {len(messages)} messages" if many else "this message"
    what = f"{why} I could not accept {what}" if why else f"I could not accept {what} either"
    when = "" if not seconds else f" in {seconds} s" if seconds <= EXACT_SECONDS else f" {in_words(seconds)}"
    named = [f"> `{one.beginning}`" for one in messages[:MOST_NAMED]]
    if len(messages) > MOST_NAMED:
        named.append(f"> and {len(messages) - MOST_NAMED} more")
    lines = "\n>\n".join(named)
    return f"{what}. Please send {'them' if many else 'it'} again{when}:\n\n{lines}"


def beginning(message: InboundMessage) -> str:
    """How *message* begins, in a line without marks of Markdown that end a quotation. Pure."""
    words = " ".join(message.text.replace("`", "'").split())
    words = words or ", ".join(one.name.replace("`", "'") for one in message.attachments) or "…"
    if len(words) <= BEGINNING_CHARACTERS:
        return words
    return words[: cluster_edge(words, BEGINNING_CHARACTERS)].rstrip() + " …"
