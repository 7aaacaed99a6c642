"""A person among the emulated platforms: what is typed becomes what people do there, and what people see is told."""

from __future__ import annotations

import asyncio
import mimetypes
import shlex
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.embedded import background_task
from tests.emulators.play.bot_process import BotEnded, BotProcess, Event
from tests.emulators.play.screen import ANN, BAD, BOT, DIM, Screen, folded
from tests.emulators.play.watch import Change, Watch
from tests.emulators.play.world import CannotDo, Crew, Message, Platform, Spot, Upload

LOOK_SECONDS = 0.05
WAIT_SECONDS = 60.0
START_SECONDS = 120.0
_INDENT = " " * 7
_ABOUT_EVENTS = frozenset({"event", "level", "timestamp", "frames"})

HELP = """\
What you type is said where you are; @bot calls the bot.
/on PLATFORM [#room|dm]    go to telegram, slack or discord; there into a room, or into private messages
/as NAME                   speak as somebody else (anybody: Ann, Bo, Eve, or a name of your own)
> PLATFORM NAME [#room] TEXT    say one thing elsewhere, and stay
/reply N TEXT              reply to message N (on Slack: in its thread)
/thread N | /thread off    speak in the thread of message N (Slack, Discord), or in topic 7 or 8 (Telegram's #forum)
/edit [N] TEXT · /delete [N]    your last message, or message N
/react EMOJI · /react N EMOJI   on the bot's last message, or on message N
/send FILE [TEXT]          send a file
/command WORD …            give a command by the platform's own means; so does any /word that is none of these
//word                     say "/word", as words of a message
/press LABEL               press a button of the bot's here; without LABEL one of another time
/see                       everything of the bot's here as it stands now
/away · /back              this platform cannot be reached, or can be again
/restart · /kill           the bot is stopped and started; killed without a word and started
/events on|off             tell everything that the bot says of itself
/wait [SECONDS]            until the bot has answered here · /pause SECONDS · /expect TEXT (scripts)
/quit                      or Ctrl-D"""


class Failed(Exception):
    """A script's expectation that did not hold."""


class Quit(Exception):
    """Enough."""


@dataclass(frozen=True)
class Said:
    """A message that was given a number: somebody's (``mine``), or the bot's."""

    platform: str
    spot: Spot
    id: str
    mine: bool


class Playground:
    """One person's view of *platforms*. *bot* is None where somebody starts their own."""

    def __init__(self, platforms: Sequence[Platform], crew: Crew, bot: BotProcess | None) -> None:
        self._platforms = {platform.name: platform for platform in platforms}
        self._crew = crew
        self.bot = bot
        self.screen: Screen | None = None
        self._platform = platforms[0]
        self._spot = Spot()
        self._watches: Mapping[str, Watch] = {name: Watch() for name in self._platforms}
        self._delivered: defaultdict[str, set[str]] = defaultdict(set)
        self._numbered: list[Said] = []
        self._reactions: Counter[tuple[str, str, str]] = Counter()
        self._signs: dict[str, tuple[int, float]] = {}
        self._answers: list[tuple[str, Message]] = []
        self._asked_at = 0
        self._tells_events = False
        self._is_started = False
        self._last_answer = ""
        self._words: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help, "on": self._on, "as": self._as, "reply": self._reply, "thread": self._thread,
            "edit": self._edit, "delete": self._delete, "react": self._react, "send": self._send,
            "command": self._command, "press": self._press, "see": self._see, "away": self._away, "back": self._back,
            "restart": self._restart, "kill": self._kill, "events": self._events, "wait": self._wait,
            "pause": self._pause, "expect": self._expect, "quit": self._quit,
        }  # fmt: skip

    @property
    def words(self) -> list[str]:
        """What can be typed after a slash, and where one can go; to be offered."""
        return [*(f"/{word}" for word in self._words), *(f"/on {name}" for name in self._platforms)]

    def prompt(self) -> str:
        """Where one is."""
        where = f" #{self._spot.room}" if self._spot.room else ""
        return f"{self._platform.name}{where}{' ⤷' if self._spot.thread else ''} {self._spot.person}> "

    def live(self) -> list[tuple[str, str]]:
        """What the bot is writing now, where."""
        now = asyncio.get_running_loop().time()
        found = [(f"{name} bot", message.text) for name, watch in self._watches.items() for message in watch.growing]
        thinking = [(f"{name} bot", "is typing") for name, (_, until) in self._signs.items() if until > now]
        return found or thinking

    async def run(self, screen: Screen) -> None:
        """Read and do until the end. Raises `Failed` where an expectation did not hold."""
        self.screen = screen
        with screen.opened():
            async with background_task(self._look_on(), "looking on"):
                with suppress(Quit):
                    while (line := await screen.read()) is not None:
                        await self._do(line.strip())

    def heard(self, event: Event) -> None:
        """The bot said something of itself."""
        if event["event"] == "reply.delivered":
            self._delivered[event.get("connector", "")].add(event["context_id"].partition(":")[2])
        if self._tells_events:
            fields = {name: value for name, value in event.items() if name not in _ABOUT_EVENTS}
            self._tell((f"· {event['event']} {' '.join(f'{name}={value}' for name, value in fields.items())}", DIM))
        elif event["event"] == "connector.state" and event["connector"] in self._platforms:
            if self._is_started or event["state"] not in ("connecting", "connected"):
                self._tell((f"· {event['connector']} is {event['state']} {event.get('why', '')}".rstrip(), DIM))
        elif event["level"] in ("warning", "error"):
            self._tell((f"· {event['event']} {event.get('why', event.get('error', ''))}".rstrip(), DIM))

    async def start(self, bot: BotProcess) -> None:
        """Start *bot* and wait until it is connected. Raises `BotEnded` and `TimeoutError`."""
        self._is_started = False
        await bot.start(tuple(self._platforms), START_SECONDS)
        self._is_started = True

    # What is seen

    async def _look_on(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, platform in self._platforms.items():
            delivered = self._delivered.pop(name, set())
            for change in self._watches[name].look(platform.messages(), now, delivered):
                self._tell_change(name, change)
            self._tell_reactions(name, platform)
            seen, until = self._signs.get(name, (0, 0.0))
            signs = platform.signs()
            self._signs[name] = (signs, now + 5.0 if signs > seen else 0.0 if signs < seen else until)

    def _tell_change(self, name: str, change: Change) -> None:
        message = change.message
        number = self._number_of(name, message.id)
        if number is None:
            self._numbered.append(Said(name, self._spot_of(name, message), message.id, mine=False))
            number = len(self._numbered)
        about = {"said": "", "edited": " (edited)", "deleted": " (deleted)"}[change.kind]
        only = f" (only {message.only_for} sees it)" if message.only_for else ""
        text = "" if change.kind == "deleted" else message.text
        self._tell_said(number, name, self._where(name, message), f"bot{only}{about}", text, BOT)
        if change.kind != "deleted":
            self._answers.append((name, message))
            self._last_answer = message.text
            seen, _ = self._signs.get(name, (0, 0.0))
            self._signs[name] = (seen, 0.0)

    def _tell_reactions(self, name: str, platform: Platform) -> None:
        for reaction in platform.reactions():
            key = (name, reaction.message_id, reaction.emoji)
            if not self._reactions[key]:
                self._reactions[key] += 1
                number = self._number_of(name, reaction.message_id)
                self._tell((f"     {name}: the bot puts {reaction.emoji} on #{number or '?'}", DIM))

    def _tell_said(self, number: int, name: str, where: str, who: str, text: str, colour: str) -> None:
        head = f"{f'#{number}':>4} {name} {where}  "
        width = self.screen.width if self.screen is not None else None
        whole = [f"{head}{who}: " + text.split("\n")[0], *(_INDENT + line for line in text.split("\n")[1:])]
        first, *rest = [piece for line in whole for piece in folded(line, width and width - len(_INDENT))]
        self._tell((head, DIM), (f"{who}: ", colour), (first[len(head) + len(who) + 2 :], ""))
        for line in rest:
            self._tell((line if line.startswith(_INDENT) else _INDENT + line.lstrip(), ""))

    def _tell(self, *pieces: tuple[str, str]) -> None:
        if self.screen is not None:
            self.screen.write(*pieces)

    def _number_of(self, name: str, message_id: str) -> int | None:
        found = (n for n, said in enumerate(self._numbered, 1) if (said.platform, said.id) == (name, message_id))
        return next(found, None)

    def _spot_of(self, name: str, message: Message) -> Spot:
        """Where the bot said *message*, as far as people here have spoken there."""
        for said in reversed(self._numbered):
            if said.platform == name and _is_in(message, self._platforms[name].conversation(said.spot)):
                return said.spot
        return self._spot

    def _where(self, name: str, message: Message) -> str:
        spot = self._spot_of(name, message)
        thread = message.conversation != self._platforms[name].conversation(replace(spot, thread=""))
        return _place(spot) + (" ⤷" if thread else "")

    # What is done

    async def _do(self, line: str) -> None:
        if not line or line.startswith("# "):
            return
        try:
            if line.startswith("//"):
                await self._say(line[1:])
            elif line.startswith("/"):
                word, _, rest = line[1:].partition(" ")
                await (self._words[word](rest.strip()) if word in self._words else self._command(line[1:]))
            elif line.startswith("> ") and line[2:].partition(" ")[0] in self._platforms:
                await self._elsewhere(line[2:])
            else:
                await self._say(line)
        except (CannotDo, BotEnded, OSError) as error:
            self._tell((f"     {error}", BAD))

    async def _say(self, text: str, reply_to: str = "", upload: Upload | None = None) -> None:
        self._asked_at = len(self._answers)
        said = await self._platform.say(self._spot, text, reply_to, upload)
        self._numbered.append(Said(self._platform.name, self._spot, said, mine=True))
        file = f"[file {upload.name}] " if upload else ""
        where = _place(self._spot) + (" ⤷" if self._spot.thread else "")
        self._tell_said(len(self._numbered), self._platform.name, where, self._spot.person, file + text, ANN)

    async def _help(self, _rest: str) -> None:
        for line in HELP.splitlines():
            self._tell((line, ""))
        self._tell(("The bot's own help: /command help (on Slack /agent help is the same).", DIM))

    async def _on(self, rest: str) -> None:
        name, _, room = rest.partition(" ")
        if name.startswith("#") or name == "dm":
            name, room = self._platform.name, name
        if name not in self._platforms:
            raise CannotDo(f"go to one of {', '.join(self._platforms)}: /on {next(iter(self._platforms))}")
        room = room.strip()
        spot = Spot(self._spot.person, room.removeprefix("#") if room != "dm" else "")
        self._platforms[name].conversation(spot)
        self._platform, self._spot = self._platforms[name], spot

    async def _as(self, rest: str) -> None:
        if not rest:
            raise CannotDo(f"who? there are {', '.join(self._crew.names)}; any other name is somebody new")
        self._spot = replace(self._spot, person=self._crew.spelt(rest))

    async def _elsewhere(self, rest: str) -> None:
        name, *words = rest.split(" ")
        if len(words) < 2:
            raise CannotDo("so: > telegram Ann hello, or > slack Bo #general @bot hello")
        person = words.pop(0)
        room = words.pop(0).removeprefix("#") if words[0].startswith("#") else ""
        before = self._platform, self._spot
        self._platform, self._spot = self._platforms[name], Spot(self._crew.spelt(person), room)
        try:
            await self._say(" ".join(words))
        finally:
            self._platform, self._spot = before

    async def _reply(self, rest: str) -> None:
        said, text = self._named(rest, mine=False)
        await self._say(text, reply_to=said.id)

    async def _thread(self, rest: str) -> None:
        if rest in ("", "off"):
            self._spot = replace(self._spot, thread="")
            return
        number = rest.removeprefix("#")
        known = number.isdecimal() and 0 < int(number) <= len(self._numbered) and self._platform.name != "telegram"
        word = self._numbered[int(number) - 1].id if known else number
        self._spot = replace(self._spot, thread=await self._platform.thread(self._spot, word))

    async def _edit(self, rest: str) -> None:
        said, text = self._named(rest, mine=True)
        self._asked_at = len(self._answers)
        await self._platforms[said.platform].change(said.spot, said.id, text)
        self._tell((f"     {said.platform}: #{self._numbered.index(said) + 1} now says: {text}", DIM))

    async def _delete(self, rest: str) -> None:
        said, _ = self._named(rest, mine=True)
        await self._platforms[said.platform].delete(said.spot, said.id)
        self._tell((f"     {said.platform}: #{self._numbered.index(said) + 1} is gone", DIM))

    async def _react(self, rest: str) -> None:
        said, emoji = self._named(rest, mine=False)
        spot = replace(said.spot, person=self._spot.person)
        await self._platforms[said.platform].react(spot, said.id, emoji)
        self._tell((f"     {said.platform}: {spot.person} puts {emoji} on #{self._numbered.index(said) + 1}", DIM))

    def _named(self, rest: str, *, mine: bool) -> tuple[Said, str]:
        """The message that *rest* begins with, else the last of one's own or the bot's; and what follows."""
        first, _, more = rest.partition(" ")
        number = first.removeprefix("#")
        if number.isdecimal() and 0 < int(number) <= len(self._numbered):
            said = self._numbered[int(number) - 1]
            if said.mine == mine or not mine:
                return said, more.strip()
            raise CannotDo(f"#{number} is the bot's")
        if number.isdecimal() and (first.startswith("#") or not more):
            raise CannotDo(f"there is no #{number}")
        for said in reversed(self._numbered):
            if said.mine == mine and said.platform == self._platform.name:
                return said, rest
        raise CannotDo("there is no message yet")

    async def _send(self, rest: str) -> None:
        name, *words = shlex.split(rest) or [""]
        path = Path(name).expanduser()
        content = await asyncio.to_thread(path.read_bytes)
        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        await self._say(" ".join(words), upload=Upload(path.name, content, media_type))

    async def _command(self, rest: str) -> None:
        if not rest:
            raise CannotDo("which? e.g. /command help")
        line = rest
        if self._platform.name == "slack":
            word, _, more = rest.partition(" ")
            line = more if word == "agent" else rest
        self._asked_at = len(self._answers)
        await self._platform.command(self._spot, line)
        self._tell((f"     {self._platform.name} {_place(self._spot)}  {self._spot.person} gives /{rest}", DIM))

    async def _press(self, rest: str) -> None:
        self._asked_at = len(self._answers)
        await self._platform.press(self._spot, rest.strip())

    async def _see(self, _rest: str) -> None:
        here = self._platform.conversation(self._spot)
        for message in self._platform.messages():
            if _is_in(message, here):
                number = self._number_of(self._platform.name, message.id) or 0
                self._tell_said(number, self._platform.name, _place(self._spot), "bot", message.text, BOT)

    async def _away(self, _rest: str) -> None:
        await self._platform.outage(True)
        self._tell((f"     {self._platform.name} cannot be reached any more", DIM))

    async def _back(self, _rest: str) -> None:
        await self._platform.outage(False)
        self._tell((f"     {self._platform.name} can be reached again", DIM))

    async def _restart(self, _rest: str) -> None:
        await self._again(lambda bot: bot.stop())

    async def _kill(self, _rest: str) -> None:
        await self._again(lambda bot: bot.kill())

    async def _again(self, end: Callable[[BotProcess], Awaitable[None]]) -> None:
        if self.bot is None:
            raise CannotDo("the bot is not ours to restart")
        await end(self.bot)
        self._tell(("     the bot is down, and starts", DIM))
        await self.start(self.bot)
        self._tell(("     the bot is back", DIM))

    async def _events(self, rest: str) -> None:
        self._tells_events = rest != "off"

    async def _wait(self, rest: str) -> None:
        seconds = float(rest or WAIT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                while not self._has_answered():
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise Failed(f"no answer within {seconds:g} s") from None

    def _has_answered(self) -> bool:
        here = self._platform.conversation(self._spot)
        name = self._platform.name
        came = any(where == name and _is_in(message, here) for where, message in self._answers[self._asked_at :])
        return came and not any(_is_in(message, here) for message in self._watches[name].growing)

    async def _pause(self, rest: str) -> None:
        await asyncio.sleep(float(rest or 1))

    async def _expect(self, rest: str) -> None:
        if rest.lower() not in self._last_answer.lower():
            raise Failed(f"expected {rest!r} in the last answer, which is: {self._last_answer!r}")

    async def _quit(self, _rest: str) -> None:
        raise Quit


def _is_in(message: Message, conversation: str) -> bool:
    return message.conversation == conversation or message.conversation.startswith(f"{conversation}/")


def _place(spot: Spot) -> str:
    return f"#{spot.room}" if spot.room else f"@{spot.person}"
