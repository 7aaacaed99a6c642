"""A reply in the making: what there is of it, and what it was made of as far as that came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connectors.message import OutboundMessage, StoreUnavailable, Usage
from runtime import replies
from runtime.envelopes import Batch
from runtime.journal import Done
from runtime.llm import Completion, Transcription, Tries
from runtime.question import Built
from runtime.rounds import Result, Round, said


@dataclass(slots=True)
class Made:
    """A reply, and what it was made of as far as that came. ``batch`` has the words of its voice messages."""

    batch: Batch
    reply: OutboundMessage
    built: Built | None = None
    rounds: list[Round] = field(default_factory=list)
    """The model's calls that wanted tools."""
    settled: int = 0
    """How many of them are known to be counted."""
    completion: Completion | None = None
    """The call that ended them."""
    heard: list[Transcription] = field(default_factory=list)
    """The recordings that were written down for it, as soon as they are."""
    first: str | None = None
    """The model that is asked first, if not the one of the settings."""
    asked: bool = False
    """Whether a model is being asked, which costs whatever comes of it, or has given its last answer."""
    sent: int = 0
    """What that call takes of a prompt, in tokens, by our estimate."""
    tries: Tries = field(default_factory=Tries)
    """Its attempts."""
    noted: str = ""
    """The id of the last call of which whoever takes the turn up knows that it was begun (`runtime.journal.Begun`)."""
    lost: Usage = field(default_factory=Usage)
    """What attempts of all its calls took that brought no answer."""
    keeps: Callable[[], asyncio.Future[Any]] | None = None
    """Begins to keep its prompt."""
    keeping: asyncio.Future[Any] | None = None
    """The same, once it was begun."""
    known: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)
    """What an interrupted attempt left of tool calls, by round and place: see `Done.results`."""

    @classmethod
    def of(cls, batch: Batch, done: Done) -> Made:
        """What is there of *batch*'s reply when its turn is taken up."""
        return cls(
            _as_heard(batch, done),
            replies.draft(batch),
            rounds=done.rounds,
            completion=done.last,
            known=done.results,
            lost=done.lost,
        )

    def keep(self) -> None:
        """Begin to keep what the model is asked, if that is not done or under way. Nobody need wait for it before there
        is an answer: while the model writes there is time."""
        if self.keeps is not None and (self.keeping is None or _failed(self.keeping)):
            self.keeping = self.keeps()

    async def kept(self) -> None:
        """`keep`, and wait until it is done. Raises `connectors.message.StoreUnavailable`; whoever asks again then has
        it kept again."""
        self.keep()
        if self.keeping is not None:
            await asyncio.shield(self.keeping)  # who gives up waiting does not give it up
            self.keeps = None  # it holds this reply, which the garbage collector alone would take apart

    def cut_off(self) -> None:
        """What is being asked will be no answer."""
        if self.asked:
            self.tries.cut_off()
        self.asked = False

    def written(self, text: str) -> str:
        """What was written by the call that is being made, where *text* was written in all."""
        return text.removeprefix(said(self.rounds)).lstrip("\n") if self.rounds else text


def _failed(keeping: asyncio.Future[Any]) -> bool:
    return keeping.done() and not keeping.cancelled() and isinstance(keeping.exception(), StoreUnavailable)


def _as_heard(batch: Batch, done: Done) -> Batch:
    """*batch* with what its voice messages were found to say; they need not be listened to again."""
    if not done.words:
        return batch
    envelopes = list(batch.envelopes)
    for place, words in done.words.items():
        message = envelopes[place].message
        silent = tuple(one for one in message.attachments if one.kind != "voice")
        envelopes[place] = replace(envelopes[place], message=replace(message, text=words, attachments=silent))
    return replace(batch, envelopes=tuple(envelopes))
