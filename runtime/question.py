"""What a turn is asked, and what was built to answer it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from connectors.message import PLACE_PREFIX, ConversationKey, Role, place_audience
from grounding.blocks import Prompt
from grounding.layers.query import LONGEST_TOKEN_CHARACTERS
from grounding.run_context import DegradedBlock, Participant, Query, QuotedMessage, RunContext
from grounding.sections import speaker, spoken
from grounding.sessions.prefix import UNKNOWN, Prefix
from grounding.sessions.shown import Shown
from runtime.attachments.reading import NOTHING, Contents
from runtime.envelopes import Batch


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
class Built:
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
    """That of all messages. Where they differ, because a channel was opened or closed in between, the place."""
    found = {envelope.message.audience for envelope in batch.envelopes}
    places = [one for one in found if one is not None and one.startswith(PLACE_PREFIX)]
    if len(found) == 1:
        return found.pop()
    return places[0] if len(places) == 1 else place_audience(batch.key.context_id)


def _begins(texts: Sequence[str]) -> tuple[int, ...]:
    """Where each of *texts* but the first begins, with a blank line between any two."""
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
