"""The chat in a terminal or over standard input and output."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from connectors.connector import Accept, Capabilities, ConnectionState, Health, SendFailed
from connectors.console import convert
from connectors.console.convert import split_finished
from connectors.console.terminal import PROMPT, Interrupted, Style, Terminal, Unreadable
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
    answer_object,
)

MAX_PART_CHARACTERS = 100_000_000
"""A terminal has no limit, so a reply is always one part."""
LEAVE = frozenset({"/quit", "/exit"})

_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 5.0

STOP = "/stop"
_STOP_SECONDS = 5.0
"""How long the prompt waits for an answer to stop."""
_STOP_AGAIN_SECONDS = 0.3
"""Pause between two stop messages. A stop does nothing before a worker has begun the answer, so it is repeated."""


class _Question:
    """A message that waits for its answer.

    ``received`` is the text streamed so far; ``shown`` is its beginning that is final and already on the screen.
    """

    def __init__(self, message: InboundMessage, asked_at: float) -> None:
        self.message_id = message.message_id
        self.asked_at = asked_at
        self.received = ""
        self.shown = ""
        self.answered = asyncio.Event()
        self.stopped = False
        self.stored = False


UNANSWERED = "model"
"""The degraded block of a reply that is only an apology, because no model answered."""


class ConsoleConnector:
    """The connector of a terminal chat. `run` ends when the person leaves, or after the answer to *one_shot*.

    It sends one message at a time: the next line is sent after the answer, or after *wait_seconds*; a later answer is
    shown when it arrives. Ctrl-C stops an answer, and so does ``/stop`` on a live terminal; the rest of the answer is
    not shown. An answer grows on the screen only on a live terminal, without *one_shot* and *as_json*; else it is
    printed once, with *as_json* as one JSON object. Afterwards `exit_code` is 0 if every message was answered, else 1.
    """

    name = convert.NAME
    capabilities = Capabilities(max_part_units=MAX_PART_CHARACTERS, local=True)
    typing_lasts_seconds = 5.0

    def __init__(
        self,
        terminal: Terminal,
        *,
        wait_seconds: float,
        workspace_id: str | None = None,
        context: str = convert.DEFAULT_CONTEXT,
        author_name: str = "",
        banner: str = "",
        one_shot: str | None = None,
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = terminal
        self._wait_seconds = wait_seconds
        self._workspace_id = workspace_id
        self._context = context
        self._author_name = author_name
        self._banner = banner
        self._one_shot = one_shot
        self._as_json = as_json
        self._clock = clock
        self._shows_drafts = terminal.live and one_shot is None and not as_json
        """Whether a growing answer is shown."""
        self._question: _Question | None = None
        self._deadline: asyncio.Timeout | None = None
        """The time limit for the answer to the current question."""
        self._hidden_ids: set[str] = set()
        """Ids of messages whose answers are not shown: stopped questions and stop messages."""
        self._health = Health(ConnectionState.CONNECTING, "the chat has not begun")
        self.exit_code = 0

    @property
    def health(self) -> Health:
        return self._health

    async def run(self, accept: Accept) -> None:
        """Run the chat until the person leaves. Unlike other connectors, this one ends by itself."""
        self._health = Health(ConnectionState.CONNECTED)
        try:
            if self._one_shot is not None:
                await self._ask(accept, self._one_shot)
            else:
                await self._converse(accept)
        except OSError:
            self.exit_code = 1  # the output is closed, so nobody reads the answers
        finally:
            self._health = Health(ConnectionState.STOPPED, "the chat has ended")

    async def _converse(self, accept: Accept) -> None:
        if self._banner:
            await self._terminal.write(convert.neutralise(self._banner).rstrip("\n") + "\n\n", Style.DIM)
        if not self._terminal.live:
            while (line := await self._next_line()) is not None:
                await self._ask(accept, line)
            return
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        # Not in a TaskGroup, which would wrap the exceptions of `_ask`.
        reader = asyncio.create_task(self._read_ahead(lines), name="console lines")
        try:
            while (line := await lines.get()) is not None:
                await self._terminal.write(f"{PROMPT}{convert.neutralise(line)}\n", Style.QUESTION)
                await self._ask(accept, line)
        finally:
            reader.cancel()
            await asyncio.wait({reader})

    async def _read_ahead(self, lines: asyncio.Queue[str | None]) -> None:
        """Read lines while earlier ones are answered, so that ``/stop`` takes effect at once."""
        while True:
            try:
                line = await self._next_line()
            except OSError:
                self.exit_code = 1
                line = None
            if line is not None and line.strip() == STOP and self._question is not None:
                self._stop_now()
            else:
                lines.put_nowait(line)
            if line is None:
                return

    async def _next_line(self) -> str | None:
        """Return the next line that is not blank, or None if the person leaves."""
        leaving = False
        while True:
            try:
                line = await self._terminal.read_line()
            except Interrupted:
                if leaving:
                    return None
                leaving = True
                await self._terminal.complain("(Press Ctrl-C again, Ctrl-D or type /quit to leave)")
                continue
            except Unreadable as error:
                self.exit_code = 1
                await self._terminal.complain(str(error))
                continue
            leaving = False
            if line is None or line.strip() in LEAVE:
                return None
            if line.strip():
                return line

    async def _ask(self, accept: Accept, text: str) -> None:
        if not text.strip():
            await self._fail("The message is empty.")
            return
        message = convert.to_inbound(
            text,
            message_id=uuid.uuid4().hex,
            workspace_id=self._workspace_id,
            context=self._context,
            author_name=self._author_name,
            sent_at=datetime.now(UTC),
        )
        question = self._question = _Question(message, self._clock())
        try:
            await self._await_answer(accept, message, question)
        except AgentRuntimeError as error:
            await self._fail(str(error) or error.user_text)
        finally:
            self._question = None

    async def _await_answer(self, accept: Accept, message: InboundMessage, question: _Question) -> None:
        try:
            # Without a time limit for storing if a person watches: they decide how long they wait for the store.
            limit_seconds = None if self._terminal.interactive else self._wait_seconds
            async with asyncio.timeout(limit_seconds) as deadline:
                self._deadline = deadline
                with self._terminal.interrupts(self._stop_now):
                    accepted = await self._submit(accept, message)
                    question.stored = True
                    if accepted.outcome == "duplicate" and accepted.reply is not None:
                        await self._show_answer(accepted.reply)
                    elif accepted.outcome in ("stored", "duplicate"):
                        deadline.reschedule(asyncio.get_running_loop().time() + self._wait_seconds)
                        await question.answered.wait()
                    else:
                        await self._fail(_refusal(accepted))
        except TimeoutError:
            await self._handle_timeout(accept, message, question)
        finally:
            self._deadline = None

    def _stop_now(self) -> None:
        """Stop waiting for the answer to the current question, and show nothing more of it."""
        if self._question is not None and self._deadline is not None and not self._question.answered.is_set():
            self._question.stopped = True
            if not self._deadline.expired():
                self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _handle_timeout(self, accept: Accept, message: InboundMessage, question: _Question) -> None:
        await self._terminal.show_growing("")
        if not question.stored:
            self._health = Health(ConnectionState.CONNECTED)
            await self._fail("The message could not be stored and is not answered: the store cannot be reached.")
        elif question.stopped:
            if rest := question.received.removeprefix(question.shown).strip("\n"):
                await self._terminal.write_markdown(rest)
            await self._terminal.write("\nStopped.\n\n", Style.DIM)
            await self._stop(accept, message, question)
        else:
            await self._fail(f"No answer after {self._wait_seconds:.0f} s. It is shown when it arrives.")

    async def _stop(self, accept: Accept, message: InboundMessage, question: _Question) -> None:
        """Send stop messages until the answer to *question* ends. Hides their replies and the rest of the answer."""
        self._hidden_ids.add(question.message_id)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                while not question.answered.is_set():
                    stop = replace(message, message_id=uuid.uuid4().hex, text=STOP, sent_at=datetime.now(UTC))
                    self._hidden_ids.add(stop.message_id)
                    await accept(stop)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_STOP_AGAIN_SECONDS):
                            await question.answered.wait()
        except TimeoutError:
            return  # it ends later, and stays hidden
        except AgentRuntimeError as error:
            await self._terminal.complain(f"The answer cannot be shown here, but the bot continues it: {error}")

    async def _submit(self, accept: Accept, message: InboundMessage) -> Accepted:
        """Submit *message*, and retry while the store is unavailable. Raises any other `AgentRuntimeError`."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                accepted = await accept(message)
            except StoreUnavailable as error:
                if self._health.state is ConnectionState.CONNECTED:
                    self._health = Health(ConnectionState.DEGRADED, str(error) or error.user_text)
                    await self._terminal.complain(
                        "Your message cannot be stored yet: the store cannot be reached. Trying again …"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
            else:
                self._health = Health(ConnectionState.CONNECTED)
                return accepted

    async def _fail(self, why: str) -> None:
        self.exit_code = 1
        await self._terminal.show_growing("")
        await self._terminal.complain(" ".join(convert.neutralise(why).split()))

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        if not message.text:
            return ()
        return (OutboundPart(0, 1, message.text, token=f"{message.turn_id}:{message.kind}:0"),)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        if any(degraded.block == UNANSWERED for degraded in message.degraded):
            self.exit_code = 1  # the reply only says that no model answered
        question = self._question
        answers_it = question is not None and question.message_id in message.answers
        try:
            if not self._hidden_ids.intersection(message.answers):
                await self._show_answer(message)
        except OSError as error:
            raise SendFailed(f"the terminal is gone: {type(error).__name__}", retryable=False) from error
        finally:
            # Even if it could not be shown, no other answer will come.
            if question is not None and answers_it:
                question.answered.set()
        return Receipt(part.token)

    async def _show_answer(self, message: OutboundMessage) -> None:
        if self._as_json:
            await self._terminal.write(json.dumps(answer_object(message)) + "\n", Style.PLAIN)
            return
        question = self._question
        shown, seconds = "", None
        if question is not None and question.message_id in message.answers:
            shown, seconds = question.shown, self._clock() - question.asked_at
        elif message.silent:
            return  # the person who stopped it was told so, and nobody waits for it
        await self._terminal.show_growing("")
        text = convert.neutralise(message.text)
        if not text.startswith(shown):
            await self._terminal.write("(The answer was written again:)\n\n", Style.DIM)
            shown = ""
        if rest := text[len(shown) :].strip("\n"):
            await self._terminal.write_markdown(rest)
        for line in convert.footer(message, seconds):
            await self._terminal.write(convert.wrap(line, self._terminal.columns) + "\n", Style.DIM)
        await self._terminal.write("\n", Style.PLAIN)

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        return self._shows_drafts and self._question is not None and self._question.message_id in answers

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        question = self._question
        if question is None or question.message_id not in answers or question.stopped or not self._shows_drafts:
            return
        question.received += convert.neutralise(delta)
        finished, rest = split_finished(question.received.removeprefix(question.shown))
        with suppress(OSError):  # `send` reports it
            if finished:
                question.shown += finished
                await self._terminal.write_markdown(finished)
                await self._terminal.write("\n", Style.PLAIN)
            if not question.stopped:
                await self._terminal.show_growing(rest)

    async def typing(self, key: ConversationKey) -> None:
        if (
            self._question is not None
            and not self._question.received
            and not self._question.stopped
            and self._shows_drafts
        ):
            with suppress(OSError):
                await self._terminal.show_growing("…")

    async def close(self) -> None:
        self._health = Health(ConnectionState.STOPPED, "the chat has ended")


def _refusal(accepted: Accepted) -> str:
    wait = f" Please try again in {accepted.retry_after_seconds} s." if accepted.retry_after_seconds else ""
    return f"The message is not answered: {accepted.why or accepted.outcome}.{wait}"
