"""Native commands on the emulated Discord: what is registered, what people give, and how it is answered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.emulators.discord_nouns import (
    AUTOCOMPLETE,
    BUTTON,
    CHANGE,
    DEFER,
    DEFER_CHANGE,
    EPHEMERAL,
    SAY,
    SUGGEST,
    Json,
    Person,
    Place,
    Refused,
    Shown,
    change_shown,
    content_of,
    files_of,
    pings,
)

if TYPE_CHECKING:
    from tests.emulators.discord import DiscordEmulator

APPLICATION_ID = 124
MAX_COMMANDS = 100
_KINDS = (SAY, DEFER, DEFER_CHANGE, CHANGE, SUGGEST)
_NAME = re.compile(r"[-_\w]{1,32}")


@dataclass
class Given:
    """An interaction of *by*'s, and what *by* sees of it."""

    id: int
    token: str
    type: int
    by: Person
    place: Place
    given_at: float
    is_waiting: bool = False
    """Whether "… is thinking" is shown."""
    is_answered: bool = False
    is_deferred: bool = False
    """Whether the message of a pressed button is said to change."""
    on: Shown | None = None
    """The message below which a button was pressed; what is changed as the first answer until there is another."""
    choices: list[Json] | None = None
    shown: list[Shown] = field(default_factory=list)
    ephemeral: list[bool] = field(default_factory=list)
    had_bot_token: bool = False

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.shown]


class Commands:
    """The part of *discord* that deals with application commands and interactions."""

    def __init__(self, discord: DiscordEmulator) -> None:
        self._discord = discord
        self.registered: list[Json] = []
        self.deadline_seconds = 3.0
        """How long an interaction may stay without any answer."""
        self.given: dict[str, Given] = {}
        self._expired: set[str] = set()
        app = "/applications/{app}/commands"
        webhook = "/webhooks/{app}/{token}"
        self.routes: dict[tuple[str, str], tuple[str, Callable[[web.Request, Json], Any]]] = {
            ("GET", app): ("commands", lambda _request, _body: self.registered),
            ("PUT", app): ("register", self._register),
            ("POST", "/interactions/{interaction}/{token}/callback"): ("respond", self._respond),
            ("POST", webhook): ("follow_up", self._follow_up),
            ("PATCH", webhook + "/messages/@original"): ("change_first", self._change_first),
            ("PATCH", webhook + "/messages/{message}"): ("change_answer", self._change),
            ("DELETE", webhook + "/messages/{message}"): ("delete_answer", self._delete),
        }

    async def interact(
        self, kind: int, data: Json, place: Place, by: Person, *, on: Shown | None = None, **more: Json
    ) -> Given:
        """*by* gives a command, presses a button (below the message *on*), types into an option or sends a form.
        ``more`` goes into the interaction as it is."""
        discord = self._discord
        discord.join(place)
        number = discord._new_id()
        given = Given(number, f"token-{number}", kind, by, place, asyncio.get_running_loop().time(), on=on)
        self.given[given.token] = given
        told: Json = {
            "id": str(given.id),
            "application_id": str(APPLICATION_ID),
            "type": kind,
            "token": given.token,
            "version": 1,
            "data": data,
            "channel_id": str(place.channel_id),
            "attachment_size_limit": 10485760,
            "entitlements": [],
            "authorizing_integration_owners": {},
            "context": 1 if isinstance(place, Person) else 0,
            **more,
        }
        if isinstance(place, Person):
            told |= {"user": by.as_json(), "channel": discord.direct_channel(place)}
        else:
            told |= {
                "guild_id": str(place.guild_id),
                "guild": {"id": str(place.guild_id), "features": [], "locale": "en-US"},
                "channel": discord._channel(place),
                "member": discord._member(by) | {"user": by.as_json(), "permissions": "0"},
            }
        await discord.push("INTERACTION_CREATE", told)
        return given

    def expire(self, given: Given) -> None:
        """The fifteen minutes of *given*'s token are over."""
        self._expired.add(given.token)

    # What the bot calls

    def _register(self, _request: web.Request, body: Json) -> list[Json]:
        commands: list[Json] = body.get("_list", [])
        if len(commands) > MAX_COMMANDS:
            raise Refused(400, 30032, "Maximum number of application commands reached (100)")
        for command in commands:
            _check(command)
            for option in command.get("options", []):
                _check(option)
        if len({command["name"] for command in commands}) != len(commands):
            raise Refused(400, 50035, "Invalid Form Body: APPLICATION_COMMANDS_DUPLICATE_NAME")
        extra = {"application_id": str(APPLICATION_ID), "version": "1", "nsfw": False, "default_permission": True}
        # Discord leaves out what is as if it was not said.
        self.registered = [
            {k: v for k, v in command.items() if v not in ([], None)} | extra | {"id": str(number)}
            for number, command in enumerate(commands, start=1)
        ]
        for command in self.registered:
            command["options"] = [
                {k: v for k, v in one.items() if v is not False} for one in command.get("options", [])
            ]
        return self.registered

    def _respond(self, request: web.Request, body: Json) -> Json | None:
        given = self.given.get(request.match_info["token"])
        if given is None or str(given.id) != request.match_info["interaction"]:
            raise Refused(404, 10062, "Unknown interaction")
        if given.is_answered:
            raise Refused(400, 40060, "Interaction has already been acknowledged.")
        if asyncio.get_running_loop().time() - given.given_at > self.deadline_seconds:
            raise Refused(404, 10062, "Unknown interaction")
        kind, data = body["type"], body.get("data", {}) | {k: v for k, v in body.items() if k == "_files"}
        if (kind == SUGGEST) != (given.type == AUTOCOMPLETE) or kind not in _KINDS:
            raise Refused(400, 50035, "Invalid Form Body\nIn type: not for this interaction")
        if kind in (CHANGE, DEFER_CHANGE) and (given.type != BUTTON or given.on is None):
            raise Refused(400, 50035, "Invalid Form Body\nIn type: not for this interaction")
        given.had_bot_token = "Authorization" in request.headers
        message: Json | None = None
        if kind == SAY:
            message = self._show(given, data)
        elif kind == CHANGE and given.on is not None:
            change_shown(given.on, data)
        elif kind == DEFER_CHANGE:
            given.is_deferred = True
        elif kind == DEFER:
            given.is_waiting = True
            given.ephemeral.append(bool(data.get("flags", 0) & EPHEMERAL))
        elif kind == SUGGEST:
            given.choices = data["choices"]
        given.is_answered = True
        if request.query.get("with_response") != "true":
            return None
        about: Json = {"interaction": {"id": str(given.id), "type": given.type}}
        return about | ({"resource": {"type": kind, "message": message}} if message is not None else {})

    def _follow_up(self, request: web.Request, body: Json) -> Json:
        given = self._of(request)
        return self._show(given, body)

    def _change_first(self, request: web.Request, body: Json) -> Json:
        given = self._of(request)
        if given.is_waiting:
            given.is_waiting = False
            first = given.ephemeral.pop(0)
            return self._show(given, body, first)
        if given.on is not None and given.is_deferred:
            return self._changed(given, given.on, body)
        return self._changed(given, given.shown[0], body)

    def _change(self, request: web.Request, body: Json) -> Json:
        given = self._of(request)
        return self._changed(given, self._answer(given, request), body)

    def _delete(self, request: web.Request, _body: Json) -> None:
        given = self._of(request)
        given.shown.remove(self._answer(given, request))

    def _of(self, request: web.Request) -> Given:
        given = self.given.get(request.match_info["token"])
        if given is None or not given.is_answered or request.match_info["app"] != str(APPLICATION_ID):
            raise Refused(404, 10015, "Unknown Webhook")
        if given.token in self._expired:
            raise Refused(401, 50027, "Invalid Webhook Token")
        return given

    def _answer(self, given: Given, request: web.Request) -> Shown:
        for one in given.shown:
            if str(one.message_id) == request.match_info["message"]:
                return one
        raise Refused(404, 10008, "Unknown Message")

    def _show(self, given: Given, body: Json, ephemeral: bool | None = None) -> Json:
        text, files = content_of(body), files_of(body)
        message = self._discord.message_json(given.place, self._discord.me, text)
        number = int(message["id"])
        given.shown.append(Shown(given.place.channel_id, number, text, pings=pings(body), files=files))
        given.ephemeral.append(bool(body.get("flags", 0) & EPHEMERAL) if ephemeral is None else ephemeral)
        return message

    def _changed(self, given: Given, shown: Shown, body: Json) -> Json:
        change_shown(shown, body)
        return self._discord.message_json(given.place, self._discord.me, shown.text) | {"id": str(shown.message_id)}


def _check(named: Json) -> None:
    name, about = named["name"], named["description"]
    if not _NAME.fullmatch(name) or name != name.lower():
        raise Refused(400, 50035, "Invalid Form Body: APPLICATION_COMMAND_INVALID_NAME")
    if not 1 <= len(about) <= 100:
        raise Refused(400, 50035, "Invalid Form Body: BASE_TYPE_BAD_LENGTH")
