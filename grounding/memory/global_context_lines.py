"""The nouns of the global context: its lines, who edits them, and what may go wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from connectors.message import AgentRuntimeError, Scope, encode_id, person_in
from grounding.sections import neutral, one_line

Owner = Literal["workspace", "user", "place"]
Origin = Literal["person", "model", "retrieved", "others", "approved"]
"""Whose words a line is: a person's own, by command, HTTP or console; the model's; the model's in a turn that was shown
retrieved text or files (``retrieved``) or what another person said in a group (``others``), which is marked until
somebody approves it; or of such a turn, and approved."""
UNTRUSTED = ("retrieved", "others")
MARK = " (unverified)"
"""Stands behind a line of untrusted origin wherever the model reads it."""


class GlobalContextRefused(AgentRuntimeError):
    """An edit cannot be made, and nothing has changed. The text says what to do; people and models may read it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message[:1].upper() + message[1:]


class NoSuchLine(GlobalContextRefused):
    """The number is of no line, or of one that was deleted."""


class LineChanged(GlobalContextRefused):
    """Somebody else changed the line after the editor saw it. ``content`` and ``version`` are what it is now."""

    def __init__(self, message: str, content: str, version: int) -> None:
        super().__init__(message)
        self.content, self.version = content, version

    @classmethod
    def seen(cls, number: int, content: str, author: str, version: int) -> LineChanged:
        """Of an edit."""
        by = author or "somebody else"
        said = f"line {number} was changed by {by} since you saw it and now says: {content}"
        return cls(f"{said} - do it again if that still is what you want", content, version)

    @classmethod
    def proposed(cls, content: str, author: str, version: int) -> LineChanged:
        """Of an edit that waited."""
        by = author or "somebody else"
        said = f"the line was changed by {by} since that edit was proposed and now says: {content}"
        return cls(f"{said} - deny it, and make the change yourself if it still is wanted", content, version)


class GlobalContextFull(GlobalContextRefused):
    """The lines would take more tokens than ``GLOBAL_CONTEXT_MAX_TOKENS`` leaves them."""


class UnfitLine(GlobalContextRefused):
    """The content is no line."""


class TooManyWaiting(GlobalContextRefused):
    """No further edit may wait for approval."""


class NothingWaits(GlobalContextRefused):
    """No edit of that id waits for approval."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line as an editor sees it; ``content`` is empty where it was deleted in this session.

    ``version`` is another one after each change, and never that of another line of its owner; 0 where it was deleted.
    ``at`` is RFC 3339 in UTC.
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
    """Somebody to whom numbers were given: the model in a conversation (``turn``), a person there (``person``), or
    programs (``api``). In view are the workspace's lines and those of ``scope.audience``.
    """

    scope: Scope
    kind: Literal["turn", "person", "api"]
    who: str = ""

    @property
    def encoded(self) -> str:
        # People's lists hold for all threads of a place: on Slack each command may begin one.
        context = "" if self.kind == "person" else self.scope.context_id or ""
        parts = (self.kind, context, self.scope.audience or "", self.who)
        return ":".join(encode_id(part) for part in parts)

    @property
    def appends_to(self) -> Owner:
        """Whose line a new one is: the audience's that is in view."""
        return owner_in(self.scope)


@dataclass(frozen=True, slots=True)
class By:
    """Who edits, in which turn. The same ``key`` again is the same edit; without one each is another."""

    author: str
    turn_id: str = ""
    origin: Origin = "person"
    key: str = ""


@dataclass(frozen=True, slots=True)
class Edited:
    """What came of an edit: the number of its line and what it says, or under which id it ``waits`` for approval."""

    number: int = -1
    content: str = ""
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An edit that waits for approval; ``before`` is what its line said."""

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
    """One entry of the history. ``action`` is append, replace or delete, or one of them after propose, approve or
    deny; ``by`` is who did that."""

    action: str
    line: str
    by: str
    turn_id: str
    at: str
    origin: Origin
    before: str
    after: str


def owner_in(scope: Scope) -> Owner:
    """Whose lines are kept in *scope*."""
    return "workspace" if scope.audience is None else "user" if person_in(scope.audience) else "place"


def folded(content: str) -> str:
    """*content* as one line without what no line may hold: line ends, control characters, halves of characters.
    Raises `UnfitLine` where nothing is left."""
    whole = content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    line = " ".join(neutral(whole).split())
    if not line:
        raise UnfitLine("there is nothing to keep: give one line of text; to take a line away, delete it")
    return line


def shown(number: int, content: str, *, is_marked: bool = False) -> str:
    """A line as the model reads it: ``3-- text``; it can neither end its block nor begin another line."""
    return f"{number}-- {one_line(content)}{MARK if is_marked else ''}" if content else f"{number}--"


def weight(content: str, origin: Origin, count: Callable[[str], int]) -> int:
    """Tokens that the line takes in a prompt, its end included. Lines add up exactly: no token reaches over the end
    of one into the number of the next (see `grounding.tokens.LineByLine`); numbers to 999 are one token."""
    return count(shown(0, content, is_marked=origin in UNTRUSTED) + "\n")
