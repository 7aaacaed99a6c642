"""Slack, to be played with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from connectors.slack.mrkdwn import emoji_name, emoji_of
from tests.emulators.play.world import ROOMS, CannotDo, Crew, Message, Reaction, Spot, Upload, calls_bot, room_in
from tests.emulators.slack import Channel, Person, Shown, SlackEmulator

_CALL = re.compile(r"<@U(\d+)>")


class SlackPlay:
    """Implements `tests.emulators.play.world.Platform`. Any message can begin a thread."""

    name = "slack"

    def __init__(self, crew: Crew) -> None:
        self.emulator = SlackEmulator(redeliver_seconds=3.0)
        self._crew = crew
        self._rooms = {name: Channel(f"C{200 + number}", name) for number, name in enumerate(ROOMS)}

    async def __aenter__(self) -> SlackPlay:
        await self.emulator.__aenter__()
        for room in self._rooms.values():
            self.emulator.join(room)
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self.emulator.__aexit__(*how)

    def environment(self) -> Mapping[str, str]:
        slack = self.emulator
        return {
            "SLACK_BOT_TOKEN": slack.token,
            "SLACK_APP_TOKEN": slack.app_token,
            "SLACK_API_BASE": slack.base_url,
        }

    def conversation(self, spot: Spot) -> str:
        place = self._place(spot).channel_id
        return f"{place}/{spot.thread}" if spot.thread else place

    async def thread(self, spot: Spot, word: str) -> str:
        channel, _, ts = word.partition("/")
        if channel != self._place(spot).channel_id or not self.emulator.has(channel, ts):
            raise CannotDo("that message is not in this place")
        return next((m.thread for m in self.emulator.all_shown if m.ts == ts and m.thread), ts)

    async def say(self, spot: Spot, text: str, reply_to: str = "", upload: Upload | None = None) -> str:
        thread = await self.thread(spot, reply_to) if reply_to else spot.thread
        person, room = self._person(spot.person), self._room(spot)
        text = calls_bot(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"), self.emulator.at_bot)
        if upload is None:
            ts = self.emulator.say(text, by=person, to=room, thread=thread or None)
        else:
            file = self.emulator.files.add(upload.name, upload.content, upload.media_type)
            attached: dict[str, Any] = {"subtype": "file_share", "files": [file]}
            ts = self.emulator.say(text, by=person, to=room, thread=thread or None, **attached)
        return f"{self._place(spot).channel_id}/{ts}"

    async def change(self, spot: Spot, message_id: str, text: str) -> None:
        self.emulator.change(self._place(spot), message_id.partition("/")[2], calls_bot(text, self.emulator.at_bot))

    async def delete(self, spot: Spot, message_id: str) -> None:
        self.emulator.delete(self._place(spot), message_id.partition("/")[2])

    async def react(self, spot: Spot, message_id: str, emoji: str) -> None:
        name = emoji_name(emoji)
        if name is None:
            raise CannotDo(f"write the emoji by Slack's name, such as :eyes: ({emoji} is not known here)")
        place, ts = self._place(spot), message_id.partition("/")[2]
        self.emulator.react(place, ts, name, by=self._person(spot.person))

    async def command(self, spot: Spot, line: str) -> None:
        self.emulator.command(line, by=self._person(spot.person), to=self._room(spot))

    async def press(self, spot: Spot, label: str) -> None:
        if not label:
            self.emulator.interact({"type": "block_actions", "actions": []})
            return
        found = [one for one in self.emulator.shown(self._place(spot), spot.thread or None) if label in one.buttons]
        if not found:
            raise CannotDo(f"the bot shows no button {label!r} here")
        self.emulator.press(found[-1], label, by=self._person(spot.person))

    def messages(self) -> Sequence[Message]:
        said = [self._told(shown) for shown in self.emulator.all_shown]
        whispers = [
            Message(
                f"whisper/{number}",
                whisper.channel,
                self._readable(whisper.text),
                only_for=self._crew.name(int(whisper.user[1:])),
                is_whole=True,
            )
            for number, whisper in enumerate(self.emulator.whispers)
        ]
        return said + whispers

    def reactions(self) -> Sequence[Reaction]:
        there = self.emulator.reactions.items()
        return [Reaction(f"{channel}/{ts}", emoji_of(one)) for (channel, ts), names in there for one in names]

    def signs(self) -> int:
        return sum(bool(status) for _, _, status in self.emulator.statuses)

    async def outage(self, is_away: bool) -> None:
        self.emulator.down = is_away
        if is_away:
            await self.emulator.kill()

    def _told(self, shown: Shown) -> Message:
        place = f"{shown.channel}/{shown.thread}" if shown.thread else shown.channel
        text = f"[file {shown.file}, {len(shown.raw):,} characters]" if shown.file else self._readable(shown.text)
        if shown.context:
            text += f"\n({shown.context})"
        text += "".join(f" [{label}]" for label in shown.buttons)
        return Message(
            f"{shown.channel}/{shown.ts}", place, text, is_growing=shown.streaming, is_whole=shown.file is not None
        )

    def _readable(self, text: str) -> str:
        return _CALL.sub(lambda match: "@" + self._crew.name(int(match[1])), text)

    def _room(self, spot: Spot) -> Channel | None:
        return self._rooms[room_in(self._rooms, spot.room)] if spot.room else None

    def _person(self, name: str) -> Person:
        number = self._crew.number(name)
        return Person(f"U{number}", self._crew.name(number))

    def _place(self, spot: Spot) -> Channel | Person:
        return self._room(spot) or self._person(spot.person)
