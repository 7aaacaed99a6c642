"""Native commands and buttons as they are given, pressed and answered: I/O. What they say is in `commands`.

Discord shows "did not respond" unless an interaction is answered within 3 s, and lets it be answered for 15 minutes
by a token that only this process has. It repeats none: a command that cannot be stored is answered with an error.
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
from connectors.discord import REPLY_HINT
from connectors.discord.events import (
    CONNECTOR,
    Names,
    Place,
    default_workspace,
    guild_id_of,
    is_public,
    parent_of,
    routes_of,
    with_names,
)
from connectors.discord.login import Login
from connectors.discord.payloads import BUTTON_PREFIX, EPHEMERAL, NO_BUTTONS, as_request, to_edit, to_private_answer
from connectors.discord.receive import place_of
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

# ---- commands ----
#
# Native commands: how Discord is told of them, and what somebody who gave one said. Pure.


ID_PREFIX = "interaction-"
"""Begins the message id of a command. Its number is not that of a message, and the answer to it is seen by one
person only: it must be known as one also after a restart."""

PRESS_PREFIX = "button-"
"""Begins the message id of a pressed button. The answer to it is seen by all who see the button."""

MAX_COMMANDS = 100
MAX_DESCRIPTION_CHARACTERS = 100
"""Reference, "Application Commands": of one app, and of a command's or option's description."""

_CHAT_INPUT = 1
_STRING = 3
_BUTTON = 2
# Reference, "Application Command Naming", without the scripts that have no case.
_NAME = re.compile(r"[-_\w]{1,32}")
_FIRST_WORD = re.compile(r"[\[<]?([a-z][a-z_-]{0,31})[\]>]?(?:…|\.\.\.)?")


def to_commands(hints: Sequence[CommandHint]) -> list[dict[str, Any]]:
    """*hints* as Discord's application commands, without those whose name it does not allow."""
    named = [hint for hint in hints if is_allowed(hint)]
    return [
        {
            "type": _CHAT_INPUT,
            "name": hint.name.lower(),
            "description": _described(hint.summary) or hint.name,
            "options": [_option(hint.arguments)] if hint.arguments else [],
        }
        for hint in named[:MAX_COMMANDS]
    ]


def is_allowed(hint: CommandHint) -> bool:
    """Whether Discord allows a command of that name."""
    return _NAME.fullmatch(hint.name.lower()) is not None


def are_registered(known: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Discord offers exactly the commands *wanted*; *known* is what it says of itself."""
    return sorted(map(_essence, known)) == sorted(map(_essence, wanted))


def is_command_id(message_id: str) -> bool:
    """Whether a message id is that of a command."""
    return message_id.startswith(ID_PREFIX)


def from_interaction(interaction: discord.Interaction[Any], place: Place) -> InboundMessage | None:
    """What the person who gave a command said, or the command of the button that was pressed; None for what is neither
    a command in the chat's own line nor a button of ours."""
    data: Mapping[str, Any] = interaction.data or {}
    custom_id = str(data.get("custom_id") or "")
    if interaction.type is discord.InteractionType.application_command and data.get("type") == _CHAT_INPUT:
        values = [str(option["value"]) for option in data.get("options") or () if "value" in option]
        said = with_names(" ".join([str(data["name"]), *values]).strip(), _names(interaction, data))
        prefix = ID_PREFIX
    elif data.get("component_type") == _BUTTON and custom_id.startswith(BUTTON_PREFIX):
        said, prefix = custom_id.removeprefix(BUTTON_PREFIX), PRESS_PREFIX
    else:
        return None
    who = interaction.user
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=f"{prefix}{interaction.id}",
        author=Author(str(who.id), who.display_name, who.bot),
        text=said,
        kind=InboundKind.COMMAND,
        sent_at=interaction.created_at,
        direct=guild_id_of(place) is None and not isinstance(place, discord.GroupChannel),
        public=is_public(place),
        place=parent_of(place),
        addressed=True,
        routes=routes_of(place, who.id),
        default_workspace=default_workspace(place, who.id),
        reply_hint=REPLY_HINT,
    )


def _option(arguments: str) -> dict[str, Any]:
    first = _FIRST_WORD.fullmatch(arguments.split()[0]) if arguments.split() else None
    return {
        "type": _STRING,
        "name": first[1] if first else "text",
        "description": _described(arguments) or "text",
        "required": False,
    }


def _described(text: str) -> str:
    plain = " ".join(text.split())
    limit = MAX_DESCRIPTION_CHARACTERS
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _essence(command: Mapping[str, Any]) -> tuple[Any, ...]:
    """What was asked for of a command, without what Discord adds."""
    options = tuple(
        (option["type"], option["name"], option["description"], bool(option.get("required")))
        for option in command.get("options") or ()
    )
    return command.get("type") or _CHAT_INPUT, command["name"], command["description"], options


def _names(interaction: discord.Interaction[Any], data: Mapping[str, Any]) -> Names:
    users: Mapping[str, Any] = (data.get("resolved") or {}).get("users") or {}
    guild = interaction.guild
    return Names(
        users={int(one): str(user.get("global_name") or user["username"]) for one, user in users.items()},
        roles={role.id: role.name for role in guild.roles} if guild else {},
        channels={channel.id: channel.name for channel in (*guild.channels, *guild.threads)} if guild else {},
    )


# ---- interactions ----


log = structlog.get_logger()

TOKEN_SECONDS = 14.5 * 60.0
"""Reference, "Interactions": a token is valid for 15 minutes."""
MAX_OPEN = 1000
"""Interactions whose tokens are kept."""
_LONGEST_ACCEPT_SECONDS = 60.0
_NOTICE_SECONDS = 0.9
"""How long a notice of the runtime's own, which says more, is waited for: within the 3 s, with those of storing."""

NOT_SUPPORTED = "I can only answer messages and commands."
_NOT_HERE = "I do not answer here."
_REFUSED = "I may not answer you here."
_TOO_FAST = "You are writing faster than I can answer. Please wait {seconds} s and try again."

_SAY, _DEFER, _DEFER_CHANGE, _CHANGE, _SUGGEST = 4, 5, 6, 7, 8
"""Reference, "Interaction Callback Type"."""
_ACKNOWLEDGED, _GONE = 40060, frozenset({10015, 10062, 50027})
"""Reference, "JSON Error Codes": answered already; unknown webhook, unknown interaction, invalid webhook token."""

_CALLBACK = "/interactions/{webhook_id}/{webhook_token}/callback"
_FOLLOW_UPS = "/webhooks/{webhook_id}/{webhook_token}"
_FIRST = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
_MESSAGE = "/webhooks/{webhook_id}/{webhook_token}/messages/{message_id}"


@dataclass(eq=False, slots=True)
class _Open:
    """An interaction that may still be answered."""

    id: int
    application_id: int
    token: str
    until: float
    first_part: str = ""
    """Token of the part that stands in its first answer."""
    is_acknowledged: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    said: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once something stands in its first answer."""


class Interactions:
    """*answer_seconds* is how long a command may take to be stored before Discord is told to wait."""

    def __init__(self, login: Login, answer_seconds: float = 2.0, token_seconds: float = TOKEN_SECONDS) -> None:
        self._login = login
        self._answer_seconds = answer_seconds
        self._token_seconds = token_seconds
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._messages: OrderedDict[str, _Open] = OrderedDict()
        self._group: asyncio.TaskGroup | None = None
        self._accept: Accept | None = None

    async def serve(self, accept: Accept) -> None:
        """Deals with what `take` is given, until cancelled. They do not wait for one another."""
        self._accept = accept
        try:
            async with asyncio.TaskGroup() as self._group:
                await asyncio.Event().wait()
        finally:
            self._group = self._accept = None

    def take(self, interaction: discord.Interaction[Any]) -> None:
        """Somebody gave a command, or pressed something. Neither blocks nor raises."""
        if self._group is not None and self._accept is not None:
            self._group.create_task(self._deal_with(interaction, self._accept), name="discord interaction")

    def answers(self, message: OutboundMessage) -> bool:
        """Whether *message* answers nothing but commands."""
        return bool(message.answers) and all(is_command_id(one) for one in message.answers)

    async def say(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """Shows *part* to who gave the command that *message* answers; None when it can no longer be answered.

        Raises `SendFailed`.
        """
        one = next((found for answered in message.answers if (found := self._opened(answered))), None)
        if one is None:
            return None
        try:
            async with one.lock:
                sent = await self._say(one, to_private_answer(part), part)
        except SendFailed as failed:
            if not failed.ambiguous:
                raise
            # Nothing marks it for Discord as the same, and nobody else can look for it: it is not said again.
            log.warning("reply.ambiguous", connector=CONNECTOR, part=part.index, why=str(failed))
            return Receipt(f"{ID_PREFIX}{one.id}")
        if sent is None:
            return None
        receipt = Receipt(str(sent["id"]))
        _keep(self._messages, receipt.message_id, one)
        return receipt

    async def edit(self, receipt: Receipt, part: OutboundPart) -> bool:
        """Whether *receipt* is that of an answer to a command, which then is replaced. Raises `SendFailed`."""
        one = self._messages.get(receipt.message_id)
        if one is None:
            return False
        await self._call(one, "PATCH", _MESSAGE, as_request(to_edit(part), part), receipt.message_id)
        return True

    async def take_back(self, receipt: Receipt) -> bool:
        """Whether *receipt* is that of an answer to a command, which then is deleted. Raises `SendFailed`."""
        one = self._messages.get(receipt.message_id)
        if one is None:
            return False
        with suppress(_Gone):  # nobody sees it any more
            await self._call(one, "DELETE", _MESSAGE, {}, receipt.message_id)
        return True

    async def _deal_with(self, interaction: discord.Interaction[Any], accept: Accept) -> None:
        one = _Open(
            interaction.id, interaction.application_id, interaction.token, time.monotonic() + self._token_seconds
        )
        try:
            message = _understood(interaction)
            if message is None:
                await self._decline(one, interaction)
                return
            if message.message_id.startswith(PRESS_PREFIX):
                await self._store_press(one, message, accept)
                return
            _keep(self._open, message.message_id, one)
            await self._store(one, message, accept)
        except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
            log.warning("connector.unanswered", connector=CONNECTOR, why=_why(error), message_id=str(one.id))

    async def _store(self, one: _Open, message: InboundMessage, accept: Accept) -> None:
        """Stores the command, then acknowledges it; where that takes long, Discord is told to wait first, and what
        became of it is told after."""
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(_outcome(accept, message))
            await asyncio.wait({storing}, timeout=self._answer_seconds)
            if not storing.done():
                await self._acknowledge(one, {"type": _DEFER, "data": {"flags": EPHEMERAL}})
            why = await storing
        if why:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NOTICE_SECONDS):
                    await one.said.wait()
            await self._tell(one, why)
        else:
            await self._acknowledge(one, {"type": _DEFER, "data": {"flags": EPHEMERAL}})

    async def _store_press(self, one: _Open, message: InboundMessage, accept: Accept) -> None:
        """Stores the press of a button, then takes the buttons away. Whoever pressed is told why it was not stored."""
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(_outcome(accept, message))
            await asyncio.wait({storing}, timeout=self._answer_seconds)
            if not storing.done():
                await self._acknowledge(one, {"type": _DEFER_CHANGE})
            why = await storing
        said = to_private_answer(OutboundPart(0, 1, why, f"{one.id}.outcome"))
        if not one.is_acknowledged:
            await self._respond(one, {"type": _SAY, "data": said} if why else {"type": _CHANGE, "data": NO_BUTTONS})
        elif why:
            await self._call(one, "POST", _FOLLOW_UPS, {"json": said})
        else:
            await self._call(one, "PATCH", _FIRST, {"json": NO_BUTTONS})

    async def _acknowledge(self, one: _Open, body: dict[str, Any]) -> None:
        async with one.lock:
            if one.is_acknowledged:
                return
            try:
                await self._respond(one, body)
            except SendFailed as failed:  # the answer itself is tried all the same
                log.warning("connector.unanswered", connector=CONNECTOR, why=str(failed), message_id=str(one.id))

    async def _decline(self, one: _Open, interaction: discord.Interaction[Any]) -> None:
        if interaction.type is discord.InteractionType.autocomplete:
            await self._respond(one, {"type": _SUGGEST, "data": {"choices": []}})
        else:
            await self._tell(one, NOT_SUPPORTED)

    async def _tell(self, one: _Open, text: str) -> None:
        """Says *text*, unless the command has been answered."""
        async with one.lock:
            if not one.first_part:
                part = OutboundPart(0, 1, text, f"{one.id}.outcome")
                await self._say(one, to_private_answer(part), part)

    async def _say(self, one: _Open, body: dict[str, Any], part: OutboundPart) -> dict[str, Any] | None:
        """The message that Discord made of *body*; None when the interaction is gone. Needs its lock."""
        try:
            if not one.is_acknowledged or one.first_part in ("", part.token):
                sent = await self._say_first(one, body, part)
                one.first_part = part.token
                one.said.set()
                return sent
            return await self._call(one, "POST", _FOLLOW_UPS, as_request(body, part))
        except _Gone:
            self._forget(one)
            return None

    async def _say_first(self, one: _Open, body: dict[str, Any], part: OutboundPart) -> dict[str, Any]:
        """The first answer: by responding, or in the place of the one that Discord has. Never ambiguous: to do it
        twice is as good as once."""
        try:
            if not one.is_acknowledged:
                answer = await self._respond(one, {"type": _SAY, "data": body}, part)
                sent: dict[str, Any] | None = (answer or {}).get("resource", {}).get("message")
                if sent is not None:
                    return sent
            return await self._call(one, "PATCH", _FIRST, as_request(to_edit(part), part))
        except SendFailed as failed:
            if not failed.ambiguous:
                raise
            raise SendFailed(str(failed), retryable=True) from failed

    async def _respond(
        self, one: _Open, body: dict[str, Any], part: OutboundPart | None = None
    ) -> dict[str, Any] | None:
        """What Discord answers to the first response; None where one was given already."""
        request = {"json": body} if part is None else as_request(body, part)
        route = Route("POST", _CALLBACK, webhook_id=one.id, webhook_token=one.token)
        try:
            answer: dict[str, Any] | None = await self._request(route, {**request, "params": {"with_response": "true"}})
        except _Answered:
            answer = None
        one.is_acknowledged = True
        return answer

    async def _call(
        self, one: _Open, method: str, path: str, request: dict[str, Any], message_id: str = ""
    ) -> dict[str, Any]:
        known: dict[str, Any] = {"webhook_id": one.application_id, "webhook_token": one.token}
        route = Route(method, path, **known, message_id=message_id) if message_id else Route(method, path, **known)
        return dict(await self._request(route, request) or {})

    async def _request(self, route: Route, request: dict[str, Any]) -> Any:
        try:
            return await self._login.ask(lambda client: client.http.request(route, **request))
        except SendFailed as failed:
            cause = failed.__cause__
            code = cause.code if isinstance(cause, discord.HTTPException) else 0
            if code == _ACKNOWLEDGED:
                raise _Answered(str(failed), retryable=False) from failed
            if code in _GONE:
                raise _Gone(str(failed), retryable=False) from failed
            raise

    def _opened(self, message_id: str) -> _Open | None:
        one = self._open.get(message_id)
        if one is not None and time.monotonic() > one.until:
            self._forget(one)
            return None
        return one

    def _forget(self, one: _Open) -> None:
        for kept in (self._open, self._messages):
            for name in [name for name, other in kept.items() if other is one]:
                del kept[name]


def _why(error: Exception) -> str:
    """Without the words of an error that is not ours, which may quote the command."""
    return str(error) if isinstance(error, SendFailed) else type(error).__name__


class _Gone(SendFailed):
    """The interaction can no longer be answered."""


class _Answered(SendFailed):
    """The interaction was answered already."""


def _keep(kept: OrderedDict[str, _Open], name: str, one: _Open) -> None:
    kept[name] = one
    if len(kept) > MAX_OPEN:
        kept.popitem(last=False)


def _understood(interaction: discord.Interaction[Any]) -> InboundMessage | None:
    try:
        return from_interaction(interaction, place_of(interaction))
    except Exception as error:  # noqa: BLE001 - the boundary: who gave the command is told that it was not understood
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
        return None


async def _outcome(accept: Accept, message: InboundMessage) -> str:
    """Why *message* was not stored, for its author; empty when it was."""
    try:
        async with asyncio.timeout(_LONGEST_ACCEPT_SECONDS):
            return _said_of(await accept(message))
    except TimeoutError:
        return AgentRuntimeError.user_text
    except AgentRuntimeError as error:
        return error.user_text
    except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
        # Without the error's own words, which may quote the command.
        log.warning("message.failed", connector=CONNECTOR, why=type(error).__name__, message_id=message.message_id)
        return AgentRuntimeError.user_text


def _said_of(accepted: Accepted) -> str:
    match accepted.outcome:
        case "refused" if accepted.retry_after_seconds is not None:
            return _TOO_FAST.format(seconds=accepted.retry_after_seconds)
        case "refused":
            return _REFUSED
        case "ignored":
            return _NOT_HERE
        case _:
            return ""
