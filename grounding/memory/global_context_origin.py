"""Where what the model writes into the global context may have come from. Pure."""

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
    """Whether a prompt made of *context* shows text of this very turn that nobody who asks has written.

    Retrieved are passages of documents, material given whole, attached files and pictures; others' are quoted and
    forwarded messages, and those of further authors; records and good answers are what they came of. An answer is
    remembered with it (`grounding.transcript.entry.Entry`).
    """
    query, material = context.query, context.codex.files if context.codex is not None else ()
    came_of = {one.origin for one in context.records} | {one.foreign for one in context.karma}
    if context.passages or material or query.files or query.images or "retrieved" in came_of:
        return "retrieved"
    return "others" if query.quotes or query.relayed or len(context.authors) > 1 or "others" in came_of else ""


def foreign_in(context: RunContext, content: str = "") -> Foreign:
    """Whether a prompt made of *context* shows text that nobody who asks has written, so that what the model wants to
    write may be somebody else's.

    Beside what `shown_in` says: in a group, what others said in the tail and in recalled turns; what anybody asked in
    the workspace, among the good answers chosen for the message; and what stands in the
    tail and was forwarded, or is an answer made of such text, which may repeat it, unless *content*, what is to be
    written, is in the words of who asks. The summary is not counted: whose words it is made of is not known, and in a
    group it would make every write wait.
    """
    if shown := shown_in(context):
        return shown
    if not context.direct and (context.recalled or _others_spoke(context)):
        return "others"
    if any(one.shared for one in context.karma):
        return "others"
    repeated = {entry.foreign for entry in context.tail} - {""}
    if not repeated or _is_said_in(content, context.query.text):
        return ""
    return "retrieved" if "retrieved" in repeated else "others"


def _is_said_in(content: str, text: str) -> bool:
    """Whether all longer words of *content* stand in *text*, whatever their endings: "Prefers mornings" in "I prefer
    the mornings"."""
    words, said = _words(content), _words(text)
    return bool(words) and words <= said


def _words(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM_CHARACTERS] for word in _LONGER_WORD.findall(text.casefold()))


def _others_spoke(context: RunContext) -> bool:
    """By their ids: anybody may take anybody's name. Only where there is no id the name has to do."""
    users = {author.user for author in context.authors}
    names = {_ASSISTANT, *(speaker(author.name) for author in context.authors)}
    return any(entry.user not in users if entry.user else entry.speaker not in names for entry in context.tail)


def must_wait(origin: Origin, policy: str) -> bool:
    """Whether, by ``GLOBAL_CONTEXT_APPROVAL``, what the model writes from *origin* waits for a person."""
    return policy == "always" or (policy == "untrusted" and origin in UNTRUSTED)


def model_in(key: ConversationKey, audience: str | None) -> Editor:
    """The model as an editor in a conversation, with *audience*'s lines in its view."""
    return Editor(Scope(key.workspace_id, key.context_id, audience), "turn")
