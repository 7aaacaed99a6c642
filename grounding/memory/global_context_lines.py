"""The data types and errors of the global context. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from connectors.message import AgentRuntimeError, Scope, encode_id, person_in
from grounding.sections import neutral, one_line

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
class By:
    """Who edits, and in which turn. Calls with the same non-empty ``key`` are the same edit."""

    author: str
    turn_id: str = ""
    origin: Origin = "person"
    key: str = ""


@dataclass(frozen=True, slots=True)
class Edited:
    """The result of an edit: the line's number and text, or in ``waits`` the id under which it waits for approval."""

    number: int = -1
    content: str = ""
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
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
class Change:
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
    return "workspace" if scope.audience is None else "user" if person_in(scope.audience) else "place"


def folded(content: str) -> str:
    """Return *content* as one line, without line ends, control characters and lone surrogates.

    Raises `UnfitLine` if nothing is left.
    """
    whole = content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    line = " ".join(neutral(whole).split())
    if not line:
        raise UnfitLine("there is nothing to keep: give one line of text; to take a line away, delete it")
    return line


def shown(number: int, content: str, *, is_marked: bool = False) -> str:
    """Return a line as the model reads it, ``3-- text``. It can neither end its block nor begin another line."""
    return f"{number}-- {one_line(content)}{MARK if is_marked else ''}" if content else f"{number}--"


def weight(content: str, origin: Origin, count: Callable[[str], int]) -> int:
    """Return the tokens of the line in a prompt, its line end included.

    The sums are exact: no token spans the end of one line and the number of the next (see
    `grounding.tokens.LineByLine`), and numbers up to 999 are one token.
    """
    return count(shown(0, content, is_marked=origin in UNTRUSTED) + "\n")
