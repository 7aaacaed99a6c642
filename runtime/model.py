"""Calls the language model. LiteLLM is imported late (`runtime.loading`).

A call is tried again, with exponential backoff and full jitter, when the error may pass; then the
fallback models are asked in their order. Once a part of an answer was shown (``on_delta`` was called)
another attempt would begin a second answer below the first: it is made only where the caller gave
``on_restart``, which is awaited before the new text begins and takes the shown text back.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from config.settings import BUNDLED_MODELS, EXTRACTIVE, SMOLLM2, Settings
from connectors.connector import Health, State
from runtime.abilities import Abilities
from runtime.caching import Fitted, Standing, marked, takes_key
from runtime.credentials import credentials, has_own_server
from runtime.embedded.child import ChildFailed
from runtime.embedded.model_server import LocalModelServer
from runtime.exchange import (
    CLOSE_SECONDS,
    Call,
    CallerFailed,
    Completion,
    Exchange,
    Message,
    OnDelta,
    OnRestart,
    Target,
    ToolCall,
)
from runtime.loading import import_what_failures_import, loaded_litellm, ready_litellm
from runtime.model_errors import (
    LONGEST_RETRY_AFTER_SECONDS,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    as_failure,
    retry_after_seconds,
)
from runtime.senses import Heard, has_images, hear, without_images
from runtime.tool_messages import without_tools
from runtime.windows import OLLAMA_URL, served_by_ollama

__all__ = ["Completion", "Model", "ModelFailed", "ModelRefused", "ModelUnavailable", "ToolCall"]

log = structlog.get_logger()

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 8.0
EMPTY_ATTEMPTS = 2
"""How often one model may answer nothing before that is an error."""
_CONNECTED = Health(State.CONNECTED)
NO_CONNECTION_SECONDS = 3.0
"""So long after the first attempt one that finds no server is not repeated any more."""
STALL_FRACTION = 0.5
"""A stream that says nothing for this part of the call's time-out is given up."""
LOCAL_MAX_OUTPUT_TOKENS = 192
ANSWERS = ("reply", "doctor", "setup")
"""The purposes for which `EXTRACTIVE` can be asked: for all others words are to be written."""
NEEDS_MODEL = "this needs a language model; set AGENT_RUNTIME_LLM_MODEL, or run `./agent-runtime setup`"
LOCAL_SAMPLING: Mapping[str, Any] = {"temperature": 0.2, "extra_body": {"repeat_penalty": 1.1, "repeat_last_n": 256}}
"""For `SMOLLM2` only. Without them it repeats one sentence until its output ends."""


class Model:
    """The configured model with its fallbacks. *local* is the server of `SMOLLM2`."""

    def __init__(self, settings: Settings, local: LocalModelServer | None = None) -> None:
        self._settings = settings
        self._local = local
        self._abilities = Abilities(settings)
        self._reached = Health(State.CONNECTING)

    @property
    def health(self) -> Health:
        """How the model that is asked first was reached the last time, and ``connecting`` before the first; no call is
        made."""
        if self.name == SMOLLM2 and self._local is not None and self._local.health.state is State.FAILED:
            return self._local.health
        return self._reached

    @property
    def name(self) -> str:
        """The first model that is asked."""
        return self._settings.model_name

    @property
    def names(self) -> tuple[str, ...]:
        """All configured models, in the order in which they are asked."""
        return tuple(dict.fromkeys((self.name, *self._settings.llm_fallback_models)))

    async def warm(self) -> None:
        """Import LiteLLM and, if it is the one that is asked, start the local model, so that the first turn need not
        wait. Raises nothing."""
        if self.name == SMOLLM2 and self._local is not None:
            self._local.begin()
        await loaded_litellm()
        await import_what_failures_import()  # last, because a first turn need not wait for it

    async def window_tokens(self, first: str | None = None) -> int:
        """The context window of the model that is asked first (see `complete`): as set, else as it is known
        (`runtime.windows`)."""
        return await self._abilities.window(self._order(first)[0])

    async def sees_images(self, first: str | None = None) -> bool:
        """Whether the model that is asked first (see `complete`) can be shown pictures, as far as LiteLLM knows."""
        return await self._abilities.sees(self._order(first)[0])

    async def calls_tools(self, first: str | None = None) -> bool:
        """Whether the model that is asked first (see `complete`) is offered tools: as LLM_TOOLS says, which by default
        asks LiteLLM; those that are bundled never are."""
        return await self._abilities.calls(self._order(first)[0])

    async def transcribe(self, audio: bytes, name: str, media_type: str) -> Heard:
        """What is said in a recording called *name*, by the model that is set for it.

        Raises `ModelRefused`, also where none is set, and `ModelUnavailable`.
        """
        model = self._settings.transcription_model
        if model is None:
            raise ModelRefused("no model is configured: set AGENT_RUNTIME_TRANSCRIPTION_MODEL", why="not_found")
        target = Target(model, model, credentials(self._settings, model))
        for attempt in range(1, self._settings.llm_max_attempts + 1):
            try:
                litellm = await loaded_litellm()
                return await hear(litellm, target, audio, name, media_type, self._settings.llm_timeout_seconds)
            except Exception as error:  # noqa: BLE001 - LiteLLM's adapters let all kinds through; each gets its verdict
                setting = "AGENT_RUNTIME_TRANSCRIPTION_MODEL"
                failure = as_failure(error, model, shown=False, address=_address(target), setting=setting)
                asked = retry_after_seconds(error) or 0.0
            if (
                attempt == self._settings.llm_max_attempts
                or not failure.retryable
                or asked > LONGEST_RETRY_AFTER_SECONDS
            ):
                break
            log.info("model.retried", model=model, why=failure.why, purpose="transcription")
            await _pause(max(asked, _backoff_seconds(attempt)))
        log.warning("model.failed", model=model, why=failure.why, detail=failure.without_model, purpose="transcription")
        raise failure

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        on_delta: OnDelta | None = None,
        on_restart: OnRestart | None = None,
        max_output_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        response_format: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        purpose: str = "reply",
        first: str | None = None,
        standing: Standing | None = None,
        fitted: Fitted | None = None,
    ) -> Completion:
        """The model's answer to *messages* (OpenAI's form). Streams where *on_delta* is given. Models that cannot see
        get the text of messages with pictures; those that cannot call tools get what tools told as text.

        *tools* are OpenAI function descriptions; where they are given a call of one is an answer, too. *purpose* goes
        into events only. *first* is one of `names`, which is asked before the others; any other name counts as none, so
        that a choice may outlive the settings under which it was made. *standing* says what of *messages* will come
        again; providers are told where they want to be. *fitted* gives both for a fallback, which may read less than
        the model that is asked first; one that *fitted* has nothing for is not asked.

        Raises `ModelRefused` or `ModelUnavailable`: the failure of the model that was asked first, when every model
        failed.
        """
        call = Call(messages, on_delta, on_restart, {})
        failed: ModelFailed | None = None
        for name in self._order(first):
            try:
                target = await self._target(name, purpose)
                # A fallback may be able to do less than the first choice.
                can_call = bool(tools) and await self._abilities.calls(name)
                call.options = self._options(max_output_tokens, tools if can_call else (), response_format, temperature)
                said, stands = messages, standing
                if fitted is not None and failed is not None:
                    smaller = await fitted(await self._abilities.window(name))
                    if smaller is None:
                        log.warning("model.skipped", model=target.shown_as, why="window", purpose=purpose)
                        continue
                    said, stands = smaller
                call.messages = said if can_call else without_tools(said)
                if has_images(said) and not await self._abilities.sees(name):
                    call.messages = without_images(call.messages)
                if stands is not None and name not in BUNDLED_MODELS and self._settings.llm_prompt_caching:
                    await self._tell_what_stands(call, target, stands)
                completion = await self._attempts(call, target, purpose)
                self._reached = Health(State.DEGRADED, f"{failed.model}: {failed.why}") if failed else _CONNECTED
                return completion  # noqa: TRY300 - an else for all of the above would hide what is tried
            except ModelFailed as failure:
                log.warning(
                    "model.failed", model=failure.model, why=failure.why, detail=failure.without_model, purpose=purpose
                )
                failed = failed or failure
                if isinstance(failed, ModelUnavailable):
                    failed.wait(failure.wait_seconds)
                if call.shown and on_restart is None:
                    break
        assert failed is not None
        if isinstance(failed, ModelUnavailable):
            self._reached = Health(State.FAILED, f"{failed.model}: {failed.why}")
        raise failed

    def _order(self, first: str | None) -> tuple[str, ...]:
        """The models in the order in which they are asked."""
        chosen = [name for name in self.names if name == first]
        return (*chosen, *(name for name in self.names if name not in chosen))

    async def close(self) -> None:
        """Let LiteLLM's connections go. Bounded; never raises."""
        if (litellm := ready_litellm()) is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await litellm.close_litellm_async_clients()
                # Closed clients must not be found again by a runtime that is opened later in this process.
                litellm.in_memory_llm_clients_cache.flush_cache()
        except Exception as error:  # noqa: BLE001 - the process is ending; nothing is lost
            log.info("model.close_failed", error=type(error).__name__)

    async def _tell_what_stands(self, call: Call, target: Target, standing: Standing) -> None:
        """Tell the model's provider, in its own way, which beginning of the prompt will come again."""
        name = target.litellm_id
        if await self._abilities.takes_marks(name):
            call.messages = marked(call.messages, standing)
        elif takes_key(name, own_server="api_base" in target.options or has_own_server()):
            call.options["prompt_cache_key"] = standing.key

    def _options(
        self,
        max_output_tokens: int | None,
        tools: Sequence[Mapping[str, Any]],
        response_format: Mapping[str, Any] | None,
        temperature: float | None,
    ) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_tokens": max_output_tokens or self._settings.llm_max_output_tokens,
            "timeout": self._settings.llm_timeout_seconds,
            "max_retries": 0,  # retrying is done here, once
            "num_retries": 0,
        }
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
            # Else LiteLLM looks for tools of MCP servers among them, for which it imports a client and a server of that
            # protocol: 0.45 s of processor before the first answer with tools, and 20 MB. There are none here.
            options["_skip_mcp_handler"] = True
        if response_format is not None:
            options["response_format"] = dict(response_format)
        if temperature is not None:
            options["temperature"] = temperature
        return options

    async def _target(self, name: str, purpose: str) -> Target:
        """How *name* is called. Raises `ModelUnavailable`, `ModelRefused`."""
        if name == EXTRACTIVE:
            if purpose not in ANSWERS:
                raise ModelRefused(f"{name} only quotes: {NEEDS_MODEL}", why="no_model", model=name)
            return Target(name, name, {}, local=True)
        if name != SMOLLM2:
            options = credentials(self._settings, name)
            if not served_by_ollama(name):
                return Target(name, name, options)
            # Where it is not told, Ollama cuts a longer prompt to a window of its own, and says nothing.
            window = await self._abilities.window(name)
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

    async def _attempts(self, call: Call, target: Target, purpose: str) -> Completion:
        """One model, asked until it answers or there is no use. Raises `ModelFailed`."""
        empty = 0
        began_ms = call.elapsed_ms()
        for attempt in range(1, self._settings.llm_max_attempts + 1):
            call.attempts += 1
            try:
                completion = await self._once(call, target)
                if completion.text.strip() or completion.tool_calls:
                    return completion
                empty += 1
                failure: ModelFailed = ModelUnavailable(
                    f"{target.shown_as}: answered nothing", why="empty", model=target.shown_as, retryable=True
                )
                last = attempt == self._settings.llm_max_attempts or empty >= EMPTY_ATTEMPTS
                asked_wait = None
            except _CallFailed as failed:
                failure, asked_wait = failed.failure, failed.retry_after_seconds
                last = attempt == self._settings.llm_max_attempts or not failure.retryable
            if last or (call.shown and call.on_restart is None) or (asked_wait or 0) > LONGEST_RETRY_AFTER_SECONDS:
                raise failure
            pause = max(asked_wait or 0.0, _backoff_seconds(attempt))
            spent = (call.elapsed_ms() - began_ms) / 1000
            if failure.no_connection and spent + pause > NO_CONNECTION_SECONDS:
                raise failure
            log.info(
                "model.retried", model=target.shown_as, why=failure.why, purpose=purpose, pause_ms=round(pause * 1000)
            )
            await _pause(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, call: Call, target: Target) -> Completion:
        """One attempt, in the time that a call may take. Raises `_CallFailed`."""
        await call.restart()
        seconds = self._settings.llm_timeout_seconds
        try:
            with call.uncounted():
                litellm = await loaded_litellm()
            async with asyncio.timeout(seconds):
                offered = call.options.get("tools", ())
                completion = await Exchange(litellm, target, seconds * STALL_FRACTION, offered).run(call)
        except Exception as error:  # noqa: BLE001 - LiteLLM's adapters let all kinds through; each gets its verdict
            if isinstance(error, CallerFailed):
                raise error.error from None
            # "from None": the provider's words may quote the prompt, and tracebacks are logged.
            setting = f"AGENT_RUNTIME_LLM_{'MODEL' if target.shown_as == self.name else 'FALLBACK_MODELS'}"
            failure = as_failure(error, target.shown_as, shown=call.shown, address=_address(target), setting=setting)
            raise _CallFailed(failure, retry_after_seconds(error)) from None
        return replace(completion, latency_ms=call.elapsed_ms(), attempts=call.attempts)


class _CallFailed(Exception):
    """An attempt failed: how, and how long the provider asked to be left alone."""

    def __init__(self, failure: ModelFailed, wait: float | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.retry_after_seconds = wait


def _address(target: Target) -> str | None:
    """Where *target* is asked, as people know it; empty for its provider's own address, None for a server that this
    process runs itself."""
    if target.shown_as in BUNDLED_MODELS:
        return None
    if not served_by_ollama(target.litellm_id):
        return str(target.options.get("api_base", ""))
    return str(target.options.get("api_base") or os.environ.get("OLLAMA_API_BASE") or OLLAMA_URL)


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _backoff_seconds(attempt: int) -> float:
    """Full jitter: anything up to a bound that doubles with each attempt."""
    return random.uniform(0, min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1)))  # noqa: S311
