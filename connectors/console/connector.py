"""The conversation with whoever sits at the terminal, or writes into the command's standard input."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from connectors.answer import answer_object
from connectors.connector import Accept, Capabilities, Health, SendFailed, State
from connectors.console import convert
from connectors.console.terminal import Interrupted, Style, Terminal, Unreadable
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
)

MAX_PART_CHARACTERS = 100_000_000
"""A reply is one part here: a terminal has no limit of its own."""
LEAVE = frozenset({"/quit", "/exit"})

_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 5.0


class _Question:
    """A message that waits for its answer."""

    def __init__(self, message: InboundMessage, asked_at: float) -> None:
        self.message_id = message.message_id
        self.asked_at = asked_at
        self.shown = ""
        self.answered = asyncio.Event()
        self.interrupted = False
        self.kept = False


UNANSWERED = "model"
"""What a reply had to do without that is an apology, and no answer."""


class ConsoleConnector:
    """A terminal chat; `run` ends when the person leaves, or after the answer to *one_shot*.

    One message at a time: the next line is read when the answer is there, or when the person or
    *wait_seconds* gave up waiting; an answer that comes later is shown then. With *as_json* an answer is
    printed as one JSON object. `exit_code` says afterwards whether each message was answered.
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
        self._question: _Question | None = None
        self._health = Health(State.CONNECTING, "the chat has not begun")
        self.exit_code = 0

    @property
    def health(self) -> Health:
        return self._health

    async def run(self, accept: Accept) -> None:
        """Converse until the person leaves. Unlike other connectors this one ends by itself."""
        self._health = Health(State.CONNECTED)
        try:
            if self._one_shot is not None:
                await self._ask(accept, self._one_shot)
            else:
                await self._converse(accept)
        except OSError:
            self.exit_code = 1  # nobody reads what we write: there is nobody left to talk to
        finally:
            self._health = Health(State.STOPPED, "the chat has ended")

    async def _converse(self, accept: Accept) -> None:
        if self._banner:
            await self._terminal.write(convert.neutralise(self._banner).rstrip("\n") + "\n\n", Style.DIM)
        leaving = False
        while True:
            try:
                line = await self._terminal.read_line()
            except Interrupted:
                if leaving:
                    return
                leaving = True
                await self._terminal.complain("(Ctrl-C again, Ctrl-D or /quit leaves)")
                continue
            except Unreadable as error:
                self.exit_code = 1
                await self._terminal.complain(str(error))
                continue
            leaving = False
            if line is None or line.strip() in LEAVE:
                return
            if line.strip():
                await self._ask(accept, line)

    async def _ask(self, accept: Accept, text: str) -> None:
        if not text.strip():
            await self._fail("The message is empty; there is nothing to answer.")
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
            # A person who looks on decides for themselves how long they wait for the store.
            patience = None if self._terminal.interactive else self._wait_seconds
            async with asyncio.timeout(patience) as limit:
                with self._terminal.interrupts(lambda: _interrupt(question, limit)):
                    accepted = await self._hand_on(accept, message)
                    question.kept = True
                    if accepted.outcome == "duplicate" and accepted.reply is not None:
                        await self._show_answer(accepted.reply)
                    elif accepted.outcome in ("stored", "duplicate"):
                        limit.reschedule(asyncio.get_running_loop().time() + self._wait_seconds)
                        await question.answered.wait()
                    else:
                        await self._fail(_refusal(accepted))
        except TimeoutError:
            await self._give_up(question)

    async def _give_up(self, question: _Question) -> None:
        if not question.kept:
            self._health = Health(State.CONNECTED)
            await self._fail("The message could not be kept, and is not answered: the store is away.")
        elif question.interrupted:
            await self._terminal.status("")
            await self._terminal.complain("(not waited for; the answer is shown when it comes)")
        else:
            await self._fail(f"No answer within {self._wait_seconds:.0f} s; it is shown when it comes.")

    async def _hand_on(self, accept: Accept, message: InboundMessage) -> Accepted:
        """Have *message* stored, however often that takes. Raises `AgentRuntimeError` where it cannot help."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                accepted = await accept(message)
            except StoreUnavailable as error:
                if self._health.state is State.CONNECTED:
                    self._health = Health(State.DEGRADED, str(error) or error.user_text)
                    await self._terminal.complain("Your message cannot be kept yet: the store is away. Trying again …")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
            else:
                self._health = Health(State.CONNECTED)
                return accepted

    async def _fail(self, why: str) -> None:
        self.exit_code = 1
        await self._terminal.status("")
        await self._terminal.complain(" ".join(convert.neutralise(why).split()))

    # What the runtime says.

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        if not message.text:
            return ()
        return (OutboundPart(0, 1, message.text, token=f"{message.turn_id}:{message.kind}:0"),)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        if any(one.block == UNANSWERED for one in message.degraded):
            self.exit_code = 1  # what is told is that no model answered
        try:
            await self._show_answer(message)
        except OSError as error:
            raise SendFailed(f"the terminal is gone: {type(error).__name__}", retryable=False) from error
        finally:
            # Whether or not it could be shown, there is nothing more to wait for.
            if self._question is not None and self._question.message_id in message.answers:
                self._question.answered.set()
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
            return  # who stopped it was told so, and nobody waits for it
        await self._terminal.status("")
        rest = convert.remainder(shown, convert.neutralise(message.text))
        if rest:
            await self._terminal.write(rest, Style.ANSWER)
        await self._terminal.write("\n", Style.PLAIN)
        for line in convert.footer(message, seconds):
            await self._terminal.write(line + "\n", Style.DIM)
        await self._terminal.write("\n", Style.PLAIN)

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        return not self._as_json and self._question is not None and self._question.message_id in answers

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        question = self._question
        if question is None or question.message_id not in answers or self._as_json:
            return
        text = convert.neutralise(delta)
        question.shown += text
        with suppress(OSError):  # `send` says so
            await self._terminal.write(text, Style.ANSWER)

    async def typing(self, key: ConversationKey) -> None:
        if self._question is not None and not self._question.shown and not self._as_json:
            with suppress(OSError):
                await self._terminal.status("…")

    async def close(self) -> None:
        self._health = Health(State.STOPPED, "the chat has ended")


def _interrupt(question: _Question, limit: asyncio.Timeout) -> None:
    question.interrupted = True
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


def _refusal(accepted: Accepted) -> str:
    wait = f" Please try again in {accepted.retry_after_seconds} s." if accepted.retry_after_seconds else ""
    return f"The message is not answered: {accepted.why or accepted.outcome}.{wait}"
