"""``status``: how everything is, a line each, and as whom one speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from connectors.connector import Health, State
from connectors.message import AgentRuntimeError, Role, Scope
from grounding.documents.runs import Status as IndexStatus
from runtime.commands.command import Command, Invocation
from runtime.commands.wording import code, counted, items, plain, thousands
from runtime.llm import Model

_ASK_SECONDS = 5.0
"""What one store may take to say how it is: longer than that is an answer, too."""


class Status:
    """*stores*, *connectors* and *index* say how they are; the last of one workspace."""

    def __init__(
        self,
        model: Model,
        stores: Callable[[], Awaitable[Mapping[str, Health]]],
        connectors: Callable[[], Mapping[str, Health]],
        index: Callable[[Scope], Awaitable[IndexStatus]],
    ) -> None:
        self._model = model
        self._stores = stores
        self._connectors = connectors
        self._index = index

    def commands(self) -> list[Command]:
        return [
            Command("status", "check my connections", self.status, details="Admins also see the reason for a problem.")
        ]

    async def status(self, invocation: Invocation) -> str:
        details = invocation.role is Role.ADMIN
        lines = [f"model: {code(self._model.name)}"]
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                lines += [_line(name, health, details) for name, health in (await self._stores()).items()]
        except TimeoutError:
            lines.append("stores: no answer")
        lines += [_line(name, health, details) for name, health in self._connectors().items()]
        lines.append(await self._documents(Scope(invocation.key.workspace_id), details))
        return f"{items(lines)}\n\n{_you(invocation)}"

    async def _documents(self, scope: Scope, details: bool) -> str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                status = await self._index(scope)
        except (AgentRuntimeError, TimeoutError) as error:
            return "documents: cannot be searched now" + (f" ({plain(str(error))})" if details and str(error) else "")
        waiting = f", {status.pending} still to be indexed" if status.pending else ""
        deeper = f", {counted(status.shallow, 'passage')} not yet in the deep index" if status.shallow else ""
        return f"documents: {thousands(status.documents)} can be searched{waiting}{deeper}"


def _you(invocation: Invocation) -> str:
    """By the id that settings and `access` take, where the message is a person's."""
    author, role = invocation.message.author, invocation.role
    called = f" ({plain(author.name)})" if author.name and author.name != invocation.signature else ""
    return f"You are {code(invocation.signature)}{called}, {'an' if role is Role.ADMIN else 'a'} {role.value} here."


def _line(name: str, health: Health, details: bool) -> str:
    why = f" ({plain(health.why)})" if details and health.why and health.state is not State.CONNECTED else ""
    return f"{name}: {health.state}{why}"
