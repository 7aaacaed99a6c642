"""One request to a model through LiteLLM, and its answer, whole or as a stream. Imports no LiteLLM itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.message import Usage
from runtime.called import Called
from runtime.pieces import gather, usage_after

Message = Mapping[str, Any]
OnDelta = Callable[[str], Awaitable[None]]
OnRestart = Callable[[], Awaitable[None]]

CLOSE_SECONDS = 2.0
_unlisted: set[str] = set()
"""Models that LiteLLM has no price for: it looks for one in many ways before it says so, and its list does not change
while the process runs."""


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants called; ``arguments`` is its JSON text as the model wrote it, unchecked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One answer. ``model`` is the one that gave it; times in milliseconds from the first attempt's start."""

    text: str
    model: str
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    first_token_ms: int | None = None
    """When the first text arrived; None where the answer was not streamed."""
    latency_ms: int = 0
    attempts: int = 1
    tool_calls: tuple[ToolCall, ...] = ()
    warned: str = ""
    """What was said to the model of this answer, which it was then asked to write anew; empty where it stands."""
    call: str = field(default="", compare=False)
    """The name by which the call that brought it was reserved (`runtime.spending.Reservation`); empty if it was not."""


@dataclass(frozen=True)
class Target:
    """Where one model is called: LiteLLM's id of it, and what is passed where the call says nothing else.

    ``max_output_tokens`` bounds what a call may ask of it; None does not.
    """

    shown_as: str
    litellm_id: str
    options: Mapping[str, Any]
    local: bool = False
    max_output_tokens: int | None = None


class CallerFailed(Exception):
    """``on_delta`` raised; that is the caller's error and no model's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Call:
    """What is asked, and what has been shown of the answer so far."""

    messages: Sequence[Message]
    on_delta: OnDelta | None
    on_restart: OnRestart | None
    options: dict[str, Any]
    started: float = field(default_factory=time.monotonic)
    attempts: int = 0
    shown: bool = False

    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1000)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is done meanwhile is no part of the model's time."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.started += time.monotonic() - began

    async def restart(self) -> None:
        """Take back what an earlier attempt has shown."""
        if self.shown and self.on_restart is not None:
            await self.on_restart()
            self.shown = False

    async def show(self, text: str) -> None:
        if self.on_delta is None:
            return
        self.shown = True
        try:
            await self.on_delta(text)
        except Exception as error:
            raise CallerFailed(error) from error


class Exchange:
    """One request and its answer, whole or as a stream. It is offered *tools*."""

    def __init__(
        self, litellm: Any, target: Target, stall_seconds: float, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._litellm = litellm
        self._target = target
        self._stall_seconds = stall_seconds
        self._text: list[str] = []
        self._called = Called([tool["function"]["name"] for tool in tools])
        self._finish = ""
        self._usage: Any = None
        self._first_ms: int | None = None

    async def run(self, call: Call) -> Completion:
        """The answer to *call*. Raises whatever LiteLLM raises, and `TimeoutError` for a stream that stalls."""
        request = {
            "model": self._target.litellm_id,
            "messages": [dict(message) for message in call.messages],
            **self._target.options,
            **call.options,
        }
        if self._target.max_output_tokens is not None:
            request["max_tokens"] = min(request["max_tokens"], self._target.max_output_tokens)
        if call.on_delta is None:
            response = await self._litellm.acompletion(**request)
            self._take_whole(response)
        else:
            stream = await self._litellm.acompletion(**request, stream=True, stream_options={"include_usage": True})
            gather(stream)
            async with _closing(stream):
                await self._take_stream(call, stream)
        return Completion(
            text=whole("".join(self._text)),
            model=self._target.shown_as,
            finish_reason=self._finish or "stop",
            usage=self._counted(),
            first_token_ms=self._first_ms,
            tool_calls=tuple(ToolCall(*one) for one in self._called.all),
        )

    def _take_whole(self, response: Any) -> None:
        choice = response.choices[0]
        self._text.append(choice.message.content or "")
        self._finish = choice.finish_reason or ""
        self._usage = getattr(response, "usage", None)
        for index, tool in enumerate(choice.message.tool_calls or ()):
            self._add_tool(index, tool)

    async def _take_stream(self, call: Call, stream: Any) -> None:
        chunks = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(self._stall_seconds if self._first_ms is not None else None):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            self._usage = getattr(chunk, "usage", None) or self._usage
            for choice in chunk.choices[:1]:
                self._finish = choice.finish_reason or self._finish
                for tool in choice.delta.tool_calls or ():
                    self._add_tool(tool.index or 0, tool)
                if text := choice.delta.content:
                    if self._first_ms is None:
                        self._first_ms = call.elapsed_ms()
                    self._text.append(text)
                    await call.show(text)
            if self._finish and self._usage is None:
                try:
                    async with asyncio.timeout(self._stall_seconds):
                        self._usage = self._as_litellm_has_it(await usage_after(stream))
                except TimeoutError:
                    return  # the whole answer is there: another would cost as much again
            if self._finish and self._usage is not None:
                return  # asked for more, LiteLLM would put the whole answer together once more, for its logs

    def _as_litellm_has_it(self, usage: Any) -> Any:
        """*usage* as OpenAI's client has it under the names of LiteLLM, which knows what they are called; None where
        it is none that LiteLLM reads, which then counts by itself."""
        try:
            return usage and self._litellm.Usage(**usage.model_dump(warnings=False))
        except (AttributeError, TypeError, ValueError):  # OpenAI's client passes on whatever a server sends
            return None

    def _add_tool(self, index: int, tool: Any) -> None:
        self._called.add(index, tool.id or "", tool.function.name or "", tool.function.arguments or "")

    def _counted(self) -> Usage:
        usage = self._usage
        if usage is None:
            return Usage()
        prompt, cached = _read_tokens(usage)
        return Usage(
            prompt=prompt,
            cached=cached,
            completion=usage.completion_tokens or 0,
            cost_usd=0.0 if self._target.local else _cost_usd(self._litellm, self._target.litellm_id, usage),
        )


def whole(text: str) -> str:
    """*text* as every store takes it: the halves of a surrogate pair that came one after the other are one character,
    one that came alone is marked as unreadable."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@contextlib.asynccontextmanager
async def _closing(stream: Any) -> AsyncIterator[None]:
    """Give the connection back however the block ends; a stream that was left half read would keep it."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            with contextlib.suppress(Exception):  # the answer is there or its error is on its way
                async with asyncio.timeout(CLOSE_SECONDS):
                    await close()


def _read_tokens(usage: Any) -> tuple[int, int]:
    """All tokens of the prompt, and those of them that the provider had read before.

    OpenAI counts the latter inside the former; so does LiteLLM for the providers that it knows. Servers that pass
    Anthropic's figures on under OpenAI's names count what was kept, and what is kept from now on, beside it: that
    shows where there is more of it than of all.
    """
    prompt = usage.prompt_tokens or 0
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(usage, "cache_read_input_tokens", None) or 0
    written = (
        getattr(details, "cache_creation_tokens", None) or getattr(usage, "cache_creation_input_tokens", None) or 0
    )
    return (prompt + cached + written if cached + written > prompt else prompt), cached


def _cost_usd(litellm: Any, model: str, usage: Any) -> float:
    """By LiteLLM's price list; 0.0 for models it has no price for, each of which it is asked for once."""
    if model in _unlisted:
        return 0.0
    try:
        return float(sum(litellm.cost_per_token(model=model, usage_object=usage)))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model it does not know
        if not _is_listed(litellm, model):
            _unlisted.add(model)
        return 0.0


def _is_listed(litellm: Any, model: str) -> bool:
    try:
        litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True
