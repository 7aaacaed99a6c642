"""What of LiteLLM and of OpenAI's client is left out of a call, because it costs and nothing of it is wanted here.

Neither has a setting for any of it (docs/decisions/0008). Each step takes the place of one function, and where they are
built in another way it does nothing: then calls only cost more, and a test says so. They are found by
their names, because only `runtime.loading` imports LiteLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import Any


def lighten(litellm: Any) -> None:
    """Have the calls of *litellm*, which was just imported, cost less. Once a process; raises nothing."""
    _leave_answers_as_they_are()
    _send_requests_as_they_are()
    _prepare_where_asked(litellm)
    _look_models_up_once()
    _leave_times_to_us()


def _leave_answers_as_they_are() -> None:
    """Have LiteLLM not describe every chat answer for the headers of its proxy: times, and a price that it works out
    and, where that is nothing, looks into once more. That is a quarter of what a call costs (docs/decisions/0008), and
    nobody reads it here: `runtime.exchange` prices answers itself. It has no setting for it. Where it is built in
    another way, calls only cost more; what is no chat answer is described as ever, because its price is read."""
    with contextlib.suppress(ImportError, AttributeError):
        utils: Any = importlib.import_module("litellm.utils")
        describe = utils.update_response_metadata

        def described(result: Any, logging_obj: Any, *args: Any, **options: Any) -> None:
            if getattr(logging_obj, "call_type", None) != "acompletion":
                describe(result, logging_obj, *args, **options)

        utils.update_response_metadata = described


def _send_requests_as_they_are() -> None:
    """Have OpenAI's client not hold every message and tool of a chat request against all forms that it may have: it
    looks for keys that are called otherwise in the request, and for files and times to be written as text. No form of
    chat has such keys, and what LiteLLM hands it is JSON already; it takes more of a call the more messages and tools
    there are (docs/decisions/0008). Where it is built in another way, calls only cost more."""
    with contextlib.suppress(ImportError, AttributeError):
        completions: Any = importlib.import_module("openai.resources.chat.completions.completions")
        is_given: Callable[[Any], bool] = importlib.import_module("openai._utils").is_given
        if not callable(completions.async_maybe_transform):
            return

        async def as_it_is(data: dict[str, Any], _expected: object) -> dict[str, Any]:
            return {name: value for name, value in data.items() if is_given(value)}

        completions.async_maybe_transform = as_it_is


class _Here:
    """*asyncio* as `litellm.main` is given it: what it puts into a thread is called at once where *may_be* says so."""

    def __init__(self, may_be: Callable[[Any], bool]) -> None:
        self._may_be = may_be

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_event_loop(self) -> Any:
        return _LoopHere(asyncio.get_running_loop(), self._may_be)


class _LoopHere:
    def __init__(self, loop: asyncio.AbstractEventLoop, may_be: Callable[[Any], bool]) -> None:
        self._loop = loop
        self._may_be = may_be

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def run_in_executor(self, executor: Any, call: Any, *args: Any) -> asyncio.Future[Any]:
        if executor is not None or args or not self._may_be(call):
            return self._loop.run_in_executor(executor, call, *args)
        called: asyncio.Future[Any] = self._loop.create_future()
        try:
            called.set_result(call())
        except Exception as error:  # noqa: BLE001 - it is raised where the call is awaited, as from a thread
            called.set_exception(error)
        return called


def _prepare_where_asked(litellm: Any) -> None:
    """Have LiteLLM prepare a request where it is asked for it, not in a thread that it waits for: two wake-ups and a
    fight for the interpreter. Only where OpenAI's client sends it: there the preparing looks at its arguments and makes
    a coroutine, while with other providers it may fetch tokens and ask servers, which takes its time."""
    with contextlib.suppress(ImportError, AttributeError):
        main: Any = importlib.import_module("litellm.main")
        prepare, known = main.completion, dict[tuple[Any, Any], bool]()

        def is_for_openai(model: Any, base: Any) -> bool:
            if (model, base) not in known:
                try:
                    known[model, base] = litellm.get_llm_provider(model, api_base=base)[1] == "openai"
                except Exception:  # noqa: BLE001 - LiteLLM will say what is wrong with such a model
                    return False
            return known[model, base]

        def may_be(call: Any) -> bool:
            asked: Any = next(iter(getattr(call, "args", ())), None)  # LiteLLM binds the call to a context of variables
            if getattr(asked, "func", None) is not prepare:
                return False
            given = asked.keywords
            return is_for_openai(given.get("model"), given.get("api_base") or given.get("base_url"))

        if main.asyncio is asyncio:
            main.asyncio = _Here(may_be)


def _look_models_up_once() -> None:
    """Have LiteLLM not look for a model of OpenAI's, or called like one, in all its lists at each call, to know whether
    it is asked by another interface: what it has not found it will not find."""
    with contextlib.suppress(ImportError, AttributeError):
        main: Any = importlib.import_module("litellm.main")
        look = main.get_model_info_helper
        missing: dict[str, str] = {}

        def looked(model: str, custom_llm_provider: str | None = None, **more: Any) -> Any:
            if custom_llm_provider != "openai" or more:
                return look(model=model, custom_llm_provider=custom_llm_provider, **more)
            if model in missing:
                raise LookupError(missing[model])
            try:
                return look(model=model, custom_llm_provider=custom_llm_provider)
            except Exception as error:
                missing[model] = str(error)
                raise

        main.get_model_info_helper = looked


def _leave_times_to_us() -> None:
    """Have LiteLLM not take the time of each request of OpenAI's client, and start a task that tells it nobody."""
    with contextlib.suppress(ImportError, AttributeError):
        client: Any = importlib.import_module("litellm.llms.openai.openai").OpenAIChatCompletion
        client.make_openai_chat_completion_request = client.make_openai_chat_completion_request.__wrapped__
