"""What of LiteLLM and of OpenAI's client is left out of a call, because it costs and nothing of it is wanted here.

Neither has a setting for any of it (docs/decisions/0008). Each step takes the place of one function, and where they are
built in another way it does nothing: then calls only cost more, and a test says so. They are found by
their names, because only `runtime.loading` imports LiteLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from grounding.recent import RecentObjects

PROVIDERS_KNOWN = 64
"""Of so many addresses of providers that of their answers in a chat is remembered."""


def lighten(litellm: Any) -> None:
    """Have the calls of *litellm*, which was just imported, cost less. Once a process; raises nothing."""
    _leave_answers_as_they_are()
    _send_requests_as_they_are()
    _prepare_where_asked(litellm)
    _look_models_up_once()
    _leave_times_to_us()
    _hand_answers_on_as_they_came()
    _look_for_cookies_where_some_came()
    _let_answers_go()
    _put_addresses_together_once()
    _read_names_of_providers_at_once()


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


class _Nested(Exception):
    """An answer has parts that only the client's own objects know."""


class _Answered:
    """A chat answer as the provider's JSON has it, for LiteLLM, which asks for nothing but its keys and values."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self._keys = keys

    def model_dump(self) -> dict[str, Any]:
        return self._keys


def _hand_answers_on_as_they_came() -> None:
    """Have OpenAI's client not make an object of every whole chat answer, level by level, of which LiteLLM makes keys
    and values again at once. Only of answers in words: with calls of tools, sound or anything else that is nested
    it goes on making its own, which knows each form of these."""
    with contextlib.suppress(ImportError, AttributeError):
        base: Any = importlib.import_module("openai._base_client").AsyncAPIClient
        chat: Any = importlib.import_module("openai.types.chat")
        usages: Any = importlib.import_module("openai.types.completion_usage")
        kind = chat.ChatCompletion
        of_answer, of_message = _nothing_in(kind), _nothing_in(chat.ChatCompletionMessage)
        of_choice = _nothing_in(importlib.import_module("openai.types.chat.chat_completion").Choice)
        of_usage = _nothing_in(usages.CompletionUsage)
        of_details = {
            "completion_tokens_details": _nothing_in(usages.CompletionTokensDetails),
            "prompt_tokens_details": _nothing_in(usages.PromptTokensDetails),
        }
        process = base._process_response_data

        def plain(data: Any) -> dict[str, Any]:
            """*data* with the keys that the client's object would have. Raises `_Nested` where that has to be made."""
            answer = _single(data, of_answer, "choices", "usage")
            if not isinstance(answer["choices"], list):
                raise _Nested
            choices = [_single(choice, of_choice, "message") for choice in answer["choices"]]
            for choice in choices:
                choice["message"] = _single(choice["message"], of_message)
            answer["choices"] = choices
            if answer["usage"] is not None:
                answer["usage"] = usage = _single(answer["usage"], of_usage, *of_details)
                for name, of_detail in of_details.items():
                    if usage[name] is not None:
                        usage[name] = _single(usage[name], of_detail)
            return answer

        def processed(self: Any, *, data: object, cast_to: Any, response: Any) -> Any:
            if cast_to is kind and not self._strict_response_validation:
                with contextlib.suppress(_Nested):
                    return _Answered(plain(data))
            return process(self, data=data, cast_to=cast_to, response=response)

        base._process_response_data = processed


def _nothing_in(kind: Any) -> dict[str, None]:
    """What OpenAI's client tells of an object in which nothing was said."""
    return dict.fromkeys(kind.model_fields)


def _single(keys: Any, nothing: dict[str, None], *but: str) -> dict[str, Any]:
    """*keys* and those of *nothing* that are missing there. Raises `_Nested` where anything in them, but in those that
    are named, is no single value."""
    if not isinstance(keys, dict):
        raise _Nested
    if any(value and isinstance(value, dict | list) and name not in but for name, value in keys.items()):
        raise _Nested
    return {**nothing, **keys}


def _look_for_cookies_where_some_came() -> None:
    """Have httpx not make a request and a mail message of two other libraries for every answer, to find its cookies,
    where none were sent with it."""
    with contextlib.suppress(ImportError, AttributeError):
        cookies: Any = importlib.import_module("httpx").Cookies
        extract = cookies.extract_cookies

        def extracted(self: Any, response: Any) -> None:
            if "set-cookie" in response.headers or "set-cookie2" in response.headers:
                extract(self, response)

        cookies.extract_cookies = extracted


def _let_answers_go() -> None:
    """Have an answer of httpx that is closed be known no more to its own stream: the ring of the two, with both
    libraries' objects of the request on it, would be left to the garbage collector, which holds the event loop up."""
    with contextlib.suppress(ImportError, AttributeError):
        stream: Any = importlib.import_module("httpx._client").BoundAsyncStream
        close = stream.aclose

        async def closed(self: Any) -> None:
            if self._response is None:  # it was closed before
                await self._stream.aclose()
                return
            try:
                await close(self)
            finally:
                self._response = None

        stream.aclose = closed


def _put_addresses_together_once() -> None:
    """Have OpenAI's client not put the address of each request together from that of the provider and the path, in
    which each part is looked through for what cannot stand in an address: it is the same each time."""
    with contextlib.suppress(ImportError, AttributeError):
        base: Any = importlib.import_module("openai._base_client").AsyncAPIClient
        prepare = base._prepare_url
        known: RecentObjects[Any, Any] = RecentObjects(PROVIDERS_KNOWN)

        def prepared(self: Any, url: str) -> Any:
            if url != "/chat/completions":  # others may name one thing of many
                return prepare(self, url)
            return known.of(self.base_url, lambda _: prepare(self, url))

        base._prepare_url = prepared


class _Listed:
    """An enumeration of LiteLLM's as *named* by a module of it: gone through as a list is, else as it was."""

    def __init__(self, named: Any) -> None:
        self._named = named
        self._all = tuple(named)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __call__(self, value: object) -> Any:
        return self._named(value)

    def __instancecheck__(self, one: object) -> bool:
        return isinstance(one, self._named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._named, name)


def _read_names_of_providers_at_once() -> None:
    """Have the names of LiteLLM's providers read as the fields that they are. It reads all of them twice for each call,
    to know whether it knows one of them, and each by five calls of Python's `enum`."""
    with contextlib.suppress(ImportError, AttributeError):
        providers: Any = importlib.import_module("litellm.types.utils").LlmProviders
        listed = _Listed(providers)
        if all(one._value_ == one.value for one in listed):
            providers.value = property(attrgetter("_value_"))
        for name in ("litellm.main", "litellm.utils"):
            module: Any = importlib.import_module(name)
            if module.LlmProviders is providers:
                module.LlmProviders = listed
