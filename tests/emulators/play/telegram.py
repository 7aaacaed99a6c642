"""Telegram, to be played with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.emulators.play.world import ROOMS, CannotDo, Crew, Message, Reaction, Spot, Upload, calls_bot, room_in
from tests.emulators.telegram import Person, Room, Shown, TelegramEmulator, entities_of
from tests.emulators.telegram_nouns import REACTIONS

TOPICS = (7, 8)


class TelegramPlay:
    """Implements `tests.emulators.play.world.Platform`. The room ``forum`` has topics."""

    name = "telegram"

    def __init__(self, crew: Crew) -> None:
        self.emulator = TelegramEmulator()
        # A bot whose DATA_DIR was kept has seen the ids of the last time: it would take these for repeats.
        self.emulator.first_message = int(time.time())
        self._crew = crew
        self._rooms = {name: Room(-100200 - number, name) for number, name in enumerate(ROOMS)}
        self._rooms["forum"] = Room(-100300, "forum", TOPICS)
        self._people: dict[str, Person] = {}

    async def __aenter__(self) -> TelegramPlay:
        await self.emulator.__aenter__()
        for room in self._rooms.values():
            self.emulator.join(room)
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self.emulator.__aexit__(*how)

    def environment(self) -> Mapping[str, str]:
        return {"TELEGRAM_BOT_TOKEN": self.emulator.token, "TELEGRAM_API_BASE": self.emulator.base_url}

    def conversation(self, spot: Spot) -> str:
        chat = str(self._chat(spot))
        return f"{chat}/{spot.thread}" if spot.thread else chat

    async def thread(self, spot: Spot, word: str) -> str:
        if spot.room != "forum" or not word.isdecimal() or int(word) not in TOPICS:
            raise CannotDo(f"on Telegram there are topics {' and '.join(map(str, TOPICS))}, in #forum; else /reply")
        return word

    async def say(self, spot: Spot, text: str, reply_to: str = "", upload: Upload | None = None) -> str:
        text = calls_bot(text, f"@{self.emulator.me.username}")
        more: dict[str, Any] = {}
        if upload is not None:
            more = self._attached(upload) | ({"caption": text, "caption_entities": entities_of(text)} if text else {})
        room = self._rooms[room_in(self._rooms, spot.room)] if spot.room else None
        topic = int(spot.thread) if spot.thread else None
        answered = int(reply_to.rpartition("/")[2]) if reply_to else None
        said = await self.emulator.say(
            "" if upload else text, to=room, by=self._person(spot.person), topic=topic, reply_to=answered, **more
        )
        return f"{self._chat(spot)}/{said}"

    async def change(self, spot: Spot, message_id: str, text: str) -> None:
        chat, number = _parts(message_id)
        await self.emulator.change(chat, number, calls_bot(text, f"@{self.emulator.me.username}"))

    async def delete(self, spot: Spot, message_id: str) -> None:
        raise CannotDo("Telegram tells bots of no deletions: for the bot nothing would happen")

    async def react(self, spot: Spot, message_id: str, emoji: str) -> None:
        if emoji not in REACTIONS:
            raise CannotDo("Telegram has no such reaction; it has some seventy, e.g. 👀 👍 👎 🔥")
        chat, number = _parts(message_id)
        await self.emulator.react(chat, number, emoji, by=self._person(spot.person))

    async def command(self, spot: Spot, line: str) -> None:
        word, _, rest = line.partition(" ")
        known = [command["command"] for command in self.emulator.commands]
        at_bot = f"@{self.emulator.me.username}" if spot.room and word in known else ""
        await self.say(spot, f"/{word}{at_bot} {rest}".rstrip())

    async def press(self, spot: Spot, label: str) -> None:
        place = self._rooms[room_in(self._rooms, spot.room)] if spot.room else self._person(spot.person)
        found = [one for one in self.emulator.shown(place) if label in one.buttons]
        if not found:
            raise CannotDo(f"the bot shows no button {label!r} here")
        await self.emulator.press(found[-1], label, by=self._person(spot.person))

    def messages(self) -> Sequence[Message]:
        places: list[tuple[Person | Room, int | None]] = [(person, None) for person in self._people.values()]
        for room in self._rooms.values():
            places += [(room, topic) for topic in (None, *room.topics)]
        return [_told(shown) for place, topic in places for shown in self.emulator.shown(place, topic)]

    def reactions(self) -> Sequence[Reaction]:
        there = self.emulator.reactions.items()
        return [Reaction(f"{chat}/{number}", one) for (chat, number), emoji in there for one in emoji]

    def signs(self) -> int:
        return len(self.emulator.typing)

    async def outage(self, is_away: bool) -> None:
        self.emulator.down = is_away
        async with self.emulator._changed:
            self.emulator._changed.notify_all()

    def _chat(self, spot: Spot) -> int:
        return self._rooms[room_in(self._rooms, spot.room)].id if spot.room else self._person(spot.person).id

    def _person(self, name: str) -> Person:
        number = self._crew.number(name)
        person = Person(number, self._crew.name(number))
        self._people[person.name] = person
        return person

    def _attached(self, upload: Upload) -> dict[str, Any]:
        file = self.emulator.keep(upload.content, f"documents/{upload.name}")
        if upload.media_type.startswith("image/"):
            return {"photo": [file | {"width": 100, "height": 100}]}
        if upload.media_type in ("audio/ogg", "audio/opus"):
            return {"voice": file | {"duration": 3, "mime_type": upload.media_type}}
        return {"document": file | {"file_name": upload.name, "mime_type": upload.media_type}}


def _parts(message_id: str) -> tuple[int, int]:
    chat, _, number = message_id.partition("/")
    return int(chat), int(number)


def _told(shown: Shown) -> Message:
    file = f"[file {shown.file_name}, {len(shown.content):,} bytes] " if shown.file_name else ""
    conversation = f"{shown.chat_id}/{shown.topic}" if shown.topic is not None else str(shown.chat_id)
    whole = bool(shown.file_name)
    buttons = "".join(f" [{label}]" for label in shown.buttons)
    return Message(f"{shown.chat_id}/{shown.message_id}", conversation, file + shown.text + buttons, is_whole=whole)
