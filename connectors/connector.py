"""The port between the runtime and a platform.

A platform is one package with a class that has the methods of `Connector`, and those of the optional
abilities below that the platform has. The runtime asks with ``isinstance`` which abilities there are
(all are runtime-checkable protocols) and does without the rest.

Life of a connector: built by the wiring; `run` is started inside a task group and ends when it is
cancelled, or raises `ConnectorFailed`, after which the others go on; `close` is called once, always.

Inbound: for each thing that happens the connector awaits ``accept(message)`` **before** it
acknowledges the platform. When `accept` returns, the message is stored (or knowingly dropped) and may
be acknowledged. When it raises `connectors.message.StoreUnavailable` nothing was stored: the connector
must not acknowledge, and lets the platform deliver again (or keeps the message and tries again).

Outbound: `render` is pure and splits a reply into parts within the platform's limits; `send` sends one
part and returns its receipt. The runtime stores the state of each part around that call, so `send`
itself never retries a send whose outcome is unknown: it raises `SendFailed` with ``ambiguous=True``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import httpx

from connectors.message import (
    Accepted,
    AgentRuntimeError,
    Attachment,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
)

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


Accept = Callable[[InboundMessage], Awaitable[Accepted]]
"""The gateway's door. Raises `connectors.message.StoreUnavailable` when nothing could be stored."""


class State(StrEnum):
    """What ``/readyz`` and the event ``connector.state`` say of a connector or store."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Health:
    """A state and, unless all is well, why and what to do about it."""

    state: State
    why: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a platform can do, as far as the runtime decides by it."""

    max_part_units: int
    """Size limit of one part, in the platform's own units (see ``units``)."""
    units: Literal["characters", "utf16", "bytes"] = "characters"
    threads: bool = False
    idempotency: Literal["none", "nonce", "metadata"] = "none"
    """How a repeated send can be recognised by the platform."""
    edits_per_second: float = 0.0
    """How often one message may be edited while a reply streams; 0 where it may not."""
    sends_per_second: float = 0.0
    """Pace of sends into one place; 0 for no limit of its own."""
    sends_per_second_overall: float = 0.0
    """Pace of all calls together; 0 for no limit of its own."""
    edits_per_second_overall: float = 0.0
    """Pace of all edits together; 0 for no limit of its own."""
    openings_per_second_overall: float = 0.0
    """Pace of all replies together that begin to grow by the platform's own means; 0 for no limit of its own."""
    additions_per_second_overall: float = 0.0
    """Pace of all that is added to them; 0 for no limit of its own."""
    local: bool = False
    """Whether its people are connected to one process: only that one can answer them."""
    command_mark: Literal["/", "!"] = "/"
    """What people write before a command's word there; see `connectors.message.InboundMessage`."""


class ConnectorFailed(AgentRuntimeError):
    """The connector cannot work until a person does something; the text names the variable."""


class SendFailed(AgentRuntimeError):
    """A part was not taken, or (``ambiguous``) nobody can know whether it was.

    ``retry_after_seconds`` is the wait that the platform asked for, if it did; ``everywhere`` says that it means all
    its places, and not only this one.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        ambiguous: bool = False,
        retry_after_seconds: float | None = None,
        everywhere: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.ambiguous = ambiguous
        self.retry_after_seconds = retry_after_seconds
        self.everywhere = everywhere


class AttachmentUnavailable(AgentRuntimeError):
    """A file that came with a message cannot be had; the text says why, for the person who sent it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message


@dataclass(frozen=True, slots=True)
class Location:
    """Where a file can be fetched. ``url`` and ``headers`` may hold a secret: they go to ``hosts`` only, and to no log.

    ``hosts`` are the only ones that may be asked, redirects included: a name, or ``.name`` for all below it.
    ``trusts_private`` says that the operator named the host in the settings (a proxy, an API server of their
    own), so that it may stand at a private address. Where there is a ``path``, the file lies there on the machine of
    the connector, and nothing is asked.
    """

    url: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusts_private: bool = False
    path: str = ""


@dataclass(frozen=True, slots=True)
class CommandHint:
    """What a platform shows of a command: its word, what follows it (e.g. ``[name]``), and what it does."""

    name: str
    summary: str
    arguments: str = ""


@runtime_checkable
class Connector(Protocol):
    """What every platform has."""

    @property
    def name(self) -> str:
        """The connector's word in ids, settings and events, e.g. ``telegram``."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def health(self) -> Health:
        """The truth about the connection now. Must not block."""

    async def run(self, accept: Accept) -> None:
        """Receive until cancelled. Raises `ConnectorFailed` when only a person can help."""

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        """*message* as parts within the platform's limits; no character of its text is lost. Pure."""

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Send one part of *message* to its place. Raises `SendFailed`."""

    async def close(self) -> None:
        """Let go of connections. Bounded; never raises."""


@runtime_checkable
class EditsMessages(Protocol):
    """Sent parts can be replaced; used to show a reply while it grows and to give it its final form.

    At which pace is ``capabilities.edits_per_second``.
    """

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        """Replace what *receipt* stands for by *part*. Repeating it is harmless. Raises `SendFailed`."""

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        """Delete what *receipt* stands for; one that is gone already is no error. Raises `SendFailed`."""


@runtime_checkable
class AppendsText(Protocol):
    """The platform has means of its own to show a reply that grows. Its last form comes by `EditsMessages.edit`,
    which works also after a restart, when nobody knows any more that the message was begun this way.
    """

    def appends(self, message: OutboundMessage) -> bool:
        """Whether the reply to *message*'s ``answers`` can be shown that way in its place."""

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        """Begin the reply with *text* (Markdown). Raises `SendFailed`."""

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """What was begun since *message* was asked for and seems to be the beginning of *part* of it, in its last form,
        where the answer to `begin` was lost. Raises `SendFailed` when the platform cannot be asked."""

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        """Add *text* to what was begun. May be lost where the last form puts it right. Raises `SendFailed`."""


@runtime_checkable
class StreamsText(Protocol):
    """A reply can be shown while it is written, as text that is added to."""

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        """Whether anybody watches the reply to *answers* grow; if not, it is not streamed at all."""

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        """Show *delta*, the next piece of the reply to *answers*. May be lost; never raises."""


@runtime_checkable
class LetsGo(Protocol):
    """Somebody waits for the answer to each message, and is to know at once when there will be none."""

    def let_go(self, key: ConversationKey, messages: tuple[str, ...], *, gone: bool) -> None:
        """A newer message took the place of these, or their workspace is *gone*. Never blocks or raises."""


@runtime_checkable
class ShowsTyping(Protocol):
    """A sign that an answer is on its way; the platform lets it fade by itself."""

    typing_lasts_seconds: float

    async def typing(self, key: ConversationKey) -> None:
        """Show the sign once. May be lost; raises `SendFailed` only with a wait that the platform asks for."""


@runtime_checkable
class Reacts(Protocol):
    """An emoji can be put on a message, to acknowledge it."""

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        """Put *emoji* on a message. May be lost; raises `SendFailed` only with a wait that the platform asks for."""


@runtime_checkable
class SharesPace(Protocol):
    """Several conversations are one place to the platform's limits: the threads of a channel, the topics of a group."""

    def paced_as(self, key: ConversationKey) -> str:
        """The place whose pace holds for *key*. Pure."""


@runtime_checkable
class CountsByMinute(Protocol):
    """The platform bounds how much may be said in some places within a minute, beside any pace."""

    def most_in_a_minute(self, place: str) -> int:
        """How many messages and edits *place* takes in any minute, by its name from `SharesPace.paced_as` (else the
        conversation's ``external_id``); 0 for no such limit. Pure."""


@runtime_checkable
class ShowsButtons(Protocol):
    """`OutboundMessage.buttons` are shown below the last part. A press comes in as an `InboundKind.COMMAND` of whoever
    pressed, with the button's command as its text, once however often the platform brings it; once it was taken, the
    buttons go."""

    max_buttons: int
    """How many buttons one message may have."""


@runtime_checkable
class ReadsBack(Protocol):
    """What became of an ambiguous send can be found out."""

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        """The receipt of *part* if the platform has it. Raises `SendFailed` when it cannot be asked."""


@runtime_checkable
class FetchesMissed(Protocol):
    """Messages that came while no process listened can be read afterwards."""

    def missed(self, key: ConversationKey, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """What was said after *after_message_id*, oldest first."""


@runtime_checkable
class LocatesAttachments(Protocol):
    """Files that come with messages can be fetched."""

    async def locate(self, attachment: Attachment) -> Location:
        """Where *attachment* (by its ``handle``) lies now. Raises `AttachmentUnavailable`."""


@runtime_checkable
class RegistersCommands(Protocol):
    """People are shown the commands by the platform itself. They come in as `InboundKind.COMMAND`."""

    async def register_commands(self, commands: Sequence[CommandHint]) -> None:
        """Have the platform offer *commands*, and no others. Called once connected. Raises `SendFailed`."""


@runtime_checkable
class MountsRoutes(Protocol):
    """The platform talks to us over HTTP: routes for the runtime's own HTTP face."""

    def routes(self) -> Sequence[BaseRoute]:
        """Routes to be mounted before `run`; each authenticates its caller itself."""


# ---- examination ----
#
# What a platform says of a bot when it is asked, before or while a connector runs: `setup` and `doctor` show it.
#
# Each platform's package has a module ``examine`` that asks with plain HTTP, so that its SDK need not be imported.


class CannotAsk(Exception):
    """The platform gave no answer that could be read. Its text says so in a line, without secrets."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the bot from working: what was seen, and what a person has to do."""

    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Examined:
    """Who the bot is there, e.g. ``@helper in Acme``, as far as that could be found out; and what is wrong.

    ``invitation`` is a link by which the bot is brought to where people are, on platforms that have one.
    """

    who: str = ""
    problems: tuple[Problem, ...] = ()
    invitation: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A platform's answer: HTTP's status, its JSON object, and headers by their names in small letters."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


async def ask(
    url: str, *, shown_as: str, seconds: float, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """What *url* answers within *seconds*. Raises `CannotAsk`, which names *shown_as*: the URL may hold a secret."""
    # Loads the machine's certificates from disk.
    http = await asyncio.to_thread(httpx.AsyncClient, timeout=seconds)
    try:
        async with http, asyncio.timeout(seconds):
            response = await http.request(method, url, headers=headers)
            body = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        # "from None": the error shows the URL.
        raise CannotAsk(f"{shown_as} cannot be reached ({type(error).__name__})") from None
    if not isinstance(body, dict):
        raise CannotAsk(f"{shown_as} does not answer like the platform")
    return Answer(response.status_code, body, {name.lower(): value for name, value in response.headers.items()})


def unreachable(error: CannotAsk, variable: str) -> Examined:
    """A platform that gave no answer at the address that *variable* sets."""
    advice = f"check that this machine can reach it, and that {variable} is right"
    return Examined(problems=(Problem(str(error), advice),))
