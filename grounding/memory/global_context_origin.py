"""Where what the model writes into the global context may have come from. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from connectors.message import ConversationKey, Scope
from grounding.memory.global_context_lines import UNTRUSTED, Editor, Origin
from grounding.run_context import Participant, RunContext
from grounding.sections import speaker

Foreign = Literal["", "retrieved", "others"]
_ASSISTANT = "assistant"


def foreign_in(context: RunContext) -> Foreign:
    """Whether a prompt made of *context* shows text that nobody who asks has written.

    Retrieved are passages of documents, attached files and pictures; quoted messages count as somebody else's, and so
    do, in a group, further authors and what others said in the tail and in recalled turns. The summary is not
    counted: whose words it is made of is not known, and in a group it would make every write wait.
    """
    if context.passages or context.query.files or context.query.images:
        return "retrieved"
    if context.query.quotes or len(context.authors) > 1:
        return "others"
    if not context.direct and (context.recalled or _others_spoke(context)):
        return "others"
    return ""


def _others_spoke(context: RunContext) -> bool:
    """By their ids: anybody may take anybody's name. Only where there is no id the name has to do."""
    users = {author.user for author in context.authors}
    names = {_ASSISTANT, *(speaker(author.name) for author in context.authors)}
    return any(entry.user not in users if entry.user else entry.speaker not in names for entry in context.tail)


def must_wait(origin: Origin, policy: str) -> bool:
    """Whether, by ``GLOBAL_CONTEXT_APPROVAL``, what the model writes from *origin* waits for a person."""
    return policy == "always" or (policy == "untrusted" and origin in UNTRUSTED)


def person_of(direct: bool, authors: Iterable[Participant]) -> str | None:
    """Whose own lines may be shown: the one person's of a direct message, else nobody's."""
    users = {author.user for author in authors}
    return users.pop() if direct and len(users) == 1 else None


def model_in(key: ConversationKey, person: str | None) -> Editor:
    """The model as an editor in a conversation, with *person*'s lines in its view (see `person_of`)."""
    return Editor(Scope(key.workspace_id, key.context_id, person), "turn")
