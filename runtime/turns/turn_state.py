"""What a turn is asked, the prompt that was built to answer it, and how far its reply has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from connectors.message import PLACE_PREFIX, ConversationKey, OutboundMessage, Role, place_audience
from grounding.prompt import LONGEST_TOKEN_CHARACTERS, UNKNOWN, Prefix, Shown
from grounding.prompt_input import DegradedBlock, Participant, Prompt, Query, QuotedMessage, RunContext, speaker, spoken
from runtime.attachments import NOTHING, Contents
from runtime.billing import Payer, Reservation
from runtime.llm import Completion, Transcription
from runtime.turns.batch import Batch
from runtime.turns.checkpoint import TurnCheckpoint
from runtime.turns.rounds import Result, Round, said


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be answered: the batch's messages as one, and who wrote them."""

    key: ConversationKey
    text: str
    query: Query
    authors: tuple[Participant, ...]
    role: Role
    direct: bool
    audience: str | None
    """Who reads the answer, as in `connectors.message.Scope`."""
    hint: str
    degraded: tuple[DegradedBlock, ...] = ()
    vouched: bool = True
    """Whether the authors are who they are said to be: a platform says so, or a caller who is an administrator."""

    @property
    def characters(self) -> int:
        """How much there is to be put together."""
        return len(self.query.text) + sum(len(file.text) for file in self.query.files)

    @classmethod
    def of(cls, batch: Batch, contents: Contents = NOTHING) -> Question:
        """The question in *batch*, with what came with it; in a group of several authors each part is named."""
        messages = [envelope.message for envelope in batch.envelopes]
        authors = _authors(batch)
        named = len(authors) > 1
        texts = [
            spoken(speaker(message.author.name, message.author.id), message.text) if named else message.text
            for message in messages
            if message.text.strip()
        ]
        return cls(
            key=batch.key,
            text="\n\n".join(message.text for message in messages if message.text.strip()),
            query=Query(
                text="\n\n".join(texts),
                begins=_begins(texts),
                relayed=any(message.relayed for message in messages),
                quotes=tuple(
                    QuotedMessage(author=message.quote.author, text=message.quote.text)
                    for message in messages
                    if message.quote
                ),
                attachments=tuple(attachment.name for message in messages for attachment in message.attachments),
                files=contents.files,
                images=contents.shown,
            ),
            authors=tuple(authors.values()),
            role=_lowest(envelope.role for envelope in batch.envelopes),
            direct=all(message.direct for message in messages),
            audience=_audience(batch),
            hint=next((message.reply_hint for message in messages if message.reply_hint), ""),
            degraded=contents.degraded,
            vouched=all(message.is_vouched_for for message in messages),
        )

    def is_asked_by(self, context: RunContext) -> bool:
        """Whether *context* was made of this question, and not of what it was before something was added to it."""
        asked, kept = self.query, context.query
        return (
            asked.text.startswith(kept.text)  # of a very long one only the beginning was kept
            and (len(kept.text) == len(asked.text) or len(kept.text) == _limit(context))
            and kept.quotes == asked.quotes
            and kept.attachments == asked.attachments
            and context.authors == self.authors
        )


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """A prompt and all that it was built from. ``grounding_ms`` is how long that took.

    ``prefix`` is what of it stood in the conversation's prompt before, ``shown`` what the next one is to know of it,
    ``renewed`` whether its summary is of a newer context document than that one's.
    """

    context: RunContext
    prompt: Prompt
    grounding_ms: float
    prefix: Prefix = UNKNOWN
    shown: Shown | None = None
    renewed: bool = False


def _audience(batch: Batch) -> str | None:
    """That of all messages. If they differ, because a channel was opened or closed in between, the place."""
    found = {envelope.message.audience for envelope in batch.envelopes}
    places = [one for one in found if one is not None and one.startswith(PLACE_PREFIX)]
    if len(found) == 1:
        return found.pop()
    return places[0] if len(places) == 1 else place_audience(batch.key.context_id)


def _begins(texts: Sequence[str]) -> tuple[int, ...]:
    """If each of *texts* but the first begins, with a blank line between any two."""
    return tuple(accumulate(len(text) + len("\n\n") for text in texts[:-1]))


def _authors(batch: Batch) -> dict[str, Participant]:
    """The authors of *batch* by ``connector:user_id``, each with the least role that one of their messages came with:
    callers of different rights may speak for one person."""
    roles: dict[str, list[Role]] = {}
    names: dict[str, str] = {}
    for envelope in batch.envelopes:
        user = envelope.message.author.user(envelope.message.connector)
        roles.setdefault(user, []).append(envelope.role)
        names[user] = envelope.message.author.name
    return {user: Participant(user=user, name=names[user], role=_lowest(held).value) for user, held in roles.items()}


def _lowest(roles: Iterable[Role]) -> Role:
    return min(roles, key=lambda role: sum(role.covers(other) for other in Role))


def _limit(context: RunContext) -> int:
    """How many characters of a question are kept with it."""
    return context.budgets.query_tokens * LONGEST_TOKEN_CHARACTERS


@dataclass(slots=True)
class TurnState:
    """How far a turn has come: its reply, and what that is made of. ``batch`` has the words of its voice messages."""

    batch: Batch
    reply: OutboundMessage
    built: BuiltPrompt | None = None
    rounds: list[Round] = field(default_factory=list)
    """The model's calls that wanted tools."""
    completion: Completion | None = None
    """The call that ended them."""
    heard: list[Transcription] = field(default_factory=list)
    """The recordings that were transcribed for it, as soon as they are."""
    first: str | None = None
    """The model that is asked first, if not the one of the settings."""
    pending: Reservation | None = None
    """What was reserved for the call that is being made."""
    known: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)
    """What an interrupted attempt left of tool calls, by round and place: see `TurnCheckpoint.results`."""

    @classmethod
    def of(cls, batch: Batch, checkpoint: TurnCheckpoint, draft: OutboundMessage) -> TurnState:
        """Take up the turn of *batch* where *checkpoint* left it. *draft* is the reply without its text."""
        return cls(
            _with_words(batch, checkpoint),
            draft,
            rounds=checkpoint.rounds,
            completion=checkpoint.last,
            known=checkpoint.results,
        )

    @property
    def payer(self) -> Payer:
        """Who pays for the calls of the turn."""
        return Payer(self.batch.key.scope, self.batch.user)

    def written(self, text: str) -> str:
        """What the call that is being made has written, out of *text*, which all calls have written."""
        return text.removeprefix(said(self.rounds)).lstrip("\n") if self.rounds else text


def _with_words(batch: Batch, checkpoint: TurnCheckpoint) -> Batch:
    """*batch* with what its voice messages were found to say; they need not be listened to again."""
    if not checkpoint.words:
        return batch
    envelopes = list(batch.envelopes)
    for place, words in checkpoint.words.items():
        message = envelopes[place].message
        silent = tuple(one for one in message.attachments if one.kind != "voice")
        envelopes[place] = replace(envelopes[place], message=replace(message, text=words, attachments=silent))
    return replace(batch, envelopes=tuple(envelopes))
