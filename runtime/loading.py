"""LiteLLM, imported late and in a thread, and set up. With `runtime.extractive_provider` the only module to import it.

The import takes seconds. Its thread is a daemon, so that a process that ends meanwhile need not wait for it; how such a
process has to end, `is_loading` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

_loading = threading.Lock()
_ready: Any = None
"""LiteLLM, once it is imported and set up."""
_threads: list[threading.Thread] = []
"""Those that load something, and have not been seen to end."""
_IMPORTED_BY_CALLS = (
    "anyio._backends._asyncio",
    "litellm._service_logger",
    "litellm.integrations.prometheus_services",
    "litellm.litellm_core_utils.default_encoding",
    "litellm.llms.openai.openai",
    "litellm.types.litellm_core_utils.streaming_chunk_builder_utils",
    "openai.resources.chat.completions",
    "openai.resources.beta",
    "openai.resources.embeddings",
    "openai.resources.responses",
)


def load_litellm() -> Any:
    """LiteLLM, imported and silenced. Takes seconds the first time: call it in a thread."""
    global _ready
    with _loading:
        if _ready is not None:
            return _ready
        # A proxy that the environment names is not for our own children on loopback.
        for name in ("NO_PROXY", "no_proxy"):
            hosts = [host for host in os.environ.get(name, "").split(",") if host]
            if "127.0.0.1" not in hosts and "*" not in hosts:
                os.environ[name] = ",".join([*hosts, "127.0.0.1"])
        # Without it the import asks the network for a price list.
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        import litellm

        litellm.telemetry = False
        litellm.suppress_debug_info = True
        litellm.turn_off_message_logging = True
        litellm.drop_params = True  # what a provider does not know is left out, instead of failing the call
        setattr(litellm, "DEFAULT_MAX_RETRIES", 0)  # noqa: B010 - for embeddings it takes a given 0 for "not given"
        litellm.callbacks = []
        litellm.success_callback = []
        litellm.failure_callback = []
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
            # Its messages quote prompts and keys.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        from runtime.extractive_provider import register

        register(litellm)
        _import_what_calls_import(litellm)
        _ready = litellm
        return litellm


def ready_litellm() -> Any:
    """LiteLLM where it is imported and set up; None where it is not, or not yet."""
    return _ready


async def loaded_litellm() -> Any:
    """LiteLLM for the calls of this task, imported in a thread where it was not yet.

    Its calls count as inner ones: for those it makes no payload for logging callbacks, and there are none.
    """
    litellm = _ready if _ready is not None else await beside_the_process(load_litellm)
    with contextlib.suppress(ImportError):
        from litellm._internal_context import is_internal_call

        is_internal_call.set(True)
    return litellm


async def import_what_failures_import() -> None:
    """Have LiteLLM's first failing call not import FastAPI in the event loop (0.15 s): it asks of each error whether it
    is one of its proxy's."""
    with contextlib.suppress(ImportError):
        await beside_the_process(lambda: importlib.import_module("fastapi"))


def is_loading() -> bool:
    """Whether something is being loaded now.

    Then the process must end without taking the interpreter apart: that stops the thread wherever it is, with the locks
    of its imports and of the linker, and waits for these for ever as soon as it comes to need one.
    """
    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    return bool(_threads)


async def beside_the_process(load: Callable[[], Any]) -> Any:
    """What *load* returns, called in a thread that nobody waits for when the process ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = load()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the result is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(tell, result, error)

    is_loading()  # those that have ended are forgotten
    thread = threading.Thread(target=run, name="litellm", daemon=True)
    _threads.append(thread)
    thread.start()
    return await done


def _import_what_calls_import(litellm: Any) -> None:
    """Have LiteLLM import now, in this thread, what its first call would import in the event loop (0.6 s)."""
    for module in _IMPORTED_BY_CALLS:
        with contextlib.suppress(ImportError):  # then the call itself will say what it misses
            importlib.import_module(module)
    litellm.completion(model="openai/none", messages=[{"role": "user", "content": "."}], mock_response=".", api_key="-")
