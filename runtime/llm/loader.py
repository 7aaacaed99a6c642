"""Imports LiteLLM, once per process, and sets it up. Only this module imports it.

The import takes seconds, so it runs in a thread. `begin_loading` starts it early; the first `load_litellm` waits for
it. LiteLLM keeps its settings in its module, so all runtimes of a process share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


@functools.cache
def begin_loading() -> Future[Any]:
    """Import LiteLLM in a thread, and return its future. A repetition returns the same one."""
    executor = ThreadPoolExecutor(1, "litellm")
    try:
        return executor.submit(_import_litellm)
    finally:
        executor.shutdown(wait=False)


async def load_litellm() -> Any:
    """Return LiteLLM, set up."""
    loading = begin_loading()
    if loading.done():
        return loading.result()
    return await asyncio.shield(asyncio.wrap_future(loading))


def is_loaded() -> bool:
    """Whether LiteLLM is imported and set up."""
    return begin_loading.cache_info().currsize > 0 and begin_loading().done()


def warm_up(litellm: Any, model: str, *, offers_tools: bool) -> None:
    """Make calls of *model* that need no server. Takes about half a second: call it in a thread.

    The first calls import much. If they are made here, they do not stop the event loop.
    """
    asyncio.run(_make_calls(litellm, model, offers_tools))


async def _make_calls(litellm: Any, model: str, offers_tools: bool) -> None:
    call: dict[str, Any] = {"messages": [{"role": "user", "content": "."}], "api_key": "-", "max_retries": 0}
    if offers_tools:
        parameters = {"type": "object", "properties": {}}
        call["tools"] = [{"type": "function", "function": {"name": "none", "parameters": parameters}}]
    with contextlib.suppress(Exception):  # the first real call of a model that LiteLLM refuses says so
        async for _ in await litellm.acompletion(**call, model=model, mock_response=".", stream=True):
            pass
    # A client of its own: those that LiteLLM keeps may be in use by real calls, and belong to their event loop. Most
    # providers, and all local servers, speak OpenAI's protocol.
    async with litellm.AsyncOpenAI(api_key="-", base_url="http://127.0.0.1:1", max_retries=0) as client:
        with contextlib.suppress(Exception):  # no server answers there
            await litellm.acompletion(**call, model="openai/none", client=client)


def _import_litellm() -> Any:
    # The servers that this process starts are on loopback: a proxy that the environment names must not see their calls.
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "127.0.0.1" not in hosts and "*" not in hosts:
            os.environ[name] = ",".join([*hosts, "127.0.0.1"])
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import downloads a price list
    os.environ["DEFAULT_MAX_RETRIES"] = "0"  # embedding calls ignore a `max_retries` of 0
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # a parameter that a provider does not know is left out and does not fail the call
    litellm.callbacks = []
    litellm.success_callback = []
    litellm.failure_callback = []
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its messages quote prompts and keys
    return litellm
