"""Directives, the slots and places that they apply in, and the rules for their texts. Pure."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

from connectors.message import AgentRuntimeError, Scope, encode_id

DIRECTIVE_MAX_BYTES = 262_144
"""Larger texts are refused without counting tokens: they are far over any limit, and slow to count."""

GLOBAL_TAG = "{global}"
"""The hash tag of the directives that apply in all workspaces."""

_SKILL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class InvalidDirective(AgentRuntimeError):
    """An invalid text, name or author of a directive. The message says what was expected."""

    user_text = "This cannot be a directive."


class Level(StrEnum):
    """The level at which a directive applies, from the least to the most specific."""

    GLOBAL = "global"
    WORKSPACE = "workspace"
    CONTEXT = "context"

    @property
    def rank(self) -> int:
        """The position of the level; 0 is the least specific."""
        return list(Level).index(self)


class Kind(StrEnum):
    """The kinds of directives in the order of composition. ``cues`` and ``frames`` are stored like the others, but are
    no part of an identity."""

    SYSTEM = "system"
    SOUL = "soul"
    SKILL = "skill"
    CUES = "cues"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a directive applies: everywhere (``scope`` is None), a workspace, or a context of a workspace."""

    scope: Scope | None = None

    @classmethod
    def of(cls, scope: Scope) -> Place:
        """Return the context of *scope* if it has one, else its workspace. Directives never belong to one person."""
        return cls(Scope(scope.workspace_id, scope.context_id))

    @property
    def level(self) -> Level:
        if self.scope is None:
            return Level.GLOBAL
        return Level.WORKSPACE if self.scope.context_id is None else Level.CONTEXT

    @property
    def tag(self) -> str:
        """The hash tag of all keys of this place."""
        return GLOBAL_TAG if self.scope is None else self.scope.tag

    @property
    def home(self) -> Place:
        """The place that owns this place's hash tag and folder: its workspace, or `EVERYWHERE`."""
        return self if self.scope is None else Place(Scope(self.scope.workspace_id))

    @property
    def encoded(self) -> str:
        """A text for keys, unique within the hash tag, without ``/``."""
        if self.scope is None or self.scope.context_id is None:
            return self.level.value
        return f"context:{encode_id(self.scope.context_id)}"

    @property
    def ids(self) -> dict[str, str]:
        """The fields ``workspace_id`` and ``context_id`` of log events, if the place has them."""
        if self.scope is None:
            return {}
        ids = {"workspace_id": self.scope.workspace_id}
        return ids if self.scope.context_id is None else ids | {"context_id": self.scope.context_id}


EVERYWHERE = Place()


def places_of(scope: Scope) -> tuple[Place, ...]:
    """Return the places whose directives apply in *scope*, the least specific first."""
    workspace = Place(Scope(scope.workspace_id))
    return (EVERYWHERE, workspace) if scope.context_id is None else (EVERYWHERE, workspace, Place.of(scope))


@dataclass(frozen=True, slots=True)
class Slot:
    """A place, a kind and, for skills, a name. A slot has at most one directive at a time.

    Raises `InvalidDirective` for a skill without a valid name, and for another kind with a name.
    """

    place: Place
    kind: Kind
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind is Kind.SKILL:
            check_skill_name(self.name)
        elif self.name:
            raise InvalidDirective(f"only a skill has a name, and this is a {self.kind.value} directive")

    @classmethod
    def named(cls, level: str, kind: str, name: str = "", scope: Scope | None = None) -> Slot:
        """Return the slot that a command or a request names with words. *scope* is the caller's.

        Raises `InvalidDirective` for unknown words, and if *scope* has no workspace or context but *level* needs it.
        """
        if level not in list(Level):
            raise InvalidDirective(f"the scope is global, workspace or context, not {level!r}")
        if kind not in list(Kind):
            raise InvalidDirective(f"the kind is system, soul, skill, cues or frames, not {kind!r}")
        return cls(_make_place(Level(level), scope), Kind(kind), name)

    @property
    def field(self) -> str:
        """A text for keys, unique within the place: a kind (``system``, ``soul``, …), or ``skill:<name>``."""
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value

    @property
    def encoded(self) -> str:
        """A text for keys, unique within the hash tag: ``<place>/<field>``."""
        return f"{self.place.encoded}/{self.field}"

    @property
    def label(self) -> str:
        """The slot's name for people, e.g. ``skill "refunds" (workspace)``."""
        name = f' "{self.name}"' if self.name else ""
        return f"{self.kind.value}{name} ({self.place.level.value})"


def slot_in(place: Place, field: str) -> Slot:
    """Return the slot of *place* whose `Slot.field` is *field*. Raises `InvalidDirective`."""
    kind, _, name = field.partition(":")
    return Slot.named(place.level.value, kind, name, place.scope)


def _make_place(level: Level, scope: Scope | None) -> Place:
    if level is Level.GLOBAL:
        return EVERYWHERE
    if scope is None:
        raise InvalidDirective(f"a {level.value} directive needs a workspace")
    if level is Level.WORKSPACE:
        return Place(Scope(scope.workspace_id))
    if scope.context_id is None:
        raise InvalidDirective("a context directive needs a context, written <connector>:<external id>")
    check_context_id(scope.context_id)
    return Place.of(scope)


def check_context_id(context_id: str) -> str:
    """Return *context_id*. Raises `InvalidDirective` if it is not ``<connector>:<external id>``."""
    connector, _, external_id = context_id.partition(":")
    if not connector or not external_id:
        raise InvalidDirective(f"{context_id!r} is no context: write <connector>:<external id>")
    return context_id


def place_in(home: Place, encoded: str) -> Place:
    """Return the place under *home* whose `Place.encoded` is *encoded*. Raises `InvalidDirective`."""
    if encoded == home.encoded:
        return home
    level, _, context = encoded.partition(":")
    if level != Level.CONTEXT or home.scope is None:
        raise InvalidDirective(f"{encoded!r} is no place of {home.encoded!r}")
    return Place(Scope(home.scope.workspace_id, decode_id(context)))


def decode_id(encoded: str) -> str:
    """Decode a result of `encode_id`. Raises `InvalidDirective` for any other text."""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), encoded.encode("utf-8", "replace"))
    text = raw.decode("utf-8", "replace")
    if not text or encode_id(text) != encoded:
        raise InvalidDirective(f"{encoded!r} is no encoded id")
    return text


@dataclass(frozen=True, slots=True)
class Directive:
    """The current text of a slot and its version number (from 1)."""

    slot: Slot
    version: int
    text: str

    @property
    def sha256(self) -> str:
        return digest(self.text)


def digest(text: str) -> str:
    """Return the SHA-256 of *text* in UTF-8 as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_skill_name(name: str) -> str:
    """Return *name*. Raises `InvalidDirective` if it is no valid skill name."""
    if not _SKILL_NAME.fullmatch(name):
        raise InvalidDirective(
            f"{name!r} is no skill name: use 1 to 64 of a-z, 0-9, '_', '-', beginning with a letter or digit"
        )
    return name


def canonical(text: str) -> str:
    """Normalise *text* for storage: line ends become ``\\n``; a byte order mark and outer white space are removed.

    Normalising a text that was written to a file and read back changes nothing. Raises `InvalidDirective` if the text
    is empty, larger than `DIRECTIVE_MAX_BYTES`, or contains characters that editors do not show.
    """
    clean = text.removeprefix("\ufeff").replace("\r\n", "\n").strip()
    if not clean:
        raise InvalidDirective("the text is empty; to take a directive away, clear it or roll it back")
    for index, character in enumerate(clean):
        is_control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
        if is_control or character == "\ufeff":
            raise InvalidDirective(f"the text has the control character U+{ord(character):04X} at {index}")
    size = len(clean.encode())
    if size > DIRECTIVE_MAX_BYTES:
        raise InvalidDirective(f"the text has {size} bytes, {size - DIRECTIVE_MAX_BYTES} too many")
    return clean
