"""Find out whether the model's writes to the memory may contain somebody else's words. Pure."""

from __future__ import annotations

import re
from typing import Literal

from connectors.message import ConversationKey, Scope
from grounding.memory.global_context_lines import UNTRUSTED, Editor, Origin
from grounding.run_context import RunContext
from grounding.sections import speaker

Foreign = Literal["", "retrieved", "others"]
_ASSISTANT = "assistant"
_LONGER_WORD = re.compile(r"\w{4,}")
_STEM_CHARACTERS = 4


def shown_in(context: RunContext) -> Foreign:
    """Say whether this turn adds text to the prompt that the people asking have not written.

    ``retrieved``: passages of documents, codex material, attached files and pictures. ``others``: quoted and forwarded
    messages, and several authors. Records and good answers count by their own origin. The result is stored with the
    turn's answer (`grounding.transcript.entry.Entry`).
    """
    query, material = context.query, context.codex.files if context.codex is not None else ()
    came_of = {one.origin for one in context.records} | {one.foreign for one in context.karma}
    if context.passages or material or query.files or query.images or "retrieved" in came_of:
        return "retrieved"
    return "others" if query.quotes or query.relayed or len(context.authors) > 1 or "others" in came_of else ""


def foreign_in(context: RunContext, content: str = "") -> Foreign:
    """Say whether a prompt made of *context* holds text that the people asking have not written.

    The following count besides those of `shown_in`:

    - in a group, what others said in the tail and in recalled turns
    - good answers to other people's questions in the workspace
    - in the tail, forwarded text and answers made from such text, unless *content*, the text to be written, consists of
      words of the question

    The summary does not count: its origins are not known, and in a group every write would have to wait.
    """
    if shown := shown_in(context):
        return shown
    if not context.direct and (context.recalled or _others_spoke(context)):
        return "others"
    if any(one.shared for one in context.karma):
        return "others"
    repeated = {entry.foreign for entry in context.tail} - {""}
    if not repeated or _contains_words(content, context.query.text):
        return ""
    return "retrieved" if "retrieved" in repeated else "others"


def _contains_words(content: str, text: str) -> bool:
    """Say whether *text* contains all longer words of *content*, whatever their endings: "Prefers mornings" is in "I
    prefer the mornings"."""
    words, said = _words(content), _words(text)
    return bool(words) and words <= said


def _words(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM_CHARACTERS] for word in _LONGER_WORD.findall(text.casefold()))


def _others_spoke(context: RunContext) -> bool:
    """Compare ids, because anybody may take anybody's name. Entries without an id are compared by name."""
    users = {author.user for author in context.authors}
    names = {_ASSISTANT, *(speaker(author.name) for author in context.authors)}
    return any(entry.user not in users if entry.user else entry.speaker not in names for entry in context.tail)


def must_wait(origin: Origin, policy: str) -> bool:
    """Say whether ``GLOBAL_CONTEXT_APPROVAL`` makes a write of this *origin* wait for a person's approval."""
    return policy == "always" or (policy == "untrusted" and origin in UNTRUSTED)


def model_in(key: ConversationKey, audience: str | None) -> Editor:
    """Return the model as an editor in a conversation that sees *audience*'s lines."""
    return Editor(Scope(key.workspace_id, key.context_id, audience), "turn")
