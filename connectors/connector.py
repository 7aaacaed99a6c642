"""The port between the runtime and a platform.

A platform is one package with a class that has the methods of `Connector`, and those of the optional abilities below
that the platform has. The runtime tests with ``isinstance`` which abilities there are (all are runtime-checkable
protocols) and works without the others.

Lifetime: the wiring builds a connector. `run` starts in a task group and ends when it is cancelled, or raises
`ConnectorFailed`; the other connectors go on. `close` is always called, once.

Inbound: for each event the connector awaits ``accept(message)`` **before** it acknowledges the platform. When `accept`
returns, the message is stored (or deliberately dropped) and may be acknowledged. If it raises
`connectors.message.StoreUnavailable`, nothing was stored: the connector must not acknowledge, and lets the platform
deliver again (or keeps the message and tries again).

Outbound: `render` is pure and splits a reply into parts within the platform's limits; `send` sends one part and returns
its receipt. The runtime stores the state of each part around that call. So `send` never repeats a send whose outcome
is unknown: it raises `SendFailed` with ``ambiguous=True``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

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
"""Hands a message to the gateway. Raises `connectors.message.StoreUnavailable` if nothing was stored."""


class ConnectionState(StrEnum):
    """The state of a connector or store, as ``/readyz`` and the event ``connector.state`` show it."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Health:
    """A state and, unless all is well, the reason and what to do about it."""

    state: ConnectionState
    why: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features and limits of a platform that matter to the runtime. A rate of 0 means no limit."""

    max_part_units: int
    """Size limit of one part, in the platform's ``units``. For tests; `Connector.render` cuts by limits of its own."""
    units: Literal["characters", "utf16"] = "characters"
    idempotency: Literal["none", "nonce"] = "none"
    """``nonce``: the platform recognises a repeated send by the part's token."""
    edits_per_second: float = 0.0
    """Rate of edits of one message while a reply streams; 0 if that is not possible."""
    sends_per_second: float = 0.0
    """Rate of sends to one place."""
    sends_per_second_overall: float = 0.0
    """Rate of all calls together."""
    edits_per_second_overall: float = 0.0
    """Rate of all edits together."""
    stream_starts_per_second_overall: float = 0.0
    """Rate of all calls of `AppendsText.begin`."""
    stream_appends_per_second_overall: float = 0.0
    """Rate of all calls of `AppendsText.append`."""
    local: bool = False
    """True if people are connected to one process, which alone can answer them."""
    command_mark: Literal["/", "!"] = "/"
    """The sign before a command's word; see `connectors.message.InboundMessage`."""


class ConnectorFailed(AgentRuntimeError):
    """The connector cannot work until a person does something. The text names the variable to set."""


class SendFailed(AgentRuntimeError):
    """The platform did not accept a part, or (``ambiguous``) nobody can know whether it did.

    ``retry_after_seconds`` is the wait that the platform asked for, if any. With ``everywhere`` the wait holds for all
    places, not only for this one.
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
    """A file that came with a message cannot be fetched. The text says why, for the person who sent it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a file: ``url``, or ``path`` on the connector's machine.

    ``url`` and ``headers`` may contain a secret: they go to ``hosts`` only, and to no log. ``hosts`` are the only hosts
    that may be contacted, also by redirects: a name, or ``.name`` for all names below it. ``trusts_private``: the
    operator named the host in the settings (a proxy, their own API server), so it may have a private address.
    """

    url: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusts_private: bool = False
    path: str = ""


@dataclass(frozen=True, slots=True)
class CommandHint:
    """A command as a platform shows it: its word, its arguments (e.g. ``[name]``), and what it does."""

    name: str
    summary: str
    arguments: str = ""


@runtime_checkable
class Connector(Protocol):
    """The methods of every platform."""

    @property
    def name(self) -> str:
        """The connector's name in ids, settings and events, e.g. ``telegram``."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def health(self) -> Health:
        """The present state of the connection. Must not block."""

    async def run(self, accept: Accept) -> None:
        """Receive until cancelled. Raises `ConnectorFailed` if only a person can help."""

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        """Return *message* as parts within the platform's limits, without losing a character of its text. Pure."""

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Send one part of *message* to its place. Raises `SendFailed`."""

    async def close(self) -> None:
        """Close all connections. Bounded; never raises."""


@runtime_checkable
class EditsMessages(Protocol):
    """Sent parts can be replaced, to show a reply while it grows and to give it its final form.

    ``capabilities.edits_per_second`` limits how often.
    """

    def edits(self, message: OutboundMessage) -> bool:
        """Return whether the parts of *message* can be replaced, as an answer to its ``answers``. Pure."""

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        """Replace the message of *receipt* with *part*. Repeating it is harmless. Raises `SendFailed`."""

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        """Delete the message of *receipt*; one that is already deleted is no error. Raises `SendFailed`."""


@runtime_checkable
class AppendsText(Protocol):
    """The platform has its own way to show a reply that grows.

    `EditsMessages.edit` gives it its final form, also after a restart, when nobody knows any more how it began.
    """

    def appends(self, message: OutboundMessage) -> bool:
        """Return whether *message* can grow that way, in its place and as an answer to its ``answers``."""

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        """Begin the reply with *text* (Markdown). Raises `SendFailed`."""

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """Return the receipt of a reply that `begin` began although its answer was lost.

        *part* is the final form of the beginning. Only messages after the question count. Raises `SendFailed` if the
        platform cannot be asked.
        """

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        """Append *text*. It may be lost, as the final form contains it. Raises `SendFailed`."""


@runtime_checkable
class StreamsText(Protocol):
    """A reply can be shown to a waiting program or page while it is written, delta by delta."""

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        """Return whether anybody watches the reply to *answers* grow; otherwise it is not streamed."""

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        """Show *delta*, the next piece of the reply to *answers*. It may be lost; never raises."""


@runtime_checkable
class ReleasesWaiters(Protocol):
    """Somebody waits for the answer to each message, and must learn at once if there will be none."""

    def let_go(self, key: ConversationKey, messages: tuple[str, ...], *, gone: bool) -> None:
        """Tell those who wait for *messages* that a newer message replaced them, or that their workspace is *gone*.

        Never blocks or raises.
        """


@runtime_checkable
class ShowsTyping(Protocol):
    """The platform can show that an answer is on its way; it removes the sign by itself."""

    typing_lasts_seconds: float

    async def typing(self, key: ConversationKey) -> None:
        """Show the sign once. It may be lost; raises `SendFailed` only with a wait that the platform asks for."""


@runtime_checkable
class Reacts(Protocol):
    """The bot can put an emoji on a message, to acknowledge it."""

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        """Put *emoji* on a message. It may be lost; raises `SendFailed` only with a wait that the platform asks for."""


@runtime_checkable
class SharesRateLimit(Protocol):
    """Several conversations share the platform's rate limit: the threads of a channel, the topics of a group."""

    def paced_as(self, key: ConversationKey) -> str:
        """Return the place whose rate limit holds for *key*. Pure."""


@runtime_checkable
class LimitsPerMinute(Protocol):
    """The platform limits how many messages some places take in a minute, in addition to any rate per second."""

    def max_per_minute(self, place: str) -> int:
        """Return how many messages and edits *place* takes in any minute; 0 for no such limit. Pure.

        *place* is a result of `SharesRateLimit.paced_as`, or the conversation's ``external_id`` without that ability.
        """


@runtime_checkable
class ShowsButtons(Protocol):
    """`OutboundMessage.buttons` are shown below the last part.

    A press comes in as an `InboundKind.COMMAND` of the person who pressed, with the button's command as its text, and
    only once even if the platform delivers it again. After it was accepted, the buttons are removed.
    """

    max_buttons: int
    """The most buttons that one message may have."""


@runtime_checkable
class FindsSentParts(Protocol):
    """The platform can be asked for the outcome of an ambiguous send."""

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        """Return the receipt of *part* if the platform has it. Raises `SendFailed` if it cannot be asked."""


@runtime_checkable
class BackfillsMessages(Protocol):
    """Messages that were written while no process listened can be read afterwards."""

    @property
    def sessions(self) -> int:
        """The number of sessions that were begun. Nothing brings what was written between two of them but `missed`.

        It grows before the first message of the new session is handed over. 1 on platforms that deliver again what a
        broken connection did not bring.
        """

    def missed(self, external_id: str, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """Yield the messages of a place after *after_message_id*, oldest first; none if the bot may not read there."""


@runtime_checkable
class LocatesAttachments(Protocol):
    """Files that come with messages can be fetched."""

    async def locate(self, attachment: Attachment) -> Location:
        """Return where *attachment* (by its ``handle``) can be fetched now. Raises `AttachmentUnavailable`."""


@runtime_checkable
class RegistersCommands(Protocol):
    """The platform itself offers people the commands, which come in as `InboundKind.COMMAND`."""

    async def register_commands(self, commands: Sequence[CommandHint]) -> None:
        """Let the platform offer *commands*, and no others. Called once connected. Raises `SendFailed`."""


@runtime_checkable
class MountsRoutes(Protocol):
    """The platform, or a browser, calls us over HTTP."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes to mount before `run`; each authenticates its caller itself."""


# Examination: a platform is asked about the bot, before or while a connector runs, for `setup` and `doctor`.
# Each platform's package has a function ``examine`` that asks over plain HTTP, without the platform's SDK.


class NoAnswer(Exception):
    """The platform gave no readable answer. The text says so in a line, without secrets."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the bot from working, and what a person has to do about it."""

    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The bot's name, e.g. ``@helper in Acme`` (empty if unknown), and its problems.

    ``invitation`` is a link that adds the bot to a place, on platforms that have one.
    """

    who: str = ""
    problems: tuple[Problem, ...] = ()
    invitation: str = ""


@dataclass(frozen=True, slots=True)
class PlatformAnswer:
    """A platform's answer: HTTP status, JSON object, and headers by their lower-case names."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


async def ask_platform(
    url: str, *, shown_as: str, seconds: float, method: str = "GET", headers: Mapping[str, str] | None = None
) -> PlatformAnswer:
    """Return the answer of *url* within *seconds*.

    Raises `NoAnswer`, which names *shown_as* and not the URL, since that may contain a secret.
    """
    import httpx

    # In a thread, because it loads the machine's certificates from disk.
    http = await asyncio.to_thread(httpx.AsyncClient, timeout=seconds)
    try:
        async with http, asyncio.timeout(seconds):
            response = await http.request(method, url, headers=headers)
            body = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        # "from None", because the error shows the URL.
        raise NoAnswer(f"{shown_as} cannot be reached ({type(error).__name__})") from None
    if not isinstance(body, dict):
        raise NoAnswer(f"{shown_as} does not answer like the platform")
    return PlatformAnswer(response.status_code, body, {name.lower(): value for name, value in response.headers.items()})


def unreachable_platform(error: NoAnswer, variable: str) -> Examination:
    """Return the examination of a platform that does not answer at the address that *variable* sets."""
    advice = f"check that this machine can reach it, and that {variable} is right"
    return Examination(problems=(Problem(str(error), advice),))
