"""Discord, to be played with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.emulators.discord import DiscordEmulator, File, Person, Place, Room, Shown
from tests.emulators.discord_nouns import BUTTON
from tests.emulators.play.world import ROOMS, CannotDo, Crew, Message, Reaction, Spot, Upload, calls_bot, room_in

_CALL = re.compile(r"<@!?(\d+)>")


class DiscordPlay:
    """Implements `tests.emulators.play.world.Platform`. Any message of a room can begin a thread."""

    name = "discord"

    def __init__(self, crew: Crew) -> None:
        rooms = [Room(910 + number, name) for number, name in enumerate(ROOMS)]
        self.emulator = DiscordEmulator(rooms=tuple(rooms))
        self._crew = crew
        self._rooms = {room.name: room for room in rooms}
        self._people: dict[str, Person] = {}

    async def __aenter__(self) -> DiscordPlay:
        await self.emulator.__aenter__()
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self.emulator.__aexit__(*how)

    def environment(self) -> Mapping[str, str]:
        discord = self.emulator
        return {
            "DISCORD_BOT_TOKEN": discord.token,
            "DISCORD_API_BASE": discord.base_url,
            "DISCORD_GATEWAY_URL": discord.gateway_url,
        }

    def conversation(self, spot: Spot) -> str:
        return str(self._place(spot).channel_id)

    async def thread(self, spot: Spot, word: str) -> str:
        channel, _, number = word.partition("/")
        if not spot.room or not number or channel != str(self._rooms[room_in(self._rooms, spot.room)].channel_id):
            raise CannotDo("on Discord a thread begins at a message of a room: /thread and its number")
        room = Room(int(number), f"thread {number[-4:]}", parent=int(channel))
        if room.channel_id not in self.emulator.rooms:
            self.emulator.join(room)
            await self.emulator.push("THREAD_CREATE", self.emulator._channel(room), room)
        return number

    async def say(self, spot: Spot, text: str, reply_to: str = "", upload: Upload | None = None) -> str:
        place = self._place(spot)
        files = (File(upload.name, upload.content, upload.media_type),) if upload else ()
        said = await self.emulator.say(
            calls_bot(text, self.emulator.at_bot),
            to=place if isinstance(place, Room) else None,
            by=self._person(spot.person),
            reply_to=_number(reply_to) if reply_to else None,
            files=files,
        )
        return f"{place.channel_id}/{said}"

    async def change(self, spot: Spot, message_id: str, text: str) -> None:
        await self.emulator.change(_number(message_id), calls_bot(text, self.emulator.at_bot))

    async def delete(self, spot: Spot, message_id: str) -> None:
        await self.emulator.delete(_number(message_id))

    async def react(self, spot: Spot, message_id: str, emoji: str) -> None:
        await self.emulator.react(_number(message_id), emoji, by=self._person(spot.person))

    async def command(self, spot: Spot, line: str) -> None:
        word, _, rest = line.partition(" ")
        offered = [command["name"] for command in self.emulator.commands.registered]
        if word not in offered:
            raise CannotDo(f"Discord offers no /{word} here; it offers {', '.join(offered) or 'none yet'}")
        place = self._place(spot)
        room = place if isinstance(place, Room) else None
        await self.emulator.command(word, rest, to=room, by=self._person(spot.person))

    async def press(self, spot: Spot, label: str) -> None:
        if label:
            found = [one for one in self.emulator.shown(self._place(spot)) if label in one.buttons]
            if not found:
                raise CannotDo(f"the bot shows no button {label!r} here")
            await self.emulator.press(found[-1], label, by=self._person(spot.person))
            return
        data = {"custom_id": "x", "component_type": 2, "components": []}
        await self.emulator.commands.interact(BUTTON, data, self._place(spot), self._person(spot.person))

    def messages(self) -> Sequence[Message]:
        places: list[Place] = [*self._people.values(), *self.emulator.rooms.values()]
        said = [self._told(shown) for place in places for shown in self.emulator.shown(place)]
        for given in self.emulator.commands.given.values():
            for shown, is_ephemeral in zip(given.shown, given.ephemeral, strict=False):
                said.append(self._told(shown, given.by.name if is_ephemeral else "", is_whole=True))
        return said

    def reactions(self) -> Sequence[Reaction]:
        there = self.emulator.reactions.items()
        return [Reaction(f"{channel}/{number}", one) for (channel, number), emoji in there for one in emoji]

    def signs(self) -> int:
        waiting = sum(given.is_waiting for given in self.emulator.commands.given.values())
        return len(self.emulator.typing) + waiting

    async def outage(self, is_away: bool) -> None:
        self.emulator.down = is_away
        if is_away:
            await self.emulator.drop()

    def _told(self, shown: Shown, only_for: str = "", *, is_whole: bool = False) -> Message:
        files = "".join(f"[file {file.name}, {len(file.content):,} bytes] " for file in shown.files)
        text = _CALL.sub(lambda match: "@" + self._crew.name(int(match[1])), shown.text)
        return Message(
            f"{shown.channel_id}/{shown.message_id}",
            str(shown.channel_id),
            files + text + "".join(f" [{label}]" for label in shown.buttons),
            only_for=only_for,
            is_whole=is_whole or bool(files),
        )

    def _place(self, spot: Spot) -> Place:
        if spot.thread:
            return self.emulator.rooms[int(spot.thread)]
        return self._rooms[room_in(self._rooms, spot.room)] if spot.room else self._person(spot.person)

    def _person(self, name: str) -> Person:
        number = self._crew.number(name)
        person = Person(number, self._crew.name(number))
        self._people[person.name] = person
        return person


def _number(message_id: str) -> int:
    return int(message_id.rpartition("/")[2])
