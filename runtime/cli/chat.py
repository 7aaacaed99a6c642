"""The terminal chat: with a runtime of its own, or as a client of one that runs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from config.settings import Settings
from connectors.connector import Accept, State
from connectors.console.connector import LEAVE, ConsoleConnector
from connectors.console.terminal import Terminal, open_terminal
from connectors.http.connector import wait_seconds
from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.index import IndexUnavailable
from grounding.documents.runs import Progress
from runtime.bootstrap import ALL_PARTS, Runtime
from runtime.cli.client import IN_USE_SECONDS, Client, running, segment
from runtime.cli.greeting import Greeting, greeting
from runtime.cli.invocation import workspace_of
from runtime.cli.local import open_local
from runtime.cli.output import StatusLine, note, status_line
from runtime.cli.remote import RemoteDoor
from runtime.commands.wiring import NAMES
from runtime.data_dir import SOCKET_NAME
from runtime.embedded.installed import check_installed
from runtime.embedded.redis_server import StoreInUse

OPENING_SECONDS = 60.0
"""How long the index may take to open before the chat begins without it."""


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line; *message* ends the chat after its answer."""

    workspace: str | None
    context: str
    message: str | None
    as_json: bool


async def chat(settings: Settings, wish: Wish) -> int:
    """Converse until the person leaves; the exit code. Raises what opening the runtime raises."""
    words = [f"/{name}" for name in NAMES] + sorted(LEAVE)
    terminal = open_terminal(one_shot=wish.message is not None, words=words)
    workspace = await asyncio.to_thread(workspace_of, settings, wish.workspace)
    deadline = asyncio.get_running_loop().time() + IN_USE_SECONDS
    with status_line("looking for a running agent-runtime …") as status:
        while True:
            async with running(settings) as client:
                if client is not None:
                    return await _with_running(client, settings, wish, workspace, terminal, status)
            try:
                return await _with_own(settings, wish, workspace, terminal, status)
            except StoreInUse:
                # Raised at opening only, so that nothing was said yet.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                status.show("waiting for another command that uses the data folder …")
                await asyncio.sleep(0.5)


class _Conversation(ConsoleConnector):
    """The console, which says when it has ended: everything else ends with it."""

    def __init__(self, terminal: Terminal, settings: Settings, wish: Wish, workspace: str) -> None:
        super().__init__(
            terminal,
            wait_seconds=wait_seconds(settings),
            workspace_id=workspace,
            context=wish.context,
            one_shot=wish.message,
            as_json=wish.as_json,
        )
        self.ended = asyncio.Event()

    def greet(self, text: str) -> None:
        """What is said before the first prompt."""
        self._banner = text

    async def run(self, accept: Accept) -> None:
        try:
            await super().run(accept)
        finally:
            self.ended.set()


async def _with_own(settings: Settings, wish: Wish, workspace: str, terminal: Terminal, status: StatusLine) -> int:
    """Run everything here; other commands reach it through the socket meanwhile."""
    await asyncio.to_thread(check_installed, settings)
    status.show("opening the stores …")
    console = _Conversation(terminal, settings, wish, workspace)
    async with open_local(settings, ALL_PARTS, platforms=[console], socket_name=SOCKET_NAME) as (runtime, _):
        await runtime.workspaces.require(workspace)
        documents = await _prepare(runtime, workspace, status)
        status.clear()
        if _greets(terminal, wish):
            seen = Greeting(workspace, documents, settings.llm_model, remote=False)
            console.greet(greeting(seen))
        async with asyncio.TaskGroup() as group:
            connectors = group.create_task(runtime.supervisor.run(runtime.accept), name="connectors")
            await console.ended.wait()
            connectors.cancel()
    return console.exit_code


async def _prepare(runtime: Runtime, workspace: str, status: StatusLine) -> int | None:
    """Have the documents indexed before the first question; how many there are, None where that failed."""

    def show(progress: Progress) -> None:
        status.show(f"indexing {workspace}: {progress.done}/{progress.total}  {progress.path}")

    status.show("opening the search index …")
    scope = Scope(workspace)
    try:
        await _opened(runtime)
        await runtime.knowledge.sync(scope, None, show)
        return (await runtime.knowledge.status(scope)).documents
    except (IndexUnavailable, EmbedderUnavailable, StoreUnavailable, OSError) as error:
        status.clear()
        note(f"The documents cannot be searched, so answers do not use them. {error}")
        return None


async def _opened(runtime: Runtime) -> None:
    """Wait for an index that is being opened; one that failed is for the caller to find out."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(OPENING_SECONDS):
            while (await runtime.knowledge.health()).state is State.CONNECTING:  # noqa: ASYNC110 - it may fail, too
                await asyncio.sleep(0.05)


async def _with_running(
    client: Client, settings: Settings, wish: Wish, workspace: str, terminal: Terminal, status: StatusLine
) -> int:
    """Talk to the process that runs already."""
    console = _Conversation(terminal, settings, wish, workspace)
    documents: int | None = None
    try:
        documents = int((await client.get(f"/v1/workspaces/{segment(workspace)}/index"))["documents"])
    except AgentRuntimeError as error:
        if getattr(error, "status", 0) == 404:
            raise
    status.clear()
    if _greets(terminal, wish):
        console.greet(greeting(Greeting(workspace, documents, settings.llm_model, remote=True)))
    async with asyncio.TaskGroup() as group:
        door = RemoteDoor(client, console, group, workspace, wish.context)
        await console.run(door.accept)
        door.close()
    return console.exit_code


def _greets(terminal: Terminal, wish: Wish) -> bool:
    return terminal.interactive and wish.message is None and not wish.as_json
