"""Slash commands: brought once, answered at once or by a URL that takes five posts within its time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from aiohttp import web

from tests.emulators.slack_nouns import Channel, Delivery, Json, Person, Whisper

if TYPE_CHECKING:
    from tests.emulators.slack import SlackEmulator

MAX_RESPONSES = 5


class Commands:
    """The commands of one workspace, and their response URLs."""

    def __init__(self, slack: SlackEmulator) -> None:
        self._slack = slack
        self._given: dict[str, Json] = {}
        self._posts: dict[str, int] = {}
        self.expired = False
        """Whether 30 minutes have passed."""
        self.rate_limited = False
        """Whether the next post to a response URL is asked to wait."""
        self.answer_lost = False
        """Whether the answer to the next post to a response URL gets lost behind it."""
        self.whispers: list[Whisper] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/hook/{trigger}", self._respond)]

    def payload(self, text: str, by: Person, to: Channel | None, thread: str | None, **more: str) -> Json:
        """What Slack sends to the app when *by* types ``/agent`` and *text*."""
        trigger = f"{self._slack.number()}.{self._slack.number()}.f00"
        place = (to or by).channel_id
        given: Json = {
            "token": "verification",
            "team_id": self._slack.team_id,
            "channel_id": place,
            "channel_name": ("privategroup" if to.private else to.name) if to else "directmessage",
            "user_id": by.id,
            "user_name": by.name.lower(),
            "command": "/agent",
            "text": text,
            "api_app_id": "A0APP",
            "is_enterprise_install": "false",
            "response_url": f"{self._slack.origin}/hook/{trigger}",
            "trigger_id": trigger,
            **({"thread_ts": thread} if thread else {}),
            **more,
        }
        self._given[trigger] = given
        return given

    def form(self, payload: Json) -> bytes:
        """A command or an interaction as the body of a request."""
        return urlencode(payload if "command" in payload else {"payload": json.dumps(payload)}).encode()

    def note(self, delivery: Delivery) -> None:
        """Its acknowledgement came; what came with it is shown to who gave the command."""
        if delivery.told and delivery.told.get("text"):
            self._whisper(delivery.payload, str(delivery.told["text"]))

    async def _respond(self, request: web.Request) -> web.Response:
        trigger = request.match_info["trigger"]
        said = await request.json()
        if self.rate_limited:
            self.rate_limited = False
            return web.Response(status=429, text="rate_limited", headers={"Retry-After": "7"})
        if trigger not in self._given or self.expired:
            return web.json_response({"ok": False, "error": "expired_url"}, status=404)
        self._posts[trigger] = self._posts.get(trigger, 0) + 1
        if self._posts[trigger] > MAX_RESPONSES:
            return web.json_response({"ok": False, "error": "used_url"}, status=404)
        if not str(said.get("text") or "").strip():
            return web.Response(status=400, text="no_text")
        assert said["response_type"] == "ephemeral", "everybody would see it"
        self._whisper(self._given[trigger], str(said["text"]))
        if self.answer_lost:
            self.answer_lost = False
            return web.Response(status=504, text="<html>")
        return web.Response(text="ok")

    def _whisper(self, given: Json, text: str) -> None:
        self.whispers.append(Whisper(given["trigger_id"], given["user_id"], given["channel_id"], text))
