"""The data types and errors of the global context, and whether a model's write may hold somebody else's words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from connectors.message import AgentRuntimeError, ConversationKey, Scope, encode_id, person_of_audience
from grounding.prompt_input import RunContext, neutral, one_line, speaker

Owner = Literal["workspace", "user", "place"]
Origin = Literal["person", "model", "retrieved", "others", "approved"]
"""Who worded a line:

- ``person``: a person, by command, HTTP or console
- ``model``: the model
- ``retrieved``: the model, in a turn whose prompt held retrieved text or files; marked until somebody approves it
- ``others``: the model, in a turn whose prompt held another group member's words; marked until somebody approves it
- ``approved``: as the last two, after approval
"""
UNTRUSTED = ("retrieved", "others")
MARK = " (unverified)"
"""Follows a line of untrusted origin wherever the model reads it."""


class GlobalContextRefused(AgentRuntimeError):
    """The edit cannot be made; nothing was changed. People and models may read the text, which says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message[:1].upper() + message[1:]


class NoSuchLine(GlobalContextRefused):
    """No line has this number, or it was deleted."""


class LineChanged(GlobalContextRefused):
    """Somebody else changed the line after the editor saw it. ``content`` and ``version`` are its present ones."""

    def __init__(self, message: str, content: str, version: int) -> None:
        super().__init__(message)
        self.content, self.version = content, version

    @classmethod
    def seen(cls, number: int, content: str, author: str, version: int) -> LineChanged:
        """Return the error for an edit."""
        by = author or "somebody else"
        said = f"line {number} was changed by {by} since you saw it and now says: {content}"
        return cls(f"{said} - do it again if that still is what you want", content, version)

    @classmethod
    def proposed(cls, content: str, author: str, version: int) -> LineChanged:
        """Return the error for an edit that waited for approval."""
        by = author or "somebody else"
        said = f"the line was changed by {by} since that edit was proposed and now says: {content}"
        return cls(f"{said} - deny it, and make the change yourself if it still is wanted", content, version)


class GlobalContextFull(GlobalContextRefused):
    """The lines would take more tokens than ``GLOBAL_CONTEXT_MAX_TOKENS`` allows."""


class UnfitLine(GlobalContextRefused):
    """The content cannot be a line."""


class TooManyWaiting(GlobalContextRefused):
    """Too many edits already wait for approval."""


class NothingWaits(GlobalContextRefused):
    """No edit with this id waits for approval."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line as an editor sees it. ``content`` is empty if the line was deleted in this session.

    ``version`` differs after each change, and between all lines of an owner; it is 0 for a deleted line. ``at`` is RFC
    3339 in UTC.
    """

    number: int
    content: str
    owner: Owner = "workspace"
    author: str = ""
    turn_id: str = ""
    at: str = ""
    version: int = 0
    origin: Origin = "person"


@dataclass(frozen=True, slots=True)
class Editor:
    """Somebody who sees numbered lines: the model in a conversation (``turn``), a person there (``person``), or a
    program (``api``). They see the lines of the workspace and of ``scope.audience``."""

    scope: Scope
    kind: Literal["turn", "person", "api"]
    who: str = ""

    @property
    def encoded(self) -> str:
        # A person's numbering holds for all threads of a place: on Slack each command may begin a thread.
        context = "" if self.kind == "person" else self.scope.context_id or ""
        parts = (self.kind, context, self.scope.audience or "", self.who)
        return ":".join(encode_id(part) for part in parts)

    @property
    def appends_to(self) -> Owner:
        """The owner of new lines: the audience in view, else the workspace."""
        return owner_in(self.scope)


@dataclass(frozen=True, slots=True)
class EditOrigin:
    """Who edits, and in which turn. Calls with the same non-empty ``key`` are the same edit."""

    author: str
    turn_id: str = ""
    origin: Origin = "person"
    key: str = ""


@dataclass(frozen=True, slots=True)
class EditResult:
    """The result of an edit: the line's number and text, or in ``waits`` the id under which it waits for approval."""

    number: int = -1
    content: str = ""
    waits: str = ""


@dataclass(frozen=True, slots=True)
class PendingEdit:
    """An edit that waits for approval. ``before`` is the text of its line."""

    id: str
    action: Literal["append", "replace", "delete"]
    owner: Owner
    content: str
    before: str
    author: str
    turn_id: str
    at: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class LineChange:
    """One entry of the history.

    ``action`` is append, replace or delete, or one of these after propose, approve or deny. ``by`` is who did that.
    """

    action: str
    line: str
    by: str
    turn_id: str
    at: str
    origin: Origin
    before: str
    after: str


def owner_in(scope: Scope) -> Owner:
    """Return the owner of the lines that *scope* edits."""
    return "workspace" if scope.audience is None else "user" if person_of_audience(scope.audience) else "place"


def folded(content: str) -> str:
    """Return *content* as one line, without line ends, control characters and lone surrogates.

    Raises `UnfitLine` if nothing is left.
    """
    whole = content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    line = " ".join(neutral(whole).split())
    if not line:
        raise UnfitLine("there is nothing to keep: give one line of text; to take a line away, delete it")
    return line


def prompt_line(number: int, content: str, *, is_marked: bool = False) -> str:
    """Return a line as the model reads it, ``3-- text``. It can neither end its block nor begin another line."""
    return f"{number}-- {one_line(content)}{MARK if is_marked else ''}" if content else f"{number}--"


def weight(content: str, origin: Origin, count: Callable[[str], int]) -> int:
    """Return the tokens of the line in a prompt, its line end included.

    The sums are exact: no token spans the end of one line and the number of the next (see
    `grounding.prompt_input.tokens.LineByLine`), and numbers up to 999 are one token.
    """
    return count(prompt_line(0, content, is_marked=origin in UNTRUSTED) + "\n")


# Whether the model's writes to the memory may hold somebody else's words

Foreign = Literal["", "retrieved", "others"]
_ASSISTANT = "assistant"
_LONGER_WORD = re.compile(r"\w{4,}")
_STEM_CHARACTERS = 4


def foreign_text_in(context: RunContext) -> Foreign:
    """Say whether this turn adds text to the prompt that the people asking have not written.

    ``retrieved``: passages of documents, codex material, attached files and pictures. ``others``: quoted and forwarded
    messages, and several authors. Records and good answers count by their own origin. The result is stored with the
    turn's answer (`grounding.transcript.entry.TranscriptEntry`).
    """
    query, material = context.query, context.codex.files if context.codex is not None else ()
    came_of = {one.origin for one in context.records} | {one.foreign for one in context.karma}
    if context.passages or material or query.files or query.images or "retrieved" in came_of:
        return "retrieved"
    return "others" if query.quotes or query.relayed or len(context.authors) > 1 or "others" in came_of else ""


def foreign_in(context: RunContext, content: str = "") -> Foreign:
    """Say whether a prompt made of *context* holds text that the people asking have not written.

    The following count besides those of `foreign_text_in`:

    - in a group, what others said in the tail and in recalled turns
    - good answers to other people's questions in the workspace
    - in the tail, forwarded text and answers made from such text, unless *content*, the text to be written, consists of
      words of the question

    The summary does not count: its origins are not known, and in a group every write would have to wait.
    """
    if shown := foreign_text_in(context):
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
