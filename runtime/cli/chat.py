"""The terminal chat: with a runtime of its own, or as a client of one that runs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import textwrap
from dataclasses import dataclass
from typing import Any

from config.settings import EXTRACTIVE, Settings
from connectors.connector import Accept, State
from connectors.console import LEAVE, ConsoleConnector, Terminal, open_terminal
from connectors.http import wait_seconds
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    Degraded,
    InboundMessage,
    OutboundMessage,
    Scope,
    Source,
    StoreUnavailable,
    Usage,
)
from grounding.documents import Progress
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from runtime.cli.client import IN_USE_SECONDS, ApiError, Client, Unreachable, open_local, running, segment
from runtime.cli.invocation import as_typed, workspace_of
from runtime.cli.output import StatusLine, note, status_line
from runtime.commands import NAMES
from runtime.embedded import StoreInUse, check_installed
from runtime.process import ALL_PARTS, Runtime
from runtime.stores import SOCKET_NAME
from runtime.workspaces import SAMPLE

# ---- greeting ----
#
# The first screen of a chat.


EXAMPLES = (
    "What is our password policy?",
    "Which document says who approves a refund of 3000 euros?",
    "What does the on-call runbook say about acknowledging a page?",
)
"""Questions that the sample workspace's documents answer."""

WIDEST = 100


@dataclass(frozen=True)
class Greeting:
    """What the first screen is about. ``documents`` is None where they cannot be searched; ``model`` is
    None for the bundled one; ``remote`` says that another process answers."""

    workspace: str
    documents: int | None
    model: str | None
    remote: bool


def greeting(about: Greeting, width: int | None = None) -> str:
    """The first screen, at most *width* characters wide (the terminal's, where it is None)."""
    wide = min(width or shutil.get_terminal_size().columns, WIDEST)
    paragraphs = [f"Agent Runtime. {_grounded(about)}", _answers(about)]
    if about.workspace == SAMPLE and about.documents:
        paragraphs.append("Try:\n" + "\n".join(f"  {question}" for question in EXAMPLES))
    paragraphs.append("The sources are below each answer. `agent-runtime explain` shows what the model was told.")
    paragraphs.append("/help lists the commands. /quit or Ctrl-D ends the chat.")
    return "\n".join(_wrapped(as_typed(paragraph), wide) for paragraph in paragraphs) + "\n"


def _grounded(about: Greeting) -> str:
    where = f"This chat is in the workspace {about.workspace!r}"
    if about.documents is None:
        return f"{where}. Its documents cannot be searched now: `agent-runtime doctor` says why."
    if about.documents == 0:
        return f"{where}. It has no documents yet: `agent-runtime index -w {about.workspace} PATH` adds some."
    noun = "document" if about.documents == 1 else "documents"
    return f"{where}. Answers use its {about.documents} {noun}."


def _answers(about: Greeting) -> str:
    if about.remote:
        return "The agent-runtime process that runs on this data folder answers."
    if about.model not in (None, EXTRACTIVE):
        return f"Model: {about.model}."
    return (
        "No language model is set, so answers are quotations from the documents. `agent-runtime setup` adds a language "
        "model."
    )


def _wrapped(paragraph: str, width: int) -> str:
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())), break_on_hyphens=False)
        for line in paragraph.split("\n")
    )


# ---- remote ----
#
# A console's messages, handed to a runtime in another process over HTTP; its answers, streamed back.


class RemoteDoor:
    """What the gateway's door is for a console in the same process. *group* owns the streams."""

    def __init__(
        self, client: Client, console: ConsoleConnector, group: asyncio.TaskGroup, workspace: str, context: str
    ) -> None:
        self._client = client
        self._console = console
        self._group = group
        self._path = f"/v1/workspaces/{segment(workspace)}/messages"
        self._workspace = workspace
        self._context = context
        self._streams: set[asyncio.Task[None]] = set()

    async def accept(self, message: InboundMessage) -> Accepted:
        """Send *message*; the answer comes to the console by itself. Raises `StoreUnavailable`, `ApiError`."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(self._exchange(message, begun), name="answer")
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        try:
            await begun
        except ApiError as error:
            if error.status == 503:
                raise StoreUnavailable(str(error)) from error
            raise
        except Unreachable as error:
            raise StoreUnavailable(str(error)) from error
        return Accepted("stored")

    def close(self) -> None:
        """Stop waiting for answers; the turns go on."""
        for task in self._streams:
            task.cancel()

    async def _exchange(self, message: InboundMessage, begun: asyncio.Future[None]) -> None:
        """One request. *begun* learns how it was received: its failure, or nothing once it is kept."""
        key = ConversationKey(self._workspace, "console", self._context)
        answers = (message.message_id,)
        body = {"text": message.text, "context": self._context, "direct": True}
        headers = {"Idempotency-Key": message.message_id}

        def received() -> None:
            if not begun.done():
                begun.set_result(None)

        try:
            async for name, data in self._client.events("POST", self._path, body, headers, begun=received):
                if name == "delta":
                    await self._console.stream(key, answers, str(data["text"]))
                elif name == "done":
                    await self._deliver(answer(key, answers, data))
        except AgentRuntimeError as error:
            if begun.done():
                await self._deliver(OutboundMessage(key, "", str(error), kind="apology", answers=answers))
            else:
                begun.set_exception(error)

    async def _deliver(self, message: OutboundMessage) -> None:
        for part in self._console.render(message):
            await self._console.send(message, part)


def answer(key: ConversationKey, answers: tuple[str, ...], data: dict[str, Any]) -> OutboundMessage:
    """The answer object of the HTTP interface as the console shows it. Pure."""
    usage = data.get("usage") or {}
    return OutboundMessage(
        key=key,
        turn_id=str(data.get("turn_id", "")),
        text=str(data.get("text", "")),
        answers=answers,
        strategy=str(data.get("strategy", "")),
        reason=str(data.get("reason", "")),
        sources=tuple(Source(each["source"], each["heading"]) for each in data.get("sources", ())),
        shows_sources=True,
        degraded=tuple(Degraded(each["block"], each["why"]) for each in data.get("degraded", ())),
        usage=Usage(
            prompt=usage.get("prompt", 0),
            cached=usage.get("cached", 0),
            completion=usage.get("completion", 0),
            cost_usd=usage.get("cost_usd", 0.0),
            estimated=usage.get("estimated", False),
        ),
    )


# ---- chat ----


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
