"""Commands and buttons: convert them, store them, and answer them. I/O.

Discord shows "did not respond" unless an interaction is answered within 3 seconds. It lets it be answered for 15
minutes, with a token that only this process has. It repeats none, so a command that cannot be stored is answered with
an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import discord
import structlog
from discord.http import Route

from connectors.connector import Accept, CommandHint, SendFailed
from connectors.discord.events import CONNECTOR, Names, Place, inbound, with_names
from connectors.discord.login import Login
from connectors.discord.payloads import (
    BUTTON_PREFIX,
    EPHEMERAL,
    NO_BUTTONS,
    as_request,
    to_edit,
    to_private_answer,
)
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    Author,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
)

log = structlog.get_logger()

ID_PREFIX = "interaction-"
"""Begins the message id of a command. The prefix shows, also after a restart, that the id is not that of a message and
that only one person sees the answer."""

PRESS_PREFIX = "button-"
"""Begins the message id of a pressed button. Everybody who sees the button sees the answer."""

MAX_COMMANDS = 100
MAX_DESCRIPTION_CHARACTERS = 100
"""Reference, "Application Commands": of one app, and of a command's or option's description."""

TOKEN_SECONDS = 14.5 * 60.0
"""Reference, "Interactions": a token is valid for 15 minutes."""
MAX_OPEN = 1000
"""Interactions whose tokens are kept."""

NOT_SUPPORTED = "I can only answer messages and commands."
_NOT_HERE = "I do not answer here."
_REFUSED = "I may not answer you here."
_TOO_FAST = "You are writing faster than I can answer. Please wait {seconds} s and try again."

_MAX_ACCEPT_SECONDS = 60.0
_NOTICE_SECONDS = 0.9
"""How long to wait for the runtime's own notice, which says more. With the time for storing it stays below 3 s."""

_CHAT_INPUT, _STRING, _BUTTON = 1, 3, 2
"""Reference, "Application Command Types", "Application Command Option Type" and "Component Types"."""
_SAY, _DEFER, _DEFER_CHANGE, _CHANGE, _SUGGEST = 4, 5, 6, 7, 8
"""Reference, "Interaction Callback Type"."""
_ACKNOWLEDGED, _GONE = 40060, frozenset({10015, 10062, 50027})
"""Reference, "JSON Error Codes": already answered; unknown webhook, unknown interaction, invalid webhook token."""

_CALLBACK = "/interactions/{webhook_id}/{webhook_token}/callback"
_FOLLOW_UPS = "/webhooks/{webhook_id}/{webhook_token}"
_FIRST = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
_MESSAGE = "/webhooks/{webhook_id}/{webhook_token}/messages/{message_id}"

# Reference, "Application Command Naming", without the scripts that have no case.
_NAME = re.compile(r"[-_\w]{1,32}")
_FIRST_WORD = re.compile(r"[\[<]?([a-z][a-z_-]{0,31})[\]>]?(?:…|\.\.\.)?")


# The commands that Discord offers


def to_commands(hints: Sequence[CommandHint]) -> list[dict[str, Any]]:
    """Return *hints* as Discord's application commands, without those whose name Discord does not allow."""
    allowed = [hint for hint in hints if is_allowed(hint)]
    return [
        {
            "type": _CHAT_INPUT,
            "name": hint.name.lower(),
            "description": _shorten(hint.summary) or hint.name,
            "options": [_option(hint.arguments)] if hint.arguments else [],
        }
        for hint in allowed[:MAX_COMMANDS]
    ]


def is_allowed(hint: CommandHint) -> bool:
    """Return whether Discord allows a command of that name."""
    return _NAME.fullmatch(hint.name.lower()) is not None


def _option(arguments: str) -> dict[str, Any]:
    first = _FIRST_WORD.fullmatch(arguments.split()[0]) if arguments.split() else None
    return {
        "type": _STRING,
        "name": first[1] if first else "text",
        "description": _shorten(arguments) or "text",
        "required": False,
    }


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    limit = MAX_DESCRIPTION_CHARACTERS
    return line if len(line) <= limit else line[: limit - 1] + "…"


# Interactions as inbound messages


def from_interaction(interaction: discord.Interaction[Any]) -> InboundMessage | None:
    """Convert a command that somebody gave, or the command of a pressed button; None for other interactions.

    Raises `TypeError` for an interaction in a place without messages.
    """
    place = interaction.channel
    if not isinstance(place, Place):
        raise TypeError("an interaction in a place without messages")
    data: Mapping[str, Any] = interaction.data or {}
    custom_id = str(data.get("custom_id") or "")
    if interaction.type is discord.InteractionType.application_command and data.get("type") == _CHAT_INPUT:
        values = [str(option["value"]) for option in data.get("options") or () if "value" in option]
        text = with_names(" ".join([str(data["name"]), *values]).strip(), _names(interaction, data))
        prefix = ID_PREFIX
    elif data.get("component_type") == _BUTTON and custom_id.startswith(BUTTON_PREFIX):
        text, prefix = custom_id.removeprefix(BUTTON_PREFIX), PRESS_PREFIX
    else:
        return None
    user = interaction.user
    return inbound(
        place,
        user.id,
        message_id=f"{prefix}{interaction.id}",
        author=Author(str(user.id), user.display_name, user.bot),
        text=text,
        kind=InboundKind.COMMAND,
        sent_at=interaction.created_at,
        addressed=True,
    )


def _names(interaction: discord.Interaction[Any], data: Mapping[str, Any]) -> Names:
    users: Mapping[str, Any] = (data.get("resolved") or {}).get("users") or {}
    guild = interaction.guild
    return Names(
        users={int(user_id): str(user.get("global_name") or user["username"]) for user_id, user in users.items()},
        roles={role.id: role.name for role in guild.roles} if guild else {},
        channels={channel.id: channel.name for channel in (*guild.channels, *guild.threads)} if guild else {},
    )


# Answering


@dataclass(eq=False, slots=True)
class _Open:
    """An interaction that may still be answered."""

    id: int
    application_id: int
    token: str
    expires_at: float
    first_part: str = ""
    """The token of the part that is its first answer."""
    is_acknowledged: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its first answer has content."""


class _Gone(SendFailed):
    """The interaction can no longer be answered."""


class _AlreadyAcknowledged(SendFailed):
    """The interaction already has its first answer."""


class Interactions:
    """Stores commands and button presses, and answers them.

    If storing takes longer than *answer_seconds*, Discord is told to wait.
    """

    def __init__(self, login: Login, answer_seconds: float = 2.0, token_seconds: float = TOKEN_SECONDS) -> None:
        self._login = login
        self._answer_seconds = answer_seconds
        self._token_seconds = token_seconds
        self._by_command: OrderedDict[str, _Open] = OrderedDict()
        self._by_answer: OrderedDict[str, _Open] = OrderedDict()
        self._group: asyncio.TaskGroup | None = None
        self._accept: Accept | None = None

    async def serve(self, accept: Accept) -> None:
        """Handle the interactions from `take` until cancelled. They do not wait for one another."""
        self._accept = accept
        try:
            async with asyncio.TaskGroup() as self._group:
                await asyncio.Event().wait()
        finally:
            self._group = self._accept = None

    def take(self, interaction: discord.Interaction[Any]) -> None:
        """Begin to handle an interaction. Neither blocks nor raises."""
        if self._group is not None and self._accept is not None:
            self._group.create_task(self._handle(interaction, self._accept), name="discord interaction")

    def answers(self, message: OutboundMessage) -> bool:
        """Return whether *message* answers only commands."""
        return bool(message.answers) and all(answered.startswith(ID_PREFIX) for answered in message.answers)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """Show *part* to the person whose command *message* answers; None if it can no longer be answered.

        Raises `SendFailed`.
        """
        interaction = next((found for answered in message.answers if (found := self._find_open(answered))), None)
        if interaction is None:
            return None
        try:
            async with interaction.lock:
                sent = await self._answer(interaction, to_private_answer(part), part)
        except SendFailed as failed:
            if not failed.ambiguous:
                raise
            # Discord has no nonce for answers, and nobody else can look for one. So it is not sent again.
            log.warning("reply.ambiguous", connector=CONNECTOR, part=part.index, why=str(failed), then="skip")
            return Receipt(f"{ID_PREFIX}{interaction.id}")
        if sent is None:
            return None
        receipt = Receipt(str(sent["id"]))
        _remember(self._by_answer, receipt.message_id, interaction)
        return receipt

    async def edit(self, receipt: Receipt, part: OutboundPart) -> bool:
        """Replace the answer to a command; return False if *receipt* is not one. Raises `SendFailed`."""
        interaction = self._by_answer.get(receipt.message_id)
        if interaction is None:
            return False
        await self._call(interaction, "PATCH", _MESSAGE, as_request(to_edit(part), part), receipt.message_id)
        return True

    async def take_back(self, receipt: Receipt) -> bool:
        """Delete the answer to a command; return False if *receipt* is not one. Raises `SendFailed`."""
        interaction = self._by_answer.get(receipt.message_id)
        if interaction is None:
            return False
        with suppress(_Gone):  # nobody sees it any more
            await self._call(interaction, "DELETE", _MESSAGE, {}, receipt.message_id)
        return True

    # A new interaction

    async def _handle(self, event: discord.Interaction[Any], accept: Accept) -> None:
        expires_at = time.monotonic() + self._token_seconds
        interaction = _Open(event.id, event.application_id, event.token, expires_at)
        try:
            message = _convert(event)
            if message is None:
                await self._decline(interaction, event)
            elif message.message_id.startswith(PRESS_PREFIX):
                await self._store_press(interaction, message, accept)
            else:
                _remember(self._by_command, message.message_id, interaction)
                await self._store_command(interaction, message, accept)
        except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
            # Not the text of an error that is not ours: it may quote the command.
            why = str(error) if isinstance(error, SendFailed) else type(error).__name__
            log.warning("connector.unanswered", connector=CONNECTOR, why=why, message_id=str(interaction.id))

    async def _store_command(self, interaction: _Open, message: InboundMessage, accept: Accept) -> None:
        """Store the command, then acknowledge it. If it was not stored, tell its author why."""
        defer = {"type": _DEFER, "data": {"flags": EPHEMERAL}}
        why = await self._store(interaction, message, accept, defer)
        if why:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NOTICE_SECONDS):
                    await interaction.answered.wait()
            await self._answer_unless_answered(interaction, why)
        else:
            await self._acknowledge(interaction, defer)

    async def _store_press(self, interaction: _Open, message: InboundMessage, accept: Accept) -> None:
        """Store the press of a button, then remove the buttons. If it was not stored, tell the person why."""
        why = await self._store(interaction, message, accept, {"type": _DEFER_CHANGE})
        notice = to_private_answer(_notice(interaction, why))
        if not interaction.is_acknowledged:
            body = {"type": _SAY, "data": notice} if why else {"type": _CHANGE, "data": NO_BUTTONS}
            await self._respond(interaction, body)
        elif why:
            await self._call(interaction, "POST", _FOLLOW_UPS, {"json": notice})
        else:
            await self._call(interaction, "PATCH", _FIRST, {"json": NO_BUTTONS})

    async def _store(self, interaction: _Open, message: InboundMessage, accept: Accept, defer: dict[str, Any]) -> str:
        """Store *message*. Return why that failed, or an empty text. Send *defer* if it takes long."""
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(_accept_message(accept, message))
            await asyncio.wait({storing}, timeout=self._answer_seconds)
            if not storing.done():
                await self._acknowledge(interaction, defer)
            return await storing

    async def _acknowledge(self, interaction: _Open, body: dict[str, Any]) -> None:
        async with interaction.lock:
            if interaction.is_acknowledged:
                return
            try:
                await self._respond(interaction, body)
            except SendFailed as failed:  # the answer itself may still arrive
                why = str(failed)
                log.warning("connector.unanswered", connector=CONNECTOR, why=why, message_id=str(interaction.id))

    async def _decline(self, interaction: _Open, event: discord.Interaction[Any]) -> None:
        if event.type is discord.InteractionType.autocomplete:
            await self._respond(interaction, {"type": _SUGGEST, "data": {"choices": []}})
        else:
            await self._answer_unless_answered(interaction, NOT_SUPPORTED)

    # Calls

    async def _answer_unless_answered(self, interaction: _Open, text: str) -> None:
        async with interaction.lock:
            if not interaction.first_part:
                part = _notice(interaction, text)
                await self._answer(interaction, to_private_answer(part), part)

    async def _answer(self, interaction: _Open, body: dict[str, Any], part: OutboundPart) -> dict[str, Any] | None:
        """Send *body*. Return Discord's message, or None if the interaction is gone. The caller holds the lock."""
        try:
            if not interaction.is_acknowledged or interaction.first_part in ("", part.token):
                sent = await self._answer_first(interaction, body, part)
                interaction.first_part = part.token
                interaction.answered.set()
                return sent
            return await self._call(interaction, "POST", _FOLLOW_UPS, as_request(body, part))
        except _Gone:
            self._forget(interaction)
            return None

    async def _answer_first(self, interaction: _Open, body: dict[str, Any], part: OutboundPart) -> dict[str, Any]:
        """Send the first answer, or replace the one that Discord has. Repeating it is harmless, so never ambiguous."""
        try:
            if not interaction.is_acknowledged:
                answer = await self._respond(interaction, {"type": _SAY, "data": body}, part)
                sent: dict[str, Any] | None = (answer or {}).get("resource", {}).get("message")
                if sent is not None:
                    return sent
            return await self._call(interaction, "PATCH", _FIRST, as_request(to_edit(part), part))
        except SendFailed as failed:
            if not failed.ambiguous:
                raise
            raise SendFailed(str(failed), retryable=True) from failed

    async def _respond(
        self, interaction: _Open, body: dict[str, Any], part: OutboundPart | None = None
    ) -> dict[str, Any] | None:
        """Send the first response. Return Discord's answer, or None if there was a response already."""
        request = {"json": body} if part is None else as_request(body, part)
        route = Route("POST", _CALLBACK, webhook_id=interaction.id, webhook_token=interaction.token)
        try:
            answer: dict[str, Any] | None = await self._request(route, {**request, "params": {"with_response": "true"}})
        except _AlreadyAcknowledged:
            answer = None
        interaction.is_acknowledged = True
        return answer

    async def _call(
        self, interaction: _Open, method: str, path: str, request: dict[str, Any], message_id: str = ""
    ) -> dict[str, Any]:
        ids: dict[str, Any] = {"webhook_id": interaction.application_id, "webhook_token": interaction.token}
        if message_id:
            ids["message_id"] = message_id
        return dict(await self._request(Route(method, path, **ids), request) or {})

    async def _request(self, route: Route, request: dict[str, Any]) -> Any:
        try:
            # A further part has no nonce, so it would be shown twice.
            repeats = route.path != _FOLLOW_UPS
            return await self._login.ask(lambda client: client.http.request(route, **request), repeats=repeats)
        except SendFailed as failed:
            cause = failed.__cause__
            code = cause.code if isinstance(cause, discord.HTTPException) else 0
            if code == _ACKNOWLEDGED:
                raise _AlreadyAcknowledged(str(failed), retryable=False) from failed
            if code in _GONE:
                raise _Gone(str(failed), retryable=False) from failed
            raise

    # Memory

    def _find_open(self, message_id: str) -> _Open | None:
        interaction = self._by_command.get(message_id)
        if interaction is not None and time.monotonic() > interaction.expires_at:
            self._forget(interaction)
            return None
        return interaction

    def _forget(self, interaction: _Open) -> None:
        for memory in (self._by_command, self._by_answer):
            for message_id in [message_id for message_id, other in memory.items() if other is interaction]:
                del memory[message_id]


def _remember(memory: OrderedDict[str, _Open], message_id: str, interaction: _Open) -> None:
    memory[message_id] = interaction
    if len(memory) > MAX_OPEN:
        memory.popitem(last=False)


def _convert(event: discord.Interaction[Any]) -> InboundMessage | None:
    try:
        return from_interaction(event)
    except Exception as error:  # noqa: BLE001 - the boundary: the person is told that the command is not supported
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
        return None


def _notice(interaction: _Open, text: str) -> OutboundPart:
    return OutboundPart(0, 1, text, f"{interaction.id}.outcome")


async def _accept_message(accept: Accept, message: InboundMessage) -> str:
    """Have *message* accepted. Return why it was not, for its author; empty if it was."""
    try:
        async with asyncio.timeout(_MAX_ACCEPT_SECONDS):
            return _reason(await accept(message))
    except TimeoutError:
        return AgentRuntimeError.user_text
    except AgentRuntimeError as error:
        return error.user_text
    except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
        # Not the error's text, which may quote the command.
        log.warning("message.failed", connector=CONNECTOR, why=type(error).__name__, message_id=message.message_id)
        return AgentRuntimeError.user_text


def _reason(accepted: Accepted) -> str:
    match accepted.outcome:
        case "refused" if accepted.retry_after_seconds is not None:
            return _TOO_FAST.format(seconds=accepted.retry_after_seconds)
        case "refused":
            return _REFUSED
        case "ignored":
            return _NOT_HERE
        case _:
            return ""
