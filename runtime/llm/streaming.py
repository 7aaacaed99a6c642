"""One request to a model through LiteLLM, and the assembly of its answer from chunks.

Tool calls are assembled too. By OpenAI's protocol the chunks of one call have one index: the id and the name come once,
the arguments bit by bit. Servers that speak the protocol also give every call the same index or none, no id, the same
id to several calls or a new id to every chunk, repeat a name or send it in parts, and repeat a whole call at its end.
The assembly then decides by the chunks that came before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.message import Usage

Message = Mapping[str, Any]
OnDelta = Callable[[str], Awaitable[None]]
OnRestart = Callable[[], Awaitable[None]]

CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants to call; ``arguments`` is its JSON text as the model wrote it, unchecked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One answer. ``model`` gave it; times are in milliseconds from the start of the first attempt."""

    text: str
    model: str
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    first_token_ms: int | None = None
    """When the first text arrived; None if the answer was not streamed."""
    latency_ms: int = 0
    attempts: int = 1
    tool_calls: tuple[ToolCall, ...] = ()
    warned: str = ""
    """What the model was told about this answer before it had to write it again; empty if the answer stands."""
    call: str = field(default="", compare=False)
    """The name by which the call was reserved (`runtime.billing.Reservation`); empty if it was not reserved."""


@dataclass(frozen=True)
class Target:
    """How one model is called: LiteLLM's id of it, and the options that hold unless the call sets them.

    ``max_output_tokens`` is the most that a call may ask of it; None means no limit.
    """

    name: str
    litellm_id: str
    options: Mapping[str, Any]
    local: bool = False
    max_output_tokens: int | None = None


class CallbackFailed(Exception):
    """``on_delta`` raised. That is the caller's error, not the model's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Call:
    """What is asked, and how much of the answer was shown so far."""

    messages: Sequence[Message]
    on_delta: OnDelta | None
    on_restart: OnRestart | None
    options: dict[str, Any]
    started: float = field(default_factory=time.monotonic)
    attempts: int = 0
    shown: bool = False

    @property
    def can_ask_again(self) -> bool:
        """Whether another attempt may be made: text that was shown can be taken back, or there is none."""
        return not self.shown or self.on_restart is not None

    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1000)

    async def restart(self) -> None:
        """Take back the text that an earlier attempt has shown."""
        if self.shown and self.on_restart is not None:
            await self.on_restart()
            self.shown = False

    async def show(self, text: str) -> None:
        """Show *text* to the caller. Raises `CallbackFailed`."""
        if self.on_delta is None:
            return
        self.shown = True
        try:
            await self.on_delta(text)
        except Exception as error:
            raise CallbackFailed(error) from error


class ModelRequest:
    """One request and its answer, streamed or not. *tools* are the descriptions of the tools that it offers."""

    def __init__(
        self, litellm: Any, target: Target, stall_seconds: float, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._litellm = litellm
        self._target = target
        self._stall_seconds = stall_seconds
        self._text: list[str] = []
        self._tool_calls = ToolCallAccumulator([tool["function"]["name"] for tool in tools])
        self._finish_reason = ""
        self._usage: Any = None
        self._first_ms: int | None = None
        self.is_unfinished = False
        """Whether the stream ended, but the provider did not say that the answer is complete."""

    @property
    def model(self) -> str:
        """The name of the model that is asked."""
        return self._target.name

    async def run(self, call: Call) -> Completion:
        """Return the answer to *call*. Raises whatever LiteLLM raises, and `TimeoutError` if a stream stalls."""
        request = {
            "model": self._target.litellm_id,
            "messages": [dict(message) for message in call.messages],
            **self._target.options,
            **call.options,
        }
        if self._target.max_output_tokens is not None:
            request["max_tokens"] = min(request["max_tokens"], self._target.max_output_tokens)
        if call.on_delta is None:
            self._add_response(await self._litellm.acompletion(**request))
        else:
            stream = await self._litellm.acompletion(**request, stream=True, stream_options={"include_usage": True})
            async with _closing(stream):
                await self._read_stream(call, stream)
        return Completion(
            text=replace_surrogates("".join(self._text)),
            model=self._target.name,
            finish_reason=self._finish_reason or "stop",
            usage=self._count_usage(),
            first_token_ms=self._first_ms,
            tool_calls=self._tool_calls.calls,
        )

    def _add_response(self, response: Any) -> None:
        choice = response.choices[0]
        self._text.append(choice.message.content or "")
        self._finish_reason = choice.finish_reason or ""
        self._usage = getattr(response, "usage", None)
        for index, tool in enumerate(choice.message.tool_calls or ()):
            self._add_tool_call(index, tool)

    async def _read_stream(self, call: Call, stream: Any) -> None:
        chunks = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(self._stall_seconds if self._first_ms is not None else None):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                self.is_unfinished = hasattr(stream, "received_finish_reason") and _finish_reason(stream) is None
                return
            except Exception:
                if _finish_reason(stream) is not None:
                    return  # the whole answer is here: another one would cost as much again
                raise
            self._usage = getattr(chunk, "usage", None) or self._usage
            for choice in chunk.choices[:1]:
                self._finish_reason = choice.finish_reason or self._finish_reason
                for tool in choice.delta.tool_calls or ():
                    self._add_tool_call(tool.index or 0, tool)
                if text := choice.delta.content:
                    if self._first_ms is None:
                        self._first_ms = call.elapsed_ms()
                    self._text.append(text)
                    await call.show(text)

    def _add_tool_call(self, index: int, tool: Any) -> None:
        self._tool_calls.add(index, tool.id or "", tool.function.name or "", tool.function.arguments or "")

    def _count_usage(self) -> Usage:
        usage = self._usage
        if usage is None:
            return Usage()
        prompt, cached = _prompt_tokens(usage)
        return Usage(
            prompt=prompt,
            cached=cached,
            completion=usage.completion_tokens or 0,
            cost_usd=0.0 if self._target.local else _cost_usd(self._litellm, self._target.litellm_id, usage),
        )


def replace_surrogates(text: str) -> str:
    """Return *text* as every store takes it.

    Two halves of a surrogate pair in a row become one character; a single half becomes U+FFFD.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _finish_reason(stream: Any) -> str | None:
    """Return the reason that the provider gave for the end of the answer; None if it gave none.

    The last chunk does not tell: LiteLLM puts a reason of its own there if the provider gave none.
    """
    return getattr(stream, "received_finish_reason", None) or getattr(stream, "intermittent_finish_reason", None)


@contextlib.asynccontextmanager
async def _closing(stream: Any) -> AsyncIterator[None]:
    """Close *stream* however the block ends; a stream that was read half would keep its connection."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the answer is here, or its error is being raised
            async with asyncio.timeout(CLOSE_SECONDS):
                await stream.aclose()


def _prompt_tokens(usage: Any) -> tuple[int, int]:
    """Return all tokens of the prompt, and those of them that the provider read from its cache.

    OpenAI includes the cached tokens in the total; LiteLLM does so for the providers that it knows. Servers that pass
    on Anthropic's figures under OpenAI's names do not include tokens that were read from the cache or written to it:
    then these are more than the total.
    """
    prompt = usage.prompt_tokens or 0
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(usage, "cache_read_input_tokens", None) or 0
    written = (
        getattr(details, "cache_creation_tokens", None) or getattr(usage, "cache_creation_input_tokens", None) or 0
    )
    return (prompt + cached + written if cached + written > prompt else prompt), cached


def _cost_usd(litellm: Any, model: str, usage: Any) -> float:
    """Return the cost by LiteLLM's price list; 0.0 if the model has no price there."""
    try:
        return float(sum(litellm.cost_per_token(model=model, usage_object=usage)))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        return 0.0


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object, so that nothing can follow."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class ToolCallAccumulator:
    """Assembles the tool calls of one answer from their chunks. *offered* are the names of the offered tools."""

    def __init__(self, offered: Collection[str] = ()) -> None:
        self._offered = offered
        self._calls: dict[int, _PartialCall] = {}
        self._positions: dict[int, int] = {}
        """The position of the current call of an index, if it differs from the index."""

    def add(self, index: int, id: str, name: str, arguments: str) -> None:  # noqa: A002 - the protocol's name
        """Add one chunk; fields that it lacks are empty."""
        position = self._positions.get(index, index)
        call = self._calls.get(position)
        if call is not None and self._is_repetition(call, id, name, arguments):
            return
        if call is not None and self._begins_another(call, id, name, arguments):
            position = self._positions[index] = max(self._calls) + 1
        call = self._calls.setdefault(position, _PartialCall())
        call.id = call.id or id
        if not call.name or self._continues_name(call, name):
            call.name += name
        call.arguments += arguments

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in order. A call that came under several indices is listed once."""
        calls: list[ToolCall] = []
        for _, partial in sorted(self._calls.items()):
            call = ToolCall(partial.id, partial.name, partial.arguments)
            if not partial.id or call not in calls:
                calls.append(call)
        return tuple(calls)

    def _is_repetition(self, call: _PartialCall, id: str, name: str, arguments: str) -> bool:  # noqa: A002 - as above
        """Whether the chunk repeats the whole *call*. A call that is made twice might create something twice."""
        if not arguments or (name and not id) or id not in ("", call.id) or name not in ("", call.name):
            return False
        return call.is_complete and call.arguments in (arguments, _unwrap_json_string(arguments))

    def _begins_another(self, call: _PartialCall, id: str, name: str, arguments: str) -> bool:  # noqa: A002 - as above
        has_other_id = bool(id and call.id) and id != call.id
        if not name:
            return has_other_id and call.is_complete
        if has_other_id:
            return name != call.name or not call.arguments or call.is_complete
        if call.is_complete and call.name:
            return bool(arguments) or name != call.name
        return name != call.name and name in self._offered and call.name in self._offered

    def _continues_name(self, call: _PartialCall, name: str) -> bool:
        """Whether *name* is the next part of the name, and not the same name again."""
        return name != call.name and (call.name not in self._offered or call.name + name in self._offered)


def _unwrap_json_string(arguments: str) -> str | None:
    """Return the string that *arguments* encode in JSON, or None. Some gateways wrap a repeated call like this."""
    try:
        text = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
