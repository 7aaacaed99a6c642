"""A reply in the making: what there is of it, and what it was made of as far as that came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from connectors.message import OutboundMessage
from runtime import replies
from runtime.envelopes import Batch
from runtime.exchange import Completion
from runtime.journal import Done
from runtime.question import Built
from runtime.rounds import Result, Round, said
from runtime.senses import Heard
from runtime.spending import Payer, Reservation


@dataclass(slots=True)
class Made:
    """A reply, and what it was made of as far as that came. ``batch`` has the words of its voice messages."""

    batch: Batch
    reply: OutboundMessage
    built: Built | None = None
    rounds: list[Round] = field(default_factory=list)
    """The model's calls that wanted tools."""
    completion: Completion | None = None
    """The call that ended them."""
    heard: list[Heard] = field(default_factory=list)
    """The recordings that were written down for it, as soon as they are."""
    first: str | None = None
    """The model that is asked first, if not the one of the settings."""
    pending: Reservation | None = None
    """What was reserved for the call that is being made."""
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
        )

    @property
    def payer(self) -> Payer:
        """Who pays for the calls of the turn."""
        return Payer(self.batch.key.scope, self.batch.user)

    def written(self, text: str) -> str:
        """What was written by the call that is being made, where *text* was written in all."""
        return text.removeprefix(said(self.rounds)).lstrip("\n") if self.rounds else text


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
