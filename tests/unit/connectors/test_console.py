"""The terminal chat, with a terminal that tests can read, and what a terminal is told."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.connector import ConnectionState, SendFailed
from connectors.console import ConsoleConnector, neutralise
from connectors.console.convert import footer, render, split_finished, to_inbound
from connectors.console.terminal import Interrupted, Style, Unreadable
from connectors.message import (
    CALLER_PREFIX,
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    Degraded,
    InboundMessage,
    OutboundMessage,
    Role,
    Source,
    StoreUnavailable,
)
from tests.emulators.terminal import FakeTerminal

KEY = ConversationKey("sample", "console", "default")
Say = Callable[["Chat", InboundMessage], Awaitable[None]]


class Chat:
    """A chat whose messages are answered by *respond*."""

    def __init__(
        self, respond: Say | None = None, *, interactive: bool = True, live: bool = False, **options: Any
    ) -> None:
        self.terminal = FakeTerminal(interactive=interactive, live=live)
        self.connector = ConsoleConnector(
            self.terminal, **{"wait_seconds": 20.0, "clock": lambda: 0.0, "author_name": "Ann", **options}
        )
        self.accepted: list[InboundMessage] = []
        self.verdicts: list[Accepted | AgentRuntimeError] = []
        self._respond = respond or answer_at_once
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, message: InboundMessage) -> Accepted:
        if self.verdicts:
            verdict = self.verdicts.pop(0)
            if isinstance(verdict, AgentRuntimeError):
                raise verdict
            return verdict
        self.accepted.append(message)
        self._tasks.add(asyncio.create_task(self._answer(message)))
        return Accepted("stored", key=KEY)

    async def _answer(self, message: InboundMessage) -> None:
        await self._respond(self, message)

    async def send(self, message: InboundMessage, text: str, **fields: Any) -> None:
        answer = OutboundMessage(KEY, "t1", text, answers=(message.message_id,), **fields)
        for part in self.connector.render(answer):
            await self.connector.send(answer, part)

    async def stream(self, message: InboundMessage, delta: str) -> None:
        await self.connector.stream(KEY, (message.message_id,), delta)

    async def run(self, *lines: str | Exception | None) -> None:
        self.terminal.type(*lines)
        async with asyncio.timeout(20):
            await self.connector.run(self.accept)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.connector.run(self.accept))
        try:
            async with asyncio.timeout(20):
                yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def answer_at_once(chat: Chat, message: InboundMessage) -> None:
    await chat.send(message, f"you said {message.text}")


async def never(_chat: Chat, _message: InboundMessage) -> None:
    return


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_a_chat_with_sources_reads_well() -> None:
    """The banner, then each answer with its sources and how it came about."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.send(
            message,
            "30 days.",
            strategy="qmd",
            reason="cue",
            sources=(Source("refunds.md", "Windows"),),
            shows_sources=True,
        )

    chat = Chat(respond, banner="A small model answers.")
    await chat.run("how long?", None)
    assert chat.terminal.text() == (
        "A small model answers.\n\n30 days.\nSources: refunds.md › Windows\nqmd · cue · 0.0 s\n\n"
    )
    assert chat.connector.exit_code == 0
    assert chat.connector.health.state is ConnectionState.STOPPED


@pytest.mark.parametrize("leave", ["/quit", " /exit ", None])
async def test_the_chat_ends_when_the_person_leaves(leave: str | None) -> None:
    """/quit, /exit and the end of input end the chat; blank lines are let be; nothing is said to the bot."""
    chat = Chat()
    await chat.run("", "   ", "\t", leave, "never read")
    assert chat.accepted == []
    assert chat.connector.exit_code == 0


async def test_lines_are_answered_in_order_one_at_a_time() -> None:
    """Piped lines are answered in their order, each before the next is handed on."""
    chat = Chat(interactive=False)
    await chat.run("one", "two", "three", None)
    assert chat.terminal.answers == ["you said one", "you said two", "you said three"]
    assert [message.text for message in chat.accepted] == ["one", "two", "three"]
    assert len({message.message_id for message in chat.accepted}) == 3


async def test_an_answer_grows_and_each_block_of_it_is_written_once() -> None:
    """What may still change is shown as growing; a block to which nothing can be added is written, rendered, once."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.connector.typing(KEY)
        for delta in ("It is ", "30\x1b[2J", " days.\n\n", "- one\n", "- tw"):
            await chat.stream(message, delta)
        await chat.send(message, "It is 30\x1b[2J days.\n\n- one\n- two")

    chat = Chat(respond, live=True)
    await chat.run("how long?", None)
    assert chat.terminal.answers == ["It is 30␛[2J days.\n\n", "- one\n- two"]
    assert chat.terminal.growing == [
        "…",
        "It is ",
        "It is 30␛[2J",
        "It is 30␛[2J days.\n\n",
        "- one\n",
        "- one\n- tw",
        "",
    ]
    assert chat.terminal.text().startswith("you> how long?\n")


@pytest.mark.parametrize(
    ("options", "is_watched"),
    [
        ({"live": True}, True),
        ({"live": True, "as_json": True}, False),
        ({"live": True, "one_shot": "hi"}, False),
        ({"interactive": False}, False),
    ],
)
async def test_only_a_person_at_a_terminal_watches_an_answer_grow(options: dict[str, Any], is_watched: bool) -> None:
    """The reply to the message that is waited for is watched, unless it is printed once it is there."""
    watched: list[bool] = []

    async def respond(chat: Chat, message: InboundMessage) -> None:
        watched.append(chat.connector.is_watched(KEY, (message.message_id,)))
        watched.append(chat.connector.is_watched(KEY, ("another",)))
        await chat.send(message, "x")

    await Chat(respond, **options).run("hi", None)
    assert watched == [is_watched, False]


async def test_an_answer_that_turned_out_otherwise_is_shown_whole() -> None:
    """Where another model took over after a block was written, its whole answer stands below, and that is said."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.stream(message, "I think\n\nthat it")
        await chat.stream(message, " is\n")
        await chat.send(message, "It is 30 days.")

    chat = Chat(respond, live=True)
    await chat.run("how long?", None)
    assert chat.terminal.answers == ["I think\n\n", "It is 30 days."]
    assert "written again" in chat.terminal.text(Style.DIM)


async def test_an_answer_that_changed_before_a_block_was_whole_is_shown_once() -> None:
    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.stream(message, "It is 30 days [9].")
        await chat.send(message, "It is 30 days.")

    chat = Chat(respond, live=True)
    await chat.run("how long?", None)
    assert chat.terminal.answers == ["It is 30 days."]


@pytest.mark.parametrize(("without", "exit_code"), [("model", 1), ("retrieved", 0)])
async def test_whoever_runs_it_learns_that_no_model_answered(without: str, exit_code: int) -> None:
    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.send(message, "sorry", degraded=(Degraded(without, "unreachable"),))

    chat = Chat(respond, one_shot="how long?", interactive=False)
    await chat.run()
    assert chat.connector.exit_code == exit_code


async def test_one_shot_prints_the_answer_and_ends() -> None:
    """One message is sent, nothing is read, and the chat is over with success."""
    chat = Chat(one_shot="how long?", interactive=False)
    await chat.run()
    assert chat.terminal.answers == ["you said how long?"]
    assert (chat.terminal.reads, chat.connector.exit_code) == (0, 0)


async def test_one_shot_as_json_prints_one_object() -> None:
    """With as_json the documented object is all that is printed, on one line, streamed or not."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        await chat.connector.typing(KEY)
        await chat.stream(message, "It")
        await chat.send(message, "It is\n30 \x1b days.", strategy="qmd")

    chat = Chat(respond, one_shot="how long?", as_json=True, interactive=False)
    await chat.run()
    (line,) = chat.terminal.text().splitlines()
    assert json.loads(line)["text"] == "It is\n30 \x1b days."
    assert set(json.loads(line)) == {"turn_id", "text", "sources", "strategy", "reason", "degraded", "usage"}
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (Accepted("refused", "rate_limit", retry_after_seconds=9), "rate_limit. Please try again in 9 s."),
        (Accepted("ignored"), "ignored"),
        (AgentRuntimeError("no workspace 'x'; create it"), "no workspace 'x'; create it"),
    ],
)
async def test_what_is_not_accepted_is_said_and_is_a_failure(verdict: Accepted | AgentRuntimeError, told: str) -> None:
    """A refusal or error is told beside the output, fails the command, and the chat goes on."""
    chat = Chat(interactive=False)
    chat.verdicts = [verdict]
    await chat.run("one", "two", None)
    assert told in chat.terminal.complaints[0]
    assert chat.connector.exit_code == 1
    assert chat.terminal.answers == ["you said two"]


async def test_a_repeated_message_that_was_answered_shows_its_answer() -> None:
    """A duplicate's stored answer is shown."""
    chat = Chat()
    chat.verdicts = [Accepted("duplicate", reply=OutboundMessage(KEY, "t1", "as before"))]
    await chat.run("one", None)
    assert chat.terminal.answers == ["as before"]


async def test_a_store_that_is_away_is_waited_for() -> None:
    """While nothing can be kept the person is told once, health says so, and the message is not lost."""
    chat = Chat()
    chat.verdicts = [StoreUnavailable("away"), StoreUnavailable("away")]
    async with chat.running():
        chat.terminal.type("do not lose me")
        await until(lambda: chat.connector.health.state is ConnectionState.DEGRADED)
        await until(lambda: bool(chat.accepted))
        await until(lambda: chat.connector.health.state is ConnectionState.CONNECTED)
    assert len(chat.terminal.complaints) == 1
    assert chat.accepted[0].text == "do not lose me"


async def test_without_a_person_a_store_that_stays_away_is_a_failure() -> None:
    """A command gives up on a store after the bounded wait, and says that the message was not kept."""
    chat = Chat(one_shot="hi", interactive=False, wait_seconds=0.05)
    chat.verdicts = [StoreUnavailable("away")] * 100
    await chat.run()
    assert "could not be stored" in chat.terminal.complaints[-1]
    assert chat.connector.exit_code == 1


async def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    """After the bounded wait the command fails and says so."""
    chat = Chat(never, one_shot="hi", wait_seconds=0.02)
    await chat.run()
    assert chat.terminal.complaints == ["No answer after 0 s. It is shown when it arrives."]
    assert chat.connector.exit_code == 1


async def stop_it(chat: Chat, message: InboundMessage) -> None:
    """Answers a stop as the runtime does: the answer ends where it is, and the stop has a reply of its own."""
    if message.text == "/stop":
        await chat.send(chat.accepted[0], "Once upon _Stopped._", strategy="none")
        await chat.send(message, "Stopped.")
    elif message is chat.accepted[0]:
        await chat.stream(message, "Once upon")
    else:
        await answer_at_once(chat, message)


@pytest.mark.parametrize("how", ["Ctrl-C", "/stop"])
async def test_stopping_ends_the_answer_and_nothing_of_it_comes_later(how: str) -> None:
    """The turn is told to stop; what came stays; neither its rest nor the reply to the stop is shown."""
    chat = Chat(stop_it, live=True)
    async with chat.running():
        chat.terminal.type("a long story")
        await until(lambda: chat.terminal.growing[-1:] == ["Once upon"])
        if how == "/stop":
            chat.terminal.type("/stop")
        else:
            assert chat.terminal.interrupt is not None
            chat.terminal.interrupt()
        await until(lambda: "Stopped." in chat.terminal.text())
        await chat.stream(chat.accepted[0], " a time")
        chat.terminal.type("next")
        await until(lambda: "you said next" in chat.terminal.answers)
    assert [message.text for message in chat.accepted] == ["a long story", "/stop", "next"]
    assert chat.terminal.answers == ["Once upon", "you said next"]
    assert chat.terminal.text().count("Stopped") == 1
    assert chat.connector.exit_code == 0


async def test_a_question_that_nobody_has_begun_to_answer_is_stopped_too() -> None:
    """A stop that found nothing to stop is repeated until the answer has ended."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        if message.text != "/stop":
            return
        if len(chat.accepted) > 2:
            await chat.send(chat.accepted[0], "_Stopped._", silent=True)
        await chat.send(message, "I am not writing anything here.")

    chat = Chat(respond, live=True)
    async with chat.running():
        chat.terminal.type("a long story")
        await until(lambda: len(chat.accepted) == 1 and chat.terminal.interrupt is not None)
        assert chat.terminal.interrupt is not None
        chat.terminal.interrupt()
        await until(lambda: len(chat.accepted) == 3)
    assert chat.terminal.answers == []


async def test_lines_typed_while_an_answer_is_written_are_asked_in_order() -> None:
    """They stand below the answer before them, not in it."""

    async def respond(chat: Chat, message: InboundMessage) -> None:
        if message.text == "one":
            chat.terminal.type("two", "three", None)
            await until(lambda: chat.terminal.reads == 4)
        await answer_at_once(chat, message)

    chat = Chat(respond, live=True)
    await chat.run("one")
    assert chat.terminal.answers == ["you said one", "you said two", "you said three"]
    assert [line for line in chat.terminal.text().splitlines() if line.startswith("you>")] == [
        "you> one",
        "you> two",
        "you> three",
    ]


async def test_interrupting_twice_at_the_prompt_leaves() -> None:
    """The first Ctrl-C at the prompt says how to leave, a second in a row leaves, a line in between stays."""
    chat = Chat()
    await chat.run(Interrupted(), "hi", Interrupted(), Interrupted(), "never read")
    assert len(chat.accepted) == 1
    assert len(chat.terminal.complaints) == 2


async def test_a_line_that_is_no_text_is_left_out_and_said() -> None:
    """Binary input is named and skipped; what follows is answered."""
    chat = Chat(interactive=False)
    await chat.run(Unreadable("a line is not UTF-8 text and was left out"), "two", None)
    assert chat.terminal.complaints == ["a line is not UTF-8 text and was left out"]
    assert chat.terminal.answers == ["you said two"]
    assert chat.connector.exit_code == 1


async def test_a_blank_one_shot_is_a_failure() -> None:
    """A message without text is not sent."""
    chat = Chat(one_shot=" \n", interactive=False)
    await chat.run()
    assert chat.accepted == []
    assert chat.connector.exit_code == 1


async def test_a_reader_that_went_away_ends_the_chat() -> None:
    """When nobody reads any more the send fails for good, waiting ends, and so does the chat."""
    failures: list[SendFailed] = []

    async def respond(chat: Chat, message: InboundMessage) -> None:
        chat.terminal.gone = True
        await chat.stream(message, "lost")
        try:
            await chat.send(message, "lost")
        except SendFailed as error:
            failures.append(error)

    chat = Chat(respond, interactive=False, banner="hello")
    await chat.run("one", "binary", None)
    assert [failure.retryable for failure in failures] == [False, False]
    chat = Chat(banner="hello")
    chat.terminal.gone = True
    await chat.run("one")
    assert chat.connector.exit_code == 1


WILD = st.text(st.characters()) | st.text(st.sampled_from("a\n\r\t\x1b\x9b\x07[]0;m\u202e\u2066\ud800\x7f\u2028"))


@given(WILD)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    """After neutralising only line feeds and tabs control anything, and every encoder takes the text."""
    shown = neutralise(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in shown if c not in "\n\t")
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode("utf-8")
    assert neutralise(shown) == shown


@given(st.lists(WILD))
def test_pieces_of_a_stream_come_out_as_the_whole_would(pieces: list[str]) -> None:
    """Where a stream is cut makes no difference to what is shown."""
    assert "".join(map(neutralise, pieces)) == neutralise("".join(pieces))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"])))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Letters, numbers, punctuation, symbols and marks of all scripts stay as they are."""
    assert neutralise(text) == text


def test_an_escape_sequence_is_shown_and_not_obeyed() -> None:
    """Colours and window titles come out as visible characters."""
    assert neutralise("\x1b[31mred\x1b]0;title\x07") == "␛[31mred␛]0;title␇"


def test_under_an_answer_stand_its_sources_gaps_and_making() -> None:
    """Sources are named once each, then what was missing and why, then strategy, reason and time."""
    message = OutboundMessage(
        KEY,
        "t1",
        "x",
        strategy="qmd",
        reason="workspace_retrieval_cue",
        sources=(
            Source("refunds.md", "Windows"),
            Source("refunds.md", "Windows"),
            Source("a\x1b.md", ""),
        ),
        degraded=(Degraded("summary", "timeout"), Degraded("deep", "late")),
        shows_sources=True,
    )
    assert footer(message, 1.26) == (
        "Sources: refunds.md › Windows · a␛.md",
        "answered without: summary (timeout), the second look of the search (it took too long)",
        "qmd · workspace_retrieval_cue · 1.3 s",
    )
    assert footer(OutboundMessage(KEY, "t1", "x"), None) == ()


def test_a_line_is_said_by_whoever_owns_the_terminal() -> None:
    """A typed line is direct, addressed, an admin's, and of text that can be stored."""
    message = to_inbound(
        "a\udc80", message_id="1", workspace_id=None, context="default", author_name="Ann", sent_at=datetime.now(UTC)
    )
    assert message.text == "a?"
    assert message.author.id.startswith(CALLER_PREFIX)
    assert (message.author.name, message.caller_role, message.direct) == ("Ann", Role.ADMIN, True)
    assert (message.workspace_id, message.default_workspace) == (None, "sample")


MARKDOWN = st.lists(
    st.sampled_from(["a", "bc ", "\n", "\n\n", "- ", "1. ", "# ", "```\n", "> ", "|a|b|\n|-|-|\n", "  ", "**", "`"])
).map("".join)


@given(MARKDOWN, MARKDOWN)
def test_what_is_finished_stays_finished(text: str, more: str) -> None:
    """Splitting loses nothing, and what was finished is also the beginning of the longer text's finished part."""
    finished, rest = split_finished(text)
    assert finished + rest == text
    assert split_finished(text + more)[0].startswith(finished)


@pytest.mark.parametrize(
    ("text", "finished"),
    [("one", ""), ("one\n\ntw", ""), ("one\n\ntwo\n", "one\n\n"), ("- a\n\n- b\n", ""), ("```\na\n\nb\n", "")],
)
def test_only_whole_blocks_are_finished(text: str, finished: str) -> None:
    assert split_finished(text)[0] == finished


def test_lines_are_broken_between_words_at_the_width() -> None:
    text = "Acknowledge the page within five minutes, then tell the channel."
    assert render(text, 30, colours=False) == "Acknowledge the page within\nfive minutes, then tell the\nchannel."


def test_nothing_that_was_written_is_lost() -> None:
    """HTML is text, line breaks stay, and links show their address."""
    shown = render("Use <name> in `a<b>`\nhere: [docs](https://example.org/x)", 80, colours=False)
    assert shown == "Use <name> in a<b>\nhere: docs (https://example.org/x)"


def test_marks_are_rendered_and_not_shown() -> None:
    shown = render("# Title\n\n**bold** words\n\n- one\n- two", 40, colours=True)
    assert "**" not in shown
    assert "# " not in shown
    assert "\x1b[1mbold\x1b[0m" in shown
