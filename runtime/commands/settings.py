"""``model``, ``answer``, ``queue`` and ``sources``: the settings of the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from config.settings import Settings
from connectors.message import Role
from runtime.commands.registry import Command, CommandRefused, Invocation, bullet_list, code
from runtime.llm import Model
from runtime.workspaces import ANSWERING, QUEUE_MODES, Answering, Places, QueueMode

ANSWERS: dict[Answering, str] = {
    "addressed": "I answer here when somebody mentions me or replies to me.",
    "all": "I answer every message here.",
    "never": "I answer nothing here, except commands.",
}
QUEUES: dict[QueueMode, str] = {
    "collect": "I answer messages that arrive meanwhile all together, after the current answer.",
    "interrupt": "When a new message arrives, I begin my answer again and include it.",
    "followup": "I answer messages that arrive meanwhile one after the other.",
}
SOURCES = {
    True: "My replies here end with the documents they used.",
    False: "My replies here do not name the documents they used. `/explain` does.",
}
DIRECT = "In a direct message I always answer."


class PlaceSettings:
    """Shows and changes the settings of a place."""

    def __init__(self, settings: Settings, places: Places, model: Model) -> None:
        self._settings = settings
        self._places = places
        self._model = model

    def commands(self) -> list[Command]:
        return [
            Command(
                "model",
                "show or choose the model",
                self.model,
                "[name|default]",
                details="Admins choose, by name or number, which of the configured models I ask first here.",
            ),
            Command(
                "answer",
                "show or choose when I answer in this group",
                self.answer,
                "[addressed|all|never]",
                role=Role.ADMIN,
                details=bullet_list(f"{code(word)}: {text}" for word, text in ANSWERS.items()),
            ),
            Command(
                "queue",
                "show or choose what happens to messages that arrive while I answer",
                self.queue,
                "[collect|interrupt|followup|default]",
                details="In a group only admins can change this.\n\n"
                + bullet_list(f"{code(word)}: {text}" for word, text in QUEUES.items()),
            ),
            Command(
                "sources",
                "show or choose whether my replies end with their sources",
                self.sources,
                "[on|off|default]",
                details="In a group only admins can change this.",
            ),
        ]

    async def model(self, invocation: Invocation) -> str:
        if invocation.rest:
            await self._choose(invocation)
        chosen = (await self._places.settings_for(invocation.key, invocation.message)).model
        names = self._model.names
        first = chosen if chosen in names else names[0]
        lines = [
            f"{number}. {code(name)}{' (asked first)' if name == first else ''}" for number, name in enumerate(names, 1)
        ]
        return "\n".join(["The models that I can ask here:", *lines])

    async def _choose(self, invocation: Invocation) -> None:
        if invocation.role is not Role.ADMIN:
            raise CommandRefused("Only admins can choose the model.")
        wanted = None if invocation.rest.lower() == "default" else self._named(invocation.rest)
        await self._places.settle(invocation.key, invocation.message, model=wanted)

    def _named(self, wanted: str) -> str:
        names = self._model.names
        if wanted.isdecimal() and wanted.isascii() and 1 <= int(wanted[:4]) <= len(names):
            return names[int(wanted[:4]) - 1]
        found = [name for name in names if name == wanted] or [n for n in names if wanted.lower() in n.lower()]
        if len(found) == 1:
            return found[0]
        which = "more than one model" if found else "no model"
        listed = bullet_list(code(name) for name in names)
        raise CommandRefused(f"{code(wanted[:100])} matches {which}. The configured models are:\n\n{listed}")

    async def answer(self, invocation: Invocation) -> str:
        if invocation.message.direct:
            return DIRECT
        chosen = await self._settle(invocation, "answer", "answering", {word: word for word in ANSWERING})
        return ANSWERS[chosen or self._settings.answer_in_groups]

    async def queue(self, invocation: Invocation) -> str:
        choices: dict[str, QueueMode | None] = {**{word: word for word in QUEUE_MODES}, "default": None}
        chosen = await self._settle(invocation, "queue", "queue", choices)
        return QUEUES[chosen or self._settings.queue_mode]

    async def sources(self, invocation: Invocation) -> str:
        chosen = await self._settle(invocation, "sources", "sources", {"on": True, "off": False, "default": None})
        return SOURCES[self._settings.show_sources if chosen is None else chosen]

    async def _settle(self, invocation: Invocation, command: str, name: str, choices: Mapping[str, Any]) -> Any:
        """Store the choice that *command* makes, if it makes one, and return the setting *name* of the place."""
        if wanted := invocation.rest.lower():
            _check_may_change(invocation)
            if wanted not in choices:
                words = (code(f"/{command} {word}") for word in choices)
                raise CommandRefused(f"Write {', '.join(words)}.")
            await self._places.settle(invocation.key, invocation.message, **{name: choices[wanted]})
        return getattr(await self._places.settings_for(invocation.key, invocation.message), name)


def _check_may_change(invocation: Invocation) -> None:
    if invocation.role is not Role.ADMIN and not invocation.message.direct:
        raise CommandRefused("In a group only admins can change this.")
