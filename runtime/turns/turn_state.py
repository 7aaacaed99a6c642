"""The values of one turn: its question, the prompt for it, and the state of its reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from connectors.message import PLACE_PREFIX, ConversationKey, OutboundMessage, Role, place_audience
from grounding.prompt import LONGEST_TOKEN_CHARACTERS, UNKNOWN, Prefix, Shown
from grounding.prompt_input import (
    DegradedBlock,
    Participant,
    Prompt,
    Query,
    QuotedMessage,
    RunContext,
    speaker,
    speaker_text,
)
from runtime.attachments import NOTHING, AttachmentContents
from runtime.billing import Payer, Reservation
from runtime.llm import Completion, Transcription
from runtime.turns.batch import Batch
from runtime.turns.checkpoint import TurnCheckpoint
from runtime.turns.rounds import Result, Round, text_of_rounds


@dataclass(frozen=True, slots=True)
class Question:
    """The messages of a batch as one question, with their authors."""

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
        """The length of the question with the texts of its files."""
        return len(self.query.text) + sum(len(file.text) for file in self.query.files)

    @classmethod
    def of(cls, batch: Batch, contents: AttachmentContents = NOTHING) -> Question:
        """Return the question of *batch* with its attachments' *contents*. If there are several authors, each part
        begins with its author's name."""
        messages = [envelope.message for envelope in batch.envelopes]
        authors = _authors(batch)
        named = len(authors) > 1
        texts = [
            speaker_text(speaker(message.author.name, message.author.id), message.text) if named else message.text
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
            role=lowest_role(envelope.role for envelope in batch.envelopes),
            direct=all(message.direct for message in messages),
            audience=_audience(batch),
            hint=next((message.reply_hint for message in messages if message.reply_hint), ""),
            degraded=contents.degraded,
            vouched=all(message.is_vouched_for for message in messages),
        )

    def matches_context(self, context: RunContext) -> bool:
        """Whether *context* was made of this question as it is now, and not before messages were added to it."""
        query, stored = self.query, context.query
        return (
            query.text.startswith(stored.text)  # of a very long text only the beginning is stored
            and (len(stored.text) == len(query.text) or len(stored.text) == _limit(context))
            and stored.quotes == query.quotes
            and stored.attachments == query.attachments
            and context.authors == self.authors
        )


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """A prompt with its input, and how long building it took.

    ``prefix`` is the part that the conversation's last prompt had, too. ``shown`` is stored for the next prompt.
    ``renewed`` says whether its summary is newer than the last prompt's.
    """

    context: RunContext
    prompt: Prompt
    grounding_ms: float
    prefix: Prefix = UNKNOWN
    shown: Shown | None = None
    renewed: bool = False


def _audience(batch: Batch) -> str | None:
    """Return the audience of all messages. If they differ, because a channel was opened or closed in between, return
    the place."""
    audiences = {envelope.message.audience for envelope in batch.envelopes}
    places = [audience for audience in audiences if audience is not None and audience.startswith(PLACE_PREFIX)]
    if len(audiences) == 1:
        return audiences.pop()
    return places[0] if len(places) == 1 else place_audience(batch.key.context_id)


def _begins(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the offsets at which the second text and all later ones begin, with a blank line between any two."""
    return tuple(accumulate(len(text) + len("\n\n") for text in texts[:-1]))


def _authors(batch: Batch) -> dict[str, Participant]:
    """Return the authors of *batch* by ``connector:user_id``, each with the lowest role of their messages: callers with
    different rights may speak for one person."""
    roles: dict[str, list[Role]] = {}
    names: dict[str, str] = {}
    for envelope in batch.envelopes:
        user = envelope.message.author.user(envelope.message.connector)
        roles.setdefault(user, []).append(envelope.role)
        names[user] = envelope.message.author.name
    return {
        user: Participant(user=user, name=names[user], role=lowest_role(all_roles).value)
        for user, all_roles in roles.items()
    }


def lowest_role(roles: Iterable[Role]) -> Role:
    """Return the role that all of *roles* cover. Raises ValueError if there is none."""
    return min(roles, key=lambda role: sum(role.covers(other) for other in Role))


def _limit(context: RunContext) -> int:
    """Return how many characters of a question are stored with a context."""
    return context.budgets.query_tokens * LONGEST_TOKEN_CHARACTERS


@dataclass(slots=True)
class TurnState:
    """The state of a turn: its reply, and the parts of it. ``batch`` has the words of its voice messages."""

    batch: Batch
    reply: OutboundMessage
    built: BuiltPrompt | None = None
    rounds: list[Round] = field(default_factory=list)
    """The model's answers with tool calls, and their results."""
    completion: Completion | None = None
    """The answer that ended the rounds."""
    heard: list[Transcription] = field(default_factory=list)
    """The transcriptions of its recordings so far."""
    first: str | None = None
    """The model that is asked first, if not the one of the settings."""
    pending: Reservation | None = None
    """The reservation of the model call that runs now."""
    has_checkpoint: bool = False
    """Whether something was saved for an attempt that resumes the turn."""
    known: Mapping[tuple[int, int], Result | None] = field(default_factory=dict)
    """The results of tool calls of an interrupted attempt, by round and place: see `TurnCheckpoint.results`."""

    @classmethod
    def of(cls, batch: Batch, checkpoint: TurnCheckpoint, draft: OutboundMessage) -> TurnState:
        """Return the state of *batch* as *checkpoint* left it. *draft* is the reply without its text."""
        return cls(
            _with_words(batch, checkpoint),
            draft,
            rounds=checkpoint.rounds,
            known=checkpoint.results,
        )

    @property
    def payer(self) -> Payer:
        """The payer of the turn's calls."""
        return Payer(self.batch.key.scope, self.batch.user)

    def written(self, text: str) -> str:
        """Return the part of *text*, the text of all rounds, that the present model call has written."""
        return text.removeprefix(text_of_rounds(self.rounds)).lstrip("\n") if self.rounds else text


def _with_words(batch: Batch, checkpoint: TurnCheckpoint) -> Batch:
    """Return *batch* with the stored transcriptions in place of its voice messages."""
    if not checkpoint.words:
        return batch
    envelopes = list(batch.envelopes)
    for place, words in checkpoint.words.items():
        message = envelopes[place].message
        others = tuple(attachment for attachment in message.attachments if attachment.kind != "voice")
        envelopes[place] = replace(envelopes[place], message=replace(message, text=words, attachments=others))
    return replace(batch, envelopes=tuple(envelopes))
