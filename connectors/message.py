"""The nouns of all packages: who wrote what, where, who may see it, and what the bot answered.

`InboundMessage` comes from a platform and `OutboundMessage` goes to one, in `OutboundPart`s, each with a `Receipt`.
`ConversationKey` names a conversation, `Scope` says what a store call may see. Ids of platforms are opaque: only a
platform's own package parses them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

PARTITIONS = 64
"""The number of hash tags over which conversations are spread on a Redis cluster."""

CALLER_PREFIX = "token:"
"""Begins the author id of a message whose author is the holder of an API token or of the terminal, and no named person.
No person's id may begin like this."""

PLACE_PREFIX = "place:"
"""Begins an audience that is the people of one place. No connector has this name, so no person's id begins with it."""

EVERYONE = "*"
"""The audience of a scope that reads all audiences, for the runtime's administrators. Nothing is written with it."""

INTERNAL_ERROR = "internal"
"""The error code of a reply to a turn that failed for a reason that has nothing to do with the question."""

BUTTON_MAX_BYTES = 64
"""The longest command that every platform accepts on a button (Telegram's ``callback_data``)."""

_WORKSPACE_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MAX_STEM_LENGTH = 200
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TURN_ID = re.compile(f"t[{_ID_ALPHABET}]{{20}}")


# Errors


class AgentRuntimeError(Exception):
    """Base of our errors. ``user_text`` may be shown in a chat; ``retryable``: the same call may succeed later."""

    retryable: bool = False
    user_text: str = "Something went wrong here. Please try again."


class StoreUnavailable(AgentRuntimeError):
    """Redis cannot be reached: nothing was stored, and nothing may be acknowledged."""

    retryable = True
    user_text = "I cannot store your message right now. Please try again in a moment."


class Superseded(AgentRuntimeError):
    """The writer has lost its lease on the conversation: another worker continues from what was stored."""


class InvalidWorkspaceId(AgentRuntimeError):
    """A workspace id does not have the form ``[a-z0-9][a-z0-9._-]{0,63}``."""

    user_text = "This is not a valid workspace name."


# Who may do and see what


class Role(StrEnum):
    """A person's rights, ordered by `covers`."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"

    def covers(self, other: Role) -> bool:
        """Return whether this role may do everything that *other* may do."""
        order = (Role.VIEWER, Role.MEMBER, Role.ADMIN)
        return order.index(self) >= order.index(other)


def place_audience(context_id: str) -> str:
    """Return the audience of a place that its platform does not call public."""
    return PLACE_PREFIX + context_id


def person_of_audience(audience: str | None) -> str | None:
    """Return the person whose direct messages are *audience*; None if it is the workspace or a place."""
    return audience if audience and not audience.startswith(PLACE_PREFIX) else None


def may_see(audience: str | None, reader: str | None) -> bool:
    """Return whether the content of *audience* may be shown to the audience *reader*.

    The workspace's content may be shown everywhere; that of a place or person only there.
    """
    return not audience or audience == reader


@dataclass(frozen=True, slots=True)
class Scope:
    """The limits of a store call: a workspace, and in it at most one context and one audience.

    ``audience`` is None for the workspace, ``connector:user_id`` for one person's direct messages, or `place_audience`
    for one place. A call reads what belongs to the workspace or to that audience, and writes for that audience. No
    store method takes a bare workspace name.
    """

    workspace_id: str
    context_id: str | None = None
    audience: str | None = None

    def __post_init__(self) -> None:
        check_workspace_id(self.workspace_id)

    @property
    def tag(self) -> str:
        """The hash tag of all keys that belong to the workspace as a whole."""
        return "{w." + self.workspace_id + "}"


# Conversations and their keys


@dataclass(frozen=True)
class ConversationKey:
    """One conversation: a platform's place, with its thread if it has one, in a workspace."""

    workspace_id: str
    connector: str
    external_id: str

    def __post_init__(self) -> None:
        check_workspace_id(self.workspace_id)
        if not self.connector or not self.external_id:
            raise ValueError("a conversation needs a connector and an external id")

    @cached_property
    def context_id(self) -> str:
        return f"{self.connector}:{self.external_id}"

    @property
    def scope(self) -> Scope:
        return Scope(self.workspace_id, self.context_id)

    @cached_property
    def partition(self) -> int:
        """The partition, 0 to `PARTITIONS` - 1, that holds this conversation and its ready list."""
        name = f"{self.workspace_id}/{self.connector}:{self.external_id}"
        return zlib.crc32(name.encode("utf-8", "surrogatepass")) % PARTITIONS

    @cached_property
    def tag(self) -> str:
        """The hash tag of the conversation's keys."""
        return partition_tag(self.partition)

    @cached_property
    def encoded(self) -> str:
        """The key as text: unique among all workspaces, without ``:``, ``{`` and ``}``."""
        return f"{self.workspace_id}/{self.connector}/{encode_id(self.external_id)}"

    @classmethod
    def decode(cls, encoded: str) -> ConversationKey:
        """Return the key that `encoded` wrote."""
        workspace_id, connector, external_id = encoded.split("/", 2)
        return cls(workspace_id, connector, unquote(external_id, errors="surrogatepass"))


def partition_tag(partition: int) -> str:
    """Return the hash tag of a partition's keys."""
    return "{p" + str(partition) + "}"


def redis_key(owner: str, tag: str, *parts: str) -> str:
    """Return the key of *owner*'s value *parts* under the hash tag *tag*: ``ar:<owner>:<tag>:<part>…``."""
    return ":".join(("ar", owner, tag, *parts))


def encode_id(text: str) -> str:
    """Return *text* as a file name or key part; different texts have different results.

    Every UTF-8 byte outside ``[A-Za-z0-9._-]`` becomes ``%XX``, and so does a leading dot.
    """
    encoded = quote(text, safe="", errors="surrogatepass").replace("~", "%7E")
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def file_stem(text: str) -> str:
    """Return *text* as a file name without its ending; different texts have different results.

    A result of `encode_id` that is too long for a file system becomes its beginning and its SHA-256, joined by a
    ``~``, which `encode_id` never writes.
    """
    encoded = encode_id(text)
    if len(encoded) <= _MAX_STEM_LENGTH:
        return encoded
    return encoded[: _MAX_STEM_LENGTH - 65] + "~" + hashlib.sha256(encoded.encode()).hexdigest()


def replace_file(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write *content* to *file*, whole or not at all. A symbolic link is replaced, not followed. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        os.chmod(temporary, mode)
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_workspace_id(workspace_id: str) -> str:
    """Return *workspace_id*. Raises `InvalidWorkspaceId`."""
    if not _WORKSPACE_ID.fullmatch(workspace_id):
        raise InvalidWorkspaceId(
            f"{workspace_id!r} is not a workspace id: use 1 to 64 of a-z, 0-9, '.', '_', '-', "
            "beginning with a letter or digit"
        )
    return workspace_id


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of a lease on a conversation: the hash at the key *name* has *token* as its ``token``.

    Stores check it in the same step in which they write, so that a worker that has lost its lease cannot write.
    """

    name: str
    token: str


# Inbound


@dataclass(frozen=True, slots=True)
class Author:
    """The writer of a message; ``id`` is the platform's own, without the connector's name."""

    id: str
    name: str = ""
    is_bot: bool = False

    def user(self, connector: str) -> str:
        """Return ``connector:user_id``, the form of people's ids in settings and access."""
        return f"{connector}:{self.id}"


@dataclass(frozen=True, slots=True)
class Quote:
    """The message that an inbound one replies to; ``message_id`` is the platform's, if it says so."""

    author: str
    text: str
    message_id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message; by ``handle`` the platform's own package finds it again."""

    kind: Literal["document", "image", "voice", "other"]
    name: str
    media_type: str = ""
    size_bytes: int = 0
    handle: str = ""


class InboundKind(StrEnum):
    """The kind of an event on a platform.

    A ``COMMAND`` was given by the platform's own means (a slash command, a bot command), not as the text of a message;
    its ``text`` is the command's word and what follows it, without a slash. For ``EDIT``, ``DELETE`` and ``REACTION``
    the ``message_id`` is that of the message that was edited, deleted or reacted to.
    """

    MESSAGE = "message"
    COMMAND = "command"
    EDIT = "edit"
    DELETE = "delete"
    REACTION = "reaction"
    JOINED = "joined"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """One thing that happened in a conversation.

    ``message_id`` is the platform's id of the message, unique in its place; a repeated delivery has the same one.
    ``routes`` are the keys by which an operator may route this place to a workspace, most specific first.
    ``default_workspace`` is the place's own workspace, for operators who want one for each place. ``workspace_id`` is
    set by connectors whose callers name the workspace.
    """

    connector: str
    external_id: str
    message_id: str
    author: Author
    text: str
    kind: InboundKind = InboundKind.MESSAGE
    sent_at: datetime | None = None
    direct: bool = False
    """True if only this person and the bot are in the place."""
    public: bool = False
    """True if the platform says that everybody in its workspace may read the place. Unknown means private."""
    place: str = ""
    """The external id of the place that a thread belongs to, if the same people read both; empty for its own place."""
    addressed: bool = True
    """True if the message is for the bot: it is direct, mentions the bot, or replies to it."""
    by_thread_only: bool = False
    """True if it is ``addressed`` only because the bot takes part in its thread."""
    relayed: bool = False
    """True if somebody else wrote the text and the author only forwards it."""
    quote: Quote | None = None
    attachments: tuple[Attachment, ...] = ()
    reaction: str = ""
    """For `InboundKind.REACTION`: the emoji; empty if one was removed."""
    unreacted: tuple[str, ...] = ()
    """For `InboundKind.REACTION`: the emoji that were removed or replaced."""
    looks_unfinished: bool = False
    """True if more is likely to follow: at the platform's size limit, or part of a media group or of many forwards."""
    workspace_id: str | None = None
    routes: tuple[str, ...] = ()
    default_workspace: str = ""
    caller_role: Role | None = None
    """Limits what the author may do; set by connectors that authenticate their callers."""
    is_caller: bool = False
    """True if the author is that caller, and not a person for whom a program speaks."""
    reply_hint: str = ""
    """One sentence about how replies should behave on this platform; may be empty."""
    command_mark: Literal["/", "!"] = "/"
    """The sign before a command's word that help texts show. Both are accepted, but a platform may reserve ``/``."""

    @property
    def audience(self) -> str | None:
        """The audience of what is stored of it; see `Scope`."""
        if self.direct:
            return self.author.user(self.connector)
        return None if self.public else place_audience(f"{self.connector}:{self.place or self.external_id}")

    @property
    def is_vouched_for(self) -> bool:
        """True if the platform, or a caller who may speak for others, confirms who the author is."""
        return self.is_caller or self.caller_role in (None, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The gateway's answer to an inbound message. After it the platform's delivery may be acknowledged.

    ``outcome`` is ``stored`` (a turn will follow), ``duplicate``, ``ignored``, or ``refused`` for the reason ``why``
    (the person was told if that is due). ``reply`` is the stored answer of a duplicate that was answered before.
    """

    outcome: Literal["stored", "duplicate", "ignored", "refused"]
    why: str = ""
    reply: OutboundMessage | None = None
    retry_after_seconds: int | None = None
    key: ConversationKey | None = None


# Outbound


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a passage: a path below the workspace's ``docs/``, and a heading path."""

    source: str
    heading: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """A block of the prompt (or ``model``) that was not available for a turn, and why."""

    block: str
    why: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of a turn's model calls, as the provider counted them.

    ``estimated``: the provider did not count some call, so our own tokenizer did.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Button:
    """A button below a message. Whoever presses it gives the command, e.g. ``pair approve CODE``: without a slash, and
    at most `BUTTON_MAX_BYTES` long."""

    label: str
    command: str


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """An answer or a notice to a conversation.

    ``text`` is Markdown. ``answers`` are the ``message_id``s of the inbound messages that it answers.
    """

    key: ConversationKey
    turn_id: str
    text: str
    kind: Literal["reply", "notice", "apology"] = "reply"
    answers: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    """Those of ``answers`` that a newer message replaced: programs are told so instead of getting the answer."""
    reply_to: str | None = None
    """The message to which it is a reply, on platforms that have replies."""
    strategy: str = ""
    reason: str = ""
    sources: tuple[Source, ...] = ()
    """The documents that the reply cites; if it cites none, those in the prompt."""
    shows_sources: bool = False
    """True if people see ``sources`` below the text."""
    degraded: tuple[Degraded, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error_code: str = ""
    """For an ``apology``: what went wrong, as a word for programs, e.g. ``context_too_large``."""
    buttons: tuple[Button, ...] = ()
    """Shown below the last part on platforms that have `connectors.connector.ShowsButtons`. The text says the same for
    the others."""
    silent: bool = False
    """True if people were told in another message: only a program that waits for this answer gets it."""
    stopped: bool = False
    """True if people stopped the answer before its end."""


@dataclass(frozen=True, slots=True)
class OutboundPart:
    """One platform message of a reply, rendered and within the platform's limit.

    ``token`` identifies the part: rendered or sent again, it has the same one.
    """

    index: int
    total: int
    text: str
    token: str
    payload: str = "plain"
    """The format of ``text``, for the platform package that rendered it (e.g. ``html``)."""
    file_name: str = ""
    """If set, the part is sent as a file of this name with the content ``text`` (UTF-8)."""
    sources: str = ""
    """One line of plain text for below ``text``, on platforms that have a special form for it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that the platform accepted a part: its id there."""

    message_id: str


def answer_object(message: OutboundMessage) -> dict[str, Any]:
    """Return *message* as the JSON object that the HTTP API returns and ``chat --json`` prints.

    Its keys are ``turn_id``, ``text``, ``sources``, ``strategy``, ``reason``, ``degraded`` and ``usage``.
    """
    return {
        "turn_id": message.turn_id,
        "text": message.text,
        "sources": [{"source": source.source, "heading": source.heading} for source in message.sources],
        "strategy": message.strategy,
        "reason": message.reason,
        "degraded": [{"block": part.block, "why": part.why} for part in message.degraded],
        "usage": {
            "prompt": message.usage.prompt,
            "cached": message.usage.cached,
            "completion": message.usage.completion,
            "cost_usd": message.usage.cost_usd,
            **({"estimated": True} if message.usage.estimated else {}),
        },
    }


def new_turn_id() -> str:
    """Return ``t`` and 20 letters and digits: 50 bits of milliseconds, so that ids sort by time, and 50 random bits."""
    number = (time.time_ns() // 1_000_000) << 50 | secrets.randbits(50)
    return "t" + "".join(_ID_ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))


def is_turn_id(text: str) -> bool:
    """Return whether *text* has the form of a turn id."""
    return _TURN_ID.fullmatch(text) is not None
