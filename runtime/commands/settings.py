"""``model``, ``answer``, ``queue`` and ``sources``: the settings of the place."""

from __future__ import annotations

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
        wanted = invocation.rest.lower()
        if wanted:
            chosen = next((word for word in ANSWERING if word == wanted), None)
            if chosen is None:
                raise CommandRefused(f"Write {', '.join(code('/answer ' + word) for word in ANSWERING)}.")
            await self._places.settle(invocation.key, invocation.message, answering=chosen)
            return ANSWERS[chosen]
        settled = (await self._places.settings_for(invocation.key, invocation.message)).answering
        return ANSWERS[settled or self._settings.answer_in_groups]

    async def queue(self, invocation: Invocation) -> str:
        wanted = invocation.rest.lower()
        if wanted:
            _check_may_change(invocation)
            chosen = next((word for word in QUEUE_MODES if word == wanted), None)
            if chosen is None and wanted != "default":
                words = [*QUEUE_MODES, "default"]
                raise CommandRefused(f"Write {', '.join(code('/queue ' + word) for word in words)}.")
            await self._places.settle(invocation.key, invocation.message, queue=chosen)
        settled = (await self._places.settings_for(invocation.key, invocation.message)).queue
        return QUEUES[settled or self._settings.queue_mode]

    async def sources(self, invocation: Invocation) -> str:
        wanted = invocation.rest.lower()
        if wanted:
            _check_may_change(invocation)
            choices = {"on": True, "off": False, "default": None}
            if wanted not in choices:
                raise CommandRefused(f"Write {', '.join(code('/sources ' + word) for word in choices)}.")
            await self._places.settle(invocation.key, invocation.message, sources=choices[wanted])
        settled = (await self._places.settings_for(invocation.key, invocation.message)).sources
        return SOURCES[self._settings.show_sources if settled is None else settled]


def _check_may_change(invocation: Invocation) -> None:
    if invocation.role is not Role.ADMIN and not invocation.message.direct:
        raise CommandRefused("In a group only admins can change this.")
