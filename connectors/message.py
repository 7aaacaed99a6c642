"""The nouns that every room speaks: who said what, where, and what became of the answer.

Ids of platforms are opaque here: only a platform's own package looks inside them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

PARTITIONS = 64
"""Number of hash tags over which conversations spread on a Redis cluster."""

CALLER_PREFIX = "token:"
"""Begins the author id of a message that names no person: its author is the holder of an API token or
of the terminal. No person's id may begin so."""

PLACE_PREFIX = "place:"
"""Begins an audience that is the people of one place. No connector is called so, so that no person's id begins so."""

_WORKSPACE_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LONGEST_STEM = 200
_PLAIN_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class AgentRuntimeError(Exception):
    """Base of our errors. ``user_text`` may be shown to a person in a chat; ``retryable`` says whether
    the same call may succeed later."""

    retryable: bool = False
    user_text: str = "Something went wrong here. Please try again."


class StoreUnavailable(AgentRuntimeError):
    """Redis cannot be reached, so that nothing can be promised: nothing is acknowledged."""

    retryable = True
    user_text = "I cannot store your message right now. Please try again in a moment."


class Superseded(AgentRuntimeError):
    """Who writes does not hold the conversation any more: another worker does, and goes on from what was stored."""


class InvalidWorkspaceId(AgentRuntimeError):
    """A workspace id is not of the form ``[a-z0-9][a-z0-9._-]{0,63}``."""

    user_text = "This is not a valid workspace name."


class Role(StrEnum):
    """What a person may do. Ordered by `covers`."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"

    def covers(self, other: Role) -> bool:
        """Whether this role may do all that *other* may do."""
        order = (Role.VIEWER, Role.MEMBER, Role.ADMIN)
        return order.index(self) >= order.index(other)


@lru_cache(maxsize=4096)
def encode_id(text: str) -> str:
    """*text* as a file name or key part; injective, so that different ids never meet.

    Every UTF-8 byte outside ``[A-Za-z0-9._-]`` becomes ``%XX``, and so does a leading dot.
    """
    if _PLAIN_ID.fullmatch(text):  # as that of every message is over HTTP
        return text
    encoded = "".join(
        chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass")
    )
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def file_stem(text: str) -> str:
    """*text* as a file name without its ending: `encode_id`, and still injective where that is too long
    for a file system (then its beginning and a SHA-256, joined by a ``~`` that `encode_id` never makes)."""
    encoded = encode_id(text)
    if len(encoded) <= _LONGEST_STEM:
        return encoded
    return encoded[: _LONGEST_STEM - 65] + "~" + hashlib.sha256(encoded.encode()).hexdigest()


@lru_cache(maxsize=4096)
def check_workspace_id(workspace_id: str) -> str:
    """*workspace_id* itself. Raises `InvalidWorkspaceId`."""
    if not _WORKSPACE_ID.fullmatch(workspace_id):
        raise InvalidWorkspaceId(
            f"{workspace_id!r} is not a workspace id: use 1 to 64 of a-z, 0-9, '.', '_', '-', "
            "beginning with a letter or digit"
        )
    return workspace_id


def workspace_tag(workspace_id: str) -> str:
    """The hash tag of all keys that belong to a workspace as a whole."""
    return "{w." + workspace_id + "}"


def place_audience(context_id: str) -> str:
    """The audience of what is said in a place that its platform does not call public."""
    return PLACE_PREFIX + context_id


def person_in(audience: str | None) -> str | None:
    """The person whose direct messages *audience* is; None where it is the workspace, or a place."""
    return audience if audience and not audience.startswith(PLACE_PREFIX) else None


EVERYONE = "*"
"""As a scope's audience: whatever the audience of what is read. For administrators of the runtime only; nothing is
written with it."""


def may_see(audience: str | None, reader: str | None) -> bool:
    """Whether what belongs to *audience* may be shown where *reader* is the audience: what is the workspace's may be
    shown everywhere, what is a place's or a person's only there."""
    return not audience or audience == reader


@dataclass(frozen=True, slots=True)
class Scope:
    """What a store call may see: a workspace, and within it at most one context and one audience.

    ``audience`` is the workspace (None), ``connector:user_id`` for one person's direct messages, or `place_audience`
    for one place. What is read belongs to the workspace or to that audience; what is written, to that audience.
    No store method takes a bare workspace name: whoever reads or writes says in whose scope.
    """

    workspace_id: str
    context_id: str | None = None
    audience: str | None = None

    def __post_init__(self) -> None:
        check_workspace_id(self.workspace_id)

    @property
    def tag(self) -> str:
        return workspace_tag(self.workspace_id)


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """One conversation: a platform's place (with its thread, where there is one) in a workspace."""

    workspace_id: str
    connector: str
    external_id: str

    def __post_init__(self) -> None:
        check_workspace_id(self.workspace_id)
        if not self.connector or not self.external_id:
            raise ValueError("a conversation needs a connector and an external id")

    @property
    def context_id(self) -> str:
        return f"{self.connector}:{self.external_id}"

    @property
    def scope(self) -> Scope:
        return Scope(self.workspace_id, self.context_id)

    @property
    def partition(self) -> int:
        """The partition, 0 to `PARTITIONS` - 1, that holds this conversation and its ready list."""
        return _partition(self.workspace_id, self.connector, self.external_id)

    @property
    def tag(self) -> str:
        return _tag(self.workspace_id, self.connector, self.external_id)

    @property
    def encoded(self) -> str:
        """Unique over all workspaces; contains none of ``:``, ``{`` and ``}``."""
        return _encoded(self.workspace_id, self.connector, self.external_id)

    @classmethod
    def decode(cls, encoded: str) -> ConversationKey:
        """The inverse of `encoded`."""
        workspace_id, connector, external = encoded.split("/", 2)
        raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), external.encode())
        return cls(workspace_id, connector, raw.decode("utf-8", "surrogatepass"))


# A turn asks for these three with each of its forty keys.
@lru_cache(maxsize=4096)
def _partition(workspace_id: str, connector: str, external_id: str) -> int:
    return zlib.crc32(f"{workspace_id}/{connector}:{external_id}".encode("utf-8", "surrogatepass")) % PARTITIONS


@lru_cache(maxsize=4096)
def _tag(workspace_id: str, connector: str, external_id: str) -> str:
    return partition_tag(_partition(workspace_id, connector, external_id))


@lru_cache(maxsize=4096)
def _encoded(workspace_id: str, connector: str, external_id: str) -> str:
    return f"{workspace_id}/{connector}/{encode_id(external_id)}"


def partition_tag(partition: int) -> str:
    """The hash tag of a partition's keys."""
    return "{p" + str(partition) + "}"


def redis_key(owner: str, tag: str, *parts: str) -> str:
    """The key of *owner*'s value *parts* under the hash tag *tag*: ``ar:<owner>:<tag>:<part>…``."""
    return ":".join(("ar", owner, tag, *parts))


@dataclass(frozen=True, slots=True)
class Fence:
    """What shows that its bearer still holds a conversation: the hash at *name* has *token* as its ``token``.

    Stores check it in the same step in which they write, so that who was taken for dead cannot write any more.
    """

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a message. ``id`` is the platform's own, without the connector's name."""

    id: str
    name: str = ""
    is_bot: bool = False

    def user(self, connector: str) -> str:
        """``connector:user_id``, as settings and access speak of people."""
        return f"{connector}:{self.id}"


@dataclass(frozen=True, slots=True)
class Quote:
    """The message that an inbound one replies to; ``message_id`` is the platform's, where it says."""

    author: str
    text: str
    message_id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message; ``handle`` is for the platform's own package to find it again."""

    kind: Literal["document", "image", "voice", "other"]
    name: str
    media_type: str = ""
    size_bytes: int = 0
    handle: str = ""


class InboundKind(StrEnum):
    """What happened on the platform.

    A ``COMMAND`` was given by the platform's own means (a slash command, a bot command), not as words of a
    message: its ``text`` is the command's word and what follows it, without a slash. For ``EDIT``, ``DELETE`` and
    ``REACTION`` the ``message_id`` is that of the message which was edited, deleted or reacted to.
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
    """One thing that happened in a conversation, as a platform package understood it.

    ``message_id`` is the platform's identity of the message within its place: the same delivery twice
    carries the same one. ``routes`` are the keys under which an operator may route this place to a
    workspace, most specific first; ``default_workspace`` is the workspace of this place alone, for operators
    who want one for each. ``workspace_id`` is set by connectors that are told which one.
    """

    connector: str
    external_id: str
    message_id: str
    author: Author
    text: str
    kind: InboundKind = InboundKind.MESSAGE
    sent_at: datetime | None = None
    direct: bool = False
    """Whether only this person and the bot are in the place."""
    public: bool = False
    """Whether the platform says that everybody of its workspace may read the place. What is not known is private."""
    place: str = ""
    """The external id of the place that a thread belongs to, where the same people read both; empty: its own."""
    addressed: bool = True
    """Whether the message is meant for the bot: direct, mentioned, or a reply to it."""
    by_thread_only: bool = False
    """Whether it is ``addressed`` only because the bot takes part in the thread in which it was said."""
    relayed: bool = False
    """Whether the text is what somebody else wrote, and its author only forwards it."""
    quote: Quote | None = None
    attachments: tuple[Attachment, ...] = ()
    reaction: str = ""
    """For `InboundKind.REACTION`: the emoji; empty when one was taken away."""
    unreacted: tuple[str, ...] = ()
    """For `InboundKind.REACTION`: the emoji that were taken away, or gave way to another."""
    looks_unfinished: bool = False
    """At the platform's size limit, or part of a media group or a burst of forwards."""
    workspace_id: str | None = None
    routes: tuple[str, ...] = ()
    default_workspace: str = ""
    caller_role: Role | None = None
    """Set by connectors whose callers were authenticated already: bounds what the author may do."""
    is_caller: bool = False
    """Whether the author is that caller, and not somebody for whom a program speaks."""
    reply_hint: str = ""
    """One sentence about how replies should behave on this platform; may be empty."""
    command_mark: Literal["/", "!"] = "/"
    """What people write before a command's word there. Both are taken; a platform may keep ``/`` to itself."""

    @property
    def audience(self) -> str | None:
        """Who may see what is kept of it; see `Scope`."""
        if self.direct:
            return self.author.user(self.connector)
        return None if self.public else place_audience(f"{self.connector}:{self.place or self.external_id}")

    @property
    def is_vouched_for(self) -> bool:
        """Whether its author is who it says: by the platform's word, or that of a caller who may speak for others."""
        return self.is_caller or self.caller_role in (None, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a passage came from: path under the workspace's ``docs/``, and its heading path."""

    source: str
    heading: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """A block (or ``model``) that could not be had for a turn, and why."""

    block: str
    why: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of the model calls of a turn, as the provider counted them; ``estimated`` where one said nothing
    of some call, which is counted by our own tokens."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    estimated: bool = False


GIVEN_UP = "internal"
"""The error code of a reply whose turn was given up: something broke that has nothing to do with the question."""


@dataclass(frozen=True, slots=True)
class Button:
    """A button below a message: its label, and the command that whoever presses it gives, e.g. ``pair approve CODE``,
    without a slash and at most `BUTTON_MAX_BYTES` long."""

    label: str
    command: str


BUTTON_MAX_BYTES = 64
"""The least that a platform takes for a button's command (Telegram's ``callback_data``)."""


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """What the runtime says into a conversation: the answer of a turn, or a notice.

    ``text`` is Markdown. ``answers`` are the inbound messages (their ``message_id``) that it answers.
    """

    key: ConversationKey
    turn_id: str
    text: str
    kind: Literal["reply", "notice", "apology"] = "reply"
    answers: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    """Those of ``answers`` whose place a newer one took: programs are told so, in place of the answer."""
    reply_to: str | None = None
    """The message to which the platform's reply should hang, where it has replies."""
    strategy: str = ""
    reason: str = ""
    sources: tuple[Source, ...] = ()
    """What the reply cites, or where it cites nothing the documents that the model was given."""
    shows_sources: bool = False
    """Whether people see ``sources`` below the text."""
    degraded: tuple[Degraded, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error_code: str = ""
    """For `apology`: the word by which programs know what went wrong, e.g. ``context_too_large``."""
    buttons: tuple[Button, ...] = ()
    """Shown below the last part by platforms that have `connectors.connector.ShowsButtons`; what they do is said in the
    text, too, for the others."""
    silent: bool = False
    """Whether people were told by other words: only who waits for this very answer is to have it."""
    stopped: bool = False
    """Whether people stopped the answer before its end."""


@dataclass(frozen=True, slots=True)
class OutboundPart:
    """One platform message of a reply, rendered and within the platform's limit.

    ``token`` identifies the part for good: the same part sent again carries the same one.
    """

    index: int
    total: int
    text: str
    token: str
    payload: str = "plain"
    """How ``text`` is to be understood by the platform package that rendered it (e.g. ``html``)."""
    file_name: str = ""
    """Set where the part goes as a file of that name, whose content (UTF-8) is ``text``."""
    sources: str = ""
    """One line of plain text that stands below ``text``, on platforms that have a form of its own for that."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a part was taken by the platform: its id there."""

    message_id: str
    ambiguous: bool = False
    """Whether the platform may have taken it twice or not at all (a lost answer, a time-out)."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the gateway did with an inbound message. The platform may be told once this is returned.

    ``outcome``: ``stored`` (a turn will follow), ``duplicate``, ``ignored``, or ``refused`` (then
    ``why`` is the reason, and the person was told where that is due). ``reply`` is the stored answer
    of a duplicate that was answered before.
    """

    outcome: Literal["stored", "duplicate", "ignored", "refused"]
    why: str = ""
    reply: OutboundMessage | None = None
    retry_after_seconds: int | None = None
    key: ConversationKey | None = None


# ---- answer ----
#
# An answer as a JSON object: what the HTTP face returns, and `chat --json` prints.


def answer_object(message: OutboundMessage) -> dict[str, Any]:
    """*message* as ``{"turn_id", "text", "sources", "strategy", "reason", "degraded", "usage"}``."""
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


# ---- identifiers ----
#
# Ids of turns: short, unique, and sortable by the time at which they were made.


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Of ten bits each."""
_TURN_ID = re.compile(f"t[{_ALPHABET}]{{20}}")


def new_turn_id() -> str:
    """``t`` and 20 letters and digits: 50 bits of milliseconds, 50 bits of chance."""
    number = (time.time_ns() // 1_000_000) << 50 | secrets.randbits(50)
    return "t" + "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])


def is_turn_id(text: str) -> bool:
    """Whether *text* is of the form that `new_turn_id` makes."""
    return _TURN_ID.fullmatch(text) is not None
