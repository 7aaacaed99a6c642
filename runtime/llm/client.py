"""Calls the language model: the configured one, then its fallbacks.

If an error may pass (a 429, say; the table in `runtime.llm.errors` says which), the same model is asked again, at most
``LLM_MAX_ATTEMPTS`` times in all, after pauses with exponential backoff and jitter. A provider's ``Retry-After``
in seconds is kept: the pause is at least that long. If it is longer than `LONGEST_RETRY_AFTER_SECONDS` (20 s), or the
attempts are used up, the fallback models are asked in order. If all fail, the caller gets the failure of the model
asked first; `runtime.turns.turn` makes an apology of it.
Failures are not remembered: the next call asks the first model again. LiteLLM's own retries are off.

Once a part of an answer was shown (``on_delta`` was called), another attempt would write a second answer below the
first. So it is made only if the caller gave ``on_restart``: that takes the shown text back, and is awaited before new
text comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from config.settings import BUNDLED_MODELS, EXTRACTIVE, SMOLLM2, Settings
from connectors.connector import ConnectionState, Health
from connectors.health import Backoff
from connectors.message import Usage
from grounding.extractive import reply, text_of
from grounding.prompt_input import load_tokens
from grounding.retrieval import EmbedderUnavailable, WordLlamaEmbedder
from runtime.embedded import ChildFailed, LocalModelServer
from runtime.llm.capabilities import OLLAMA_URL, Capabilities, credentials, has_own_server, is_served_by_ollama
from runtime.llm.errors import (
    LONGEST_RETRY_AFTER_SECONDS,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    UnfinishedStream,
    model_failure,
)
from runtime.llm.loader import is_loaded, load_litellm, warm_up
from runtime.llm.messages import (
    FitPrompt,
    StablePrefix,
    Transcription,
    has_images,
    mark_stable_prefix,
    takes_cache_key,
    transcribe,
    without_images,
    without_tools,
)
from runtime.llm.streaming import (
    CLOSE_SECONDS,
    Call,
    CallbackFailed,
    Completion,
    Message,
    ModelRequest,
    OnDelta,
    OnRestart,
    Target,
    replace_surrogates,
)

T = TypeVar("T")

log = structlog.get_logger()

RETRY_SECONDS = (0.5, 8.0)
"""The first and the longest pause before another attempt."""
EMPTY_ATTEMPTS = 2
"""So many empty answers of one model in a call are an error."""
UNFINISHED_ANSWERS = 3
"""Some servers never say that an answer is complete; they just end the connection. A model that has never said it is
believed after so many answers. A server that was just started, or a proxy whose server is gone, may break off two."""
NO_CONNECTION_SECONDS = 3.0
"""If there is no server, a call is not repeated later than this after its first attempt."""
STALL_FRACTION = 0.5
"""A stream is given up if it is silent for this part of ``LLM_TIMEOUT_SECONDS``."""
LOCAL_MAX_OUTPUT_TOKENS = 192
ANSWERS = ("reply", "preview", "doctor", "setup")
"""The purposes for which `EXTRACTIVE` can be asked: all others need new words."""
NEEDS_MODEL = "this needs a language model; set AGENT_RUNTIME_LLM_MODEL, or run `./agent-runtime setup`"
LOCAL_SAMPLING: Mapping[str, Any] = {"temperature": 0.2, "extra_body": {"repeat_penalty": 1.1, "repeat_last_n": 256}}
"""For `SMOLLM2` only. Without them it repeats one sentence until its output ends."""
_CONNECTED = Health(ConnectionState.CONNECTED)


class Model:
    """The configured model with its fallbacks. *local* is the server of `SMOLLM2`."""

    def __init__(
        self,
        settings: Settings,
        local: LocalModelServer | None = None,
        *,
        retry_seconds: tuple[float, float] = RETRY_SECONDS,
    ) -> None:
        self._settings = settings
        self._local = local
        self._retry_seconds = retry_seconds
        self._capabilities = Capabilities(settings)
        self._embedder = WordLlamaEmbedder()
        """For `EXTRACTIVE`."""
        self._health = Health(ConnectionState.CONNECTING)
        self._finishing: set[str] = set()
        """The models that have said that an answer is complete."""
        self._unfinished: dict[str, int] = {}
        """How many answers of the other models ended without it."""

    @property
    def health(self) -> Health:
        """The result of the last call; ``connecting`` before the first.

        It is only shown (``/readyz``, ``doctor``, metrics): no call depends on it, and reading it makes none.
        """
        if self.name == SMOLLM2 and self._local is not None and self._local.health.state is ConnectionState.FAILED:
            return self._local.health
        return self._health

    @property
    def name(self) -> str:
        """The first model that is asked."""
        return self._settings.model_name

    @property
    def names(self) -> tuple[str, ...]:
        """All configured models, in the order in which they are asked."""
        return tuple(dict.fromkeys((self.name, *self._settings.llm_fallback_models)))

    @property
    def _uses_litellm(self) -> bool:
        return any(name != EXTRACTIVE for name in self.names)

    async def warm(self) -> None:
        """Load what the first answer needs, in threads. If the local model is asked first, it is started, too."""
        if self.name == EXTRACTIVE:
            with contextlib.suppress(EmbedderUnavailable):  # it does without
                await self._embedder.embed_query("warm")
        if self.name == SMOLLM2 and self._local is not None:
            self._local.begin()
        if self._uses_litellm:
            litellm, offers_tools = await load_litellm(), await self.calls_tools()
            await asyncio.to_thread(warm_up, litellm, self.name, offers_tools=offers_tools)

    async def window_tokens(self, first: str | None = None) -> int:
        """Return the context window of the model that is asked first (see `complete`)."""
        return await self._capabilities.window_tokens(self._order(first)[0])

    async def sees_images(self, first: str | None = None) -> bool:
        """Whether the model that is asked first (see `complete`) can be shown images."""
        return await self._capabilities.sees_images(self._order(first)[0])

    async def calls_tools(self, first: str | None = None) -> bool:
        """Whether tools are offered to the model that is asked first (see `complete`)."""
        return await self._capabilities.calls_tools(self._order(first)[0])

    async def transcribe(self, audio: bytes, name: str, media_type: str) -> Transcription:
        """Transcribe a recording called *name*. There are retries, but no fallback models.

        Raises `ModelRefused`, also if no transcription model is set, and `ModelUnavailable`.
        """
        setting = "AGENT_RUNTIME_TRANSCRIPTION_MODEL"
        model = self._settings.transcription_model
        if model is None:
            raise ModelRefused(f"no model is configured: set {setting}", why="not_found")
        target = Target(model, model, credentials(self._settings, model))
        litellm = await load_litellm()

        async def attempt() -> Transcription:
            try:
                return await transcribe(litellm, target, audio, name, media_type, self._settings.llm_timeout_seconds)
            except Exception as error:  # noqa: BLE001 - LiteLLM raises errors of all kinds; the table classifies them
                failure = model_failure(error, model, shown=False, address=_address(target), setting=setting)
            raise failure

        return await self._retry(attempt, model, "transcription")

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        on_delta: OnDelta | None = None,
        on_restart: OnRestart | None = None,
        max_output_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float | None = None,
        purpose: str = "reply",
        first: str | None = None,
        stable_prefix: StablePrefix | None = None,
        fit_prompt: FitPrompt | None = None,
    ) -> Completion:
        """Return the model's answer to *messages* (in OpenAI's form). It is streamed if *on_delta* is given.

        A model that cannot see gets messages without their images; one that cannot call tools gets tool results as
        text. *tools* are OpenAI function descriptions; if they are given, a tool call is an answer, too. *purpose* is
        for events only. *first* is one of `names` and is asked before the others; an unknown name is ignored, because a
        choice may outlive the settings under which it was made. *stable_prefix* is the part of *messages* that will
        come again, for the provider's cache. *fit_prompt* makes both for a fallback with another window; if it returns
        None, that fallback is skipped.

        Raises `ModelRefused` or `ModelUnavailable` if every model failed: the failure of the model asked first.
        """
        if self._uses_litellm:
            await load_litellm()  # before the call's clock starts: its import takes seconds
        call = Call(messages, on_delta, on_restart, {})
        first_failure: ModelFailed | None = None
        for name in self._order(first):
            try:
                target = await self._target(name, purpose)
                # A fallback may be able to do less than the first model.
                can_call = bool(tools) and await self._capabilities.calls_tools(name)
                call.options = self._options(max_output_tokens, tools if can_call else (), temperature)
                fitted, prefix = messages, stable_prefix
                if fit_prompt is not None and first_failure is not None:
                    smaller = await fit_prompt(await self._capabilities.window_tokens(name))
                    if smaller is None:
                        log.warning("model.skipped", model=target.name, why="window", purpose=purpose)
                        continue
                    fitted, prefix = smaller
                call.messages = fitted if can_call else without_tools(fitted)
                if has_images(fitted) and not await self._capabilities.sees_images(name):
                    call.messages = without_images(call.messages)
                if prefix is not None and name not in BUNDLED_MODELS and self._settings.llm_prompt_caching:
                    await self._announce_prefix(call, target, prefix)
                attempts = functools.partial(self._attempt, call, target)
                completion = await self._retry(attempts, target.name, purpose, call)
                self._health = (
                    Health(ConnectionState.DEGRADED, f"{first_failure.model}: {first_failure.why}")
                    if first_failure
                    else _CONNECTED
                )
                return completion  # noqa: TRY300 - an else for all of the above would hide what is tried
            except ModelFailed as failure:
                log.warning(
                    "model.failed", model=failure.model, why=failure.why, detail=failure.without_model, purpose=purpose
                )
                first_failure = first_failure or failure
                if isinstance(first_failure, ModelUnavailable) and first_failure.retry_after_seconds is not None:
                    first_failure.tell_retry_time(failure.retry_after_seconds)
                if not call.can_ask_again:
                    break
        assert first_failure is not None
        if isinstance(first_failure, ModelUnavailable):
            self._health = Health(ConnectionState.FAILED, f"{first_failure.model}: {first_failure.why}")
        raise first_failure

    async def close(self) -> None:
        """Close LiteLLM's connections. Takes at most `CLOSE_SECONDS` and raises nothing."""
        if not is_loaded():
            return
        litellm = await load_litellm()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await litellm.close_litellm_async_clients()
                # A runtime that is opened later in this process must not find closed clients.
                litellm.in_memory_llm_clients_cache.flush_cache()
        except Exception as error:  # noqa: BLE001 - the process is ending; nothing is lost
            log.info("model.close_failed", error=type(error).__name__)

    def _order(self, first: str | None) -> tuple[str, ...]:
        """Return the models in the order in which they are asked."""
        chosen = [name for name in self.names if name == first]
        return (*chosen, *(name for name in self.names if name not in chosen))

    async def _announce_prefix(self, call: Call, target: Target, prefix: StablePrefix) -> None:
        """Tell the model's provider, in its own way, which beginning of the prompt will come again."""
        name = target.litellm_id
        if await self._capabilities.takes_cache_marks(name):
            call.messages = mark_stable_prefix(call.messages, prefix)
        elif takes_cache_key(name, own_server="api_base" in target.options or has_own_server()):
            call.options["prompt_cache_key"] = prefix.key

    def _options(
        self, max_output_tokens: int | None, tools: Sequence[Mapping[str, Any]], temperature: float | None
    ) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_tokens": max_output_tokens or self._settings.llm_max_output_tokens,
            "timeout": self._settings.llm_timeout_seconds,
            "max_retries": 0,  # this class retries, and nobody else
            "num_retries": 0,
        }
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
        if temperature is not None:
            options["temperature"] = temperature
        return options

    async def _target(self, name: str, purpose: str) -> Target:
        """Return how the model *name* is called. Raises `ModelUnavailable`, `ModelRefused`."""
        if name == EXTRACTIVE:
            if purpose not in ANSWERS:
                raise ModelRefused(f"{name} only quotes: {NEEDS_MODEL}", why="no_model", model=name)
            return Target(name, name, {}, local=True)
        if name != SMOLLM2:
            options = credentials(self._settings, name)
            if not is_served_by_ollama(name):
                return Target(name, name, options)
            # Unless it is told the window, Ollama silently cuts a longer prompt to a window of its own.
            window = await self._capabilities.window_tokens(name)
            return Target(name, name, options | {"num_ctx": window}, local=True)
        if self._local is None:
            raise ModelRefused(f"{name} has no server in this process", why="not_found", model=name)
        try:
            endpoint = await self._local.endpoint()
        except ChildFailed as error:
            raise ModelUnavailable(str(error), why="unreachable", model=name, retryable=error.retryable) from error
        options = {
            "api_base": endpoint.base_url,
            "api_key": endpoint.api_key,
            **LOCAL_SAMPLING,
        }
        return Target(name, f"openai/{endpoint.model}", options, True, LOCAL_MAX_OUTPUT_TOKENS)

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], model: str, purpose: str, call: Call | None = None
    ) -> T:
        """Make attempts to ask *model* until one succeeds or another is of no use. Raises `ModelFailed`."""
        started, backoff = time.monotonic(), Backoff(*self._retry_seconds)
        empty_answers = 0
        for number in range(1, self._settings.llm_max_attempts + 1):
            try:
                return await attempt()
            except ModelFailed as error:
                failure = error
            empty_answers += failure.why == "empty"
            is_last = number == self._settings.llm_max_attempts or empty_answers >= EMPTY_ATTEMPTS
            can_repeat = failure.retryable and (call is None or call.can_ask_again)
            retry_after = failure.retry_after_seconds or 0.0
            if is_last or not can_repeat or retry_after > LONGEST_RETRY_AFTER_SECONDS:
                raise failure
            pause = max(retry_after, backoff.next_seconds())
            if failure.no_connection and time.monotonic() - started + pause > NO_CONNECTION_SECONDS:
                raise failure
            log.info("model.retried", model=model, why=failure.why, purpose=purpose, pause_ms=round(pause * 1000))
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, call: Call, target: Target) -> Completion:
        """Make one attempt within the time limit of a call. Raises `ModelFailed`, and what ``on_delta`` raises."""
        call.attempts += 1
        await call.restart()
        try:
            async with asyncio.timeout(self._settings.llm_timeout_seconds):
                completion = await (self._quote(call) if target.name == EXTRACTIVE else self._request(call, target))
        except CallbackFailed as callback:
            raise callback.error from None
        except Exception as error:  # noqa: BLE001 - LiteLLM raises errors of all kinds; the table classifies them
            setting = f"AGENT_RUNTIME_LLM_{'MODEL' if target.name == self.name else 'FALLBACK_MODELS'}"
            failure = model_failure(error, target.name, shown=call.shown, address=_address(target), setting=setting)
        else:
            if completion.text.strip() or completion.tool_calls:
                return replace(completion, latency_ms=call.elapsed_ms(), attempts=call.attempts)
            failure = ModelUnavailable(
                f"{target.name}: answered nothing", why="empty", model=target.name, retryable=True
            )
        # Not inside "except": the provider's words may quote the prompt, and tracebacks are logged with their context.
        raise failure

    async def _request(self, call: Call, target: Target) -> Completion:
        """Ask LiteLLM. Raises whatever it raises, and `UnfinishedStream`."""
        stall_seconds = self._settings.llm_timeout_seconds * STALL_FRACTION
        request = ModelRequest(await load_litellm(), target, stall_seconds, call.options.get("tools", ()))
        completion = await request.run(call)
        if call.on_delta is not None:
            self._check_end(request)
        return completion

    async def _quote(self, call: Call) -> Completion:
        """Answer as `EXTRACTIVE` does, in this process; its tokens are counted as ours are."""
        text = replace_surrogates(await reply(call.messages, self._embedder))
        first_token_ms = call.elapsed_ms() if call.on_delta is not None else None
        await call.show(text)
        tokens = await asyncio.to_thread(load_tokens)
        prompt = sum(tokens.count(text_of(message)) for message in call.messages)
        usage = Usage(prompt, completion=tokens.count(text))
        return Completion(text, EXTRACTIVE, usage=usage, first_token_ms=first_token_ms)

    def _check_end(self, request: ModelRequest) -> None:
        """Raise `UnfinishedStream` if the stream of *request* was broken off. See `UNFINISHED_ANSWERS`."""
        model = request.model
        if not request.is_unfinished:
            self._finishing.add(model)
            return
        self._unfinished[model] = count = self._unfinished.get(model, 0) + 1
        if model in self._finishing or count < UNFINISHED_ANSWERS:
            raise UnfinishedStream
        if count == UNFINISHED_ANSWERS:
            log.warning("model.ends_unsaid", model=model)


def _address(target: Target) -> str | None:
    """Return the address of *target* as people know it: empty for its provider's own, None for a server that this
    process runs."""
    if target.name in BUNDLED_MODELS:
        return None
    if not is_served_by_ollama(target.litellm_id):
        return str(target.options.get("api_base", ""))
    return str(target.options.get("api_base") or os.environ.get("OLLAMA_API_BASE") or OLLAMA_URL)
