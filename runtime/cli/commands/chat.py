"""``agent-runtime chat``: talks to the process that runs on the data folder, or runs the bot in this process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import textwrap
from dataclasses import dataclass
from typing import Any

import click

from config.settings import EXTRACTIVE, Settings
from connectors.connector import Accept, ConnectionState
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
from runtime.cli.client import IN_USE_SECONDS, ApiError, Client, Unreachable, api_path, open_local, running
from runtime.cli.invocation import Invocation, as_typed, data_command, run, workspace_option
from runtime.cli.output import count, note
from runtime.cli.progress import StatusLine, status_line
from runtime.commands import NAMES
from runtime.embedded import StoreInUse
from runtime.process import ALL_PARTS, Runtime, check_installed
from runtime.stores import SOCKET_NAME
from runtime.workspaces import SAMPLE

EXAMPLES = (
    "What is our password policy?",
    "Which document says who approves a refund of 3000 euros?",
    "What does the on-call runbook say about acknowledging a page?",
)
"""Questions that the sample workspace's documents answer."""
MAX_COLUMNS = 100
OPENING_SECONDS = 60.0
"""How long the chat waits for the index to open before it begins without it."""


@dataclass(frozen=True)
class ChatOptions:
    """The options of `agent-runtime chat`. The chat ends after the answer to *message*, if it is set."""

    workspace: str
    context: str
    message: str | None
    as_json: bool


@click.command()
@workspace_option
@click.option(
    "--context", metavar="NAME", default="default", show_default=True, help="Name of the conversation to continue."
)
@click.option("-m", "--message", metavar="TEXT", help="Send this one message, print the answer and exit.")
@data_command
def command(invocation: Invocation, workspace: str, context: str, message: str | None) -> int:
    """Talk to the bot in this terminal.

    If `serve` runs on the same data folder, the chat uses it. If not, the bot runs inside this command. Messages can
    be piped in, one a line. With --json each answer is one JSON object. The exit code is 1 if a message was not
    answered.
    """
    return run(_chat(invocation.settings(), ChatOptions(workspace, context, message, invocation.as_json)))


async def _chat(settings: Settings, options: ChatOptions) -> int:
    """Converse until the person leaves, and return the exit code. Raises what opening the runtime raises."""
    words = [f"/{name}" for name in NAMES] + sorted(LEAVE)
    terminal = open_terminal(one_shot=options.message is not None, words=words)
    console = _Console(terminal, settings, options)
    deadline = asyncio.get_running_loop().time() + IN_USE_SECONDS
    with status_line("looking for a running agent-runtime …") as status:
        while True:
            async with running(settings) as client:
                if client is not None:
                    return await _chat_with_process(client, settings, console, status)
            try:
                return await _chat_here(settings, console, status)
            except StoreInUse:
                # The runtime raises this only when it opens, so that nothing was said yet.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                status.show("waiting for another command that uses the data folder …")
                await asyncio.sleep(0.5)


class _Console(ConsoleConnector):
    """The console of one chat. ``ended`` is set when the person has left."""

    def __init__(self, terminal: Terminal, settings: Settings, options: ChatOptions) -> None:
        super().__init__(
            terminal,
            wait_seconds=wait_seconds(settings),
            workspace_id=options.workspace,
            context=options.context,
            one_shot=options.message,
            as_json=options.as_json,
        )
        self.options = options
        self.ended = asyncio.Event()
        self._greets = terminal.interactive and options.message is None and not options.as_json

    def greet(self, text: str) -> None:
        """Show *text* before the first prompt, if a person is at the terminal."""
        if self._greets:
            self._banner = text

    async def run(self, accept: Accept) -> None:
        try:
            await super().run(accept)
        finally:
            self.ended.set()


async def _chat_here(settings: Settings, console: _Console, status: StatusLine) -> int:
    """Run everything in this process. Other commands reach it through the socket meanwhile."""
    workspace = console.options.workspace
    await asyncio.to_thread(check_installed, settings)
    status.show("opening the stores …")
    async with open_local(settings, ALL_PARTS, platforms=[console], socket_name=SOCKET_NAME) as (runtime, _):
        await runtime.workspaces.require(workspace)
        documents = await _index_documents(runtime, workspace, status)
        status.clear()
        console.greet(greeting(workspace, documents, settings.llm_model, remote=False))
        async with asyncio.TaskGroup() as group:
            connectors = group.create_task(runtime.supervisor.run(runtime.accept), name="connectors")
            await console.ended.wait()
            connectors.cancel()
    return console.exit_code


async def _index_documents(runtime: Runtime, workspace: str, status: StatusLine) -> int | None:
    """Index the documents before the first question. Return their number, or None if that failed."""

    def show(progress: Progress) -> None:
        status.show(f"indexing {workspace}: {progress.done}/{progress.total}  {progress.path}")

    status.show("opening the search index …")
    scope = Scope(workspace)
    try:
        await _wait_for_index(runtime)
        await runtime.knowledge.sync(scope, None, show)
        return (await runtime.knowledge.status(scope)).documents
    except (IndexUnavailable, EmbedderUnavailable, StoreUnavailable, OSError) as error:
        status.clear()
        note(f"The documents cannot be searched, so answers do not use them. {error}")
        return None


async def _wait_for_index(runtime: Runtime) -> None:
    """Wait until the index is no longer opening. If it failed, the next call of it says so."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(OPENING_SECONDS):
            while (await runtime.knowledge.health()).state is ConnectionState.CONNECTING:  # noqa: ASYNC110 - it may fail, too
                await asyncio.sleep(0.05)


async def _chat_with_process(client: Client, settings: Settings, console: _Console, status: StatusLine) -> int:
    """Send messages to the process that runs already."""
    workspace = console.options.workspace
    documents: int | None = None
    try:
        documents = int((await client.get(api_path("workspaces", workspace, "index")))["documents"])
    except AgentRuntimeError as error:
        if getattr(error, "status", 0) == 404:
            raise
    status.clear()
    console.greet(greeting(workspace, documents, settings.llm_model, remote=True))
    async with asyncio.TaskGroup() as group:
        gateway = RemoteGateway(client, console, group)
        await console.run(gateway.accept)
        gateway.close()
    return console.exit_code


class RemoteGateway:
    """Sends a console's messages to another process over HTTP, and streams the answers back to the console.

    For the console it is what the gateway is in the runtime's own process. *group* owns the streams.
    """

    def __init__(self, client: Client, console: _Console, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._console = console
        self._group = group
        self._streams: set[asyncio.Task[None]] = set()

    async def accept(self, message: InboundMessage) -> Accepted:
        """Send *message*. The answer comes to the console by itself. Raises `StoreUnavailable`, `ApiError`."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = self._group.create_task(self._exchange(message, accepted), name="answer")
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)
        try:
            await accepted
        except ApiError as error:
            if error.status == 503:
                raise StoreUnavailable(str(error)) from error
            raise
        except Unreachable as error:
            raise StoreUnavailable(str(error)) from error
        return Accepted("stored")

    def close(self) -> None:
        """Stop waiting for answers. The turns go on."""
        for stream in self._streams:
            stream.cancel()

    async def _exchange(self, message: InboundMessage, accepted: asyncio.Future[None]) -> None:
        """Send *message* and deliver its answer. *accepted* gets None when the message is stored, or the failure."""
        options = self._console.options
        key = ConversationKey(options.workspace, "console", options.context)
        answers = (message.message_id,)
        body = {"text": message.text, "context": options.context, "direct": True}
        headers = {"Idempotency-Key": message.message_id}
        path = api_path("workspaces", options.workspace, "messages")

        def mark_accepted() -> None:
            if not accepted.done():
                accepted.set_result(None)

        try:
            async for name, data in self._client.events("POST", path, body, headers, on_accepted=mark_accepted):
                if name == "delta":
                    await self._console.stream(key, answers, str(data["text"]))
                elif name == "done":
                    await self._deliver(answer(key, answers, data))
        except AgentRuntimeError as error:
            if accepted.done():
                await self._deliver(OutboundMessage(key, "", str(error), kind="apology", answers=answers))
            else:
                accepted.set_exception(error)

    async def _deliver(self, message: OutboundMessage) -> None:
        for part in self._console.render(message):
            await self._console.send(message, part)


def answer(key: ConversationKey, answers: tuple[str, ...], data: dict[str, Any]) -> OutboundMessage:
    """Return the answer object of the HTTP interface as a message for the console. Pure."""
    usage = data.get("usage") or {}
    return OutboundMessage(
        key=key,
        turn_id=str(data.get("turn_id", "")),
        text=str(data.get("text", "")),
        answers=answers,
        strategy=str(data.get("strategy", "")),
        reason=str(data.get("reason", "")),
        sources=tuple(Source(source["source"], source["heading"]) for source in data.get("sources", ())),
        shows_sources=True,
        degraded=tuple(Degraded(part["block"], part["why"]) for part in data.get("degraded", ())),
        usage=Usage(
            prompt=usage.get("prompt", 0),
            cached=usage.get("cached", 0),
            completion=usage.get("completion", 0),
            cost_usd=usage.get("cost_usd", 0.0),
            estimated=usage.get("estimated", False),
        ),
    )


def greeting(
    workspace: str, documents: int | None, model: str | None, *, remote: bool, width: int | None = None
) -> str:
    """Return the first screen of a chat, at most *width* characters wide; the default is the terminal's width.

    *documents* is None if they cannot be searched. *remote* is True if another process answers.
    """
    columns = min(width or shutil.get_terminal_size().columns, MAX_COLUMNS)
    paragraphs = [f"Agent Runtime. {_about_documents(workspace, documents)}", _about_model(model, remote)]
    if workspace == SAMPLE and documents:
        paragraphs.append("Try:\n" + "\n".join(f"  {question}" for question in EXAMPLES))
    paragraphs.append("The sources are below each answer. `agent-runtime explain` shows what the model was told.")
    paragraphs.append("/help lists the commands. /quit or Ctrl-D ends the chat.")
    return "\n".join(_wrap(as_typed(paragraph), columns) for paragraph in paragraphs) + "\n"


def _about_documents(workspace: str, documents: int | None) -> str:
    start = f"This chat is in the workspace {workspace!r}"
    if documents is None:
        return f"{start}. Its documents cannot be searched now: `agent-runtime doctor` says why."
    if documents == 0:
        return f"{start}. It has no documents yet: `agent-runtime index -w {workspace} PATH` adds some."
    return f"{start}. Answers use its {count(documents, 'document')}."


def _about_model(model: str | None, remote: bool) -> str:
    if remote:
        return "The agent-runtime process that runs on this data folder answers."
    if model not in (None, EXTRACTIVE):
        return f"Model: {model}."
    return (
        "No language model is set, so answers are quotations from the documents. `agent-runtime setup` adds a language "
        "model."
    )


def _wrap(paragraph: str, width: int) -> str:
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())), break_on_hyphens=False)
        for line in paragraph.split("\n")
    )
