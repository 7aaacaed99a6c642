"""Imports LiteLLM, once per process, and sets it up. Only this module and `runtime.llm.extractive` import it.

The import takes seconds, so it runs in a thread, and only when a model is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Loader:
    """Loads LiteLLM for the whole process. LiteLLM keeps its settings in its module, so there is one loader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.litellm: Any = None
        """LiteLLM, if it is imported and set up."""

    def load(self) -> Any:
        """Return LiteLLM. The first call takes seconds: make it in a thread."""
        with self._lock:
            if self.litellm is None:
                self.litellm = _import_litellm()
            return self.litellm

    @property
    def is_loading(self) -> bool:
        """Whether a thread of `run_in_daemon_thread` still runs."""
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        return bool(self.threads)

    async def run_in_daemon_thread(self, function: Callable[[], T]) -> T:
        """Return what *function* returns. It runs in a daemon thread, so a process that ends does not wait for it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def set_result(result: T) -> None:
            if not done.cancelled():
                done.set_result(result)

        def set_exception(error: BaseException) -> None:
            if not done.cancelled():
                done.set_exception(error)

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                    loop.call_soon_threadsafe(set_exception, error)
                else:
                    loop.call_soon_threadsafe(set_result, result)

        thread = threading.Thread(target=run, name="litellm", daemon=True)
        self.threads = [thread, *(other for other in self.threads if other.is_alive())]
        thread.start()
        return await done


process_loader = Loader()
"""The loader of this process."""


async def load_litellm() -> Any:
    """Return LiteLLM. The first call imports it in a thread."""
    if process_loader.litellm is not None:
        return process_loader.litellm
    return await process_loader.run_in_daemon_thread(process_loader.load)


def is_loading() -> bool:
    """Whether LiteLLM is being imported now.

    Then the process must end by `os._exit`. The interpreter's normal end stops the thread wherever it is, together with
    the locks of its imports, and waits forever if it needs one of these locks.
    """
    return process_loader.is_loading


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
    litellm.turn_off_message_logging = True
    litellm.drop_params = True  # a parameter that a provider does not know is left out and does not fail the call
    litellm.callbacks = []
    litellm.success_callback = []
    litellm.failure_callback = []
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its messages quote prompts and keys
    from runtime.llm.extractive import register

    register(litellm)
    asyncio.run(_warm_up(litellm))
    return litellm


async def _warm_up(litellm: Any) -> None:
    """Make a streamed call without a network and one that no server answers.

    The first calls import much. Made here, in the thread that imports LiteLLM, they do not stop the event loop.
    """
    call = {"model": "openai/none", "messages": [{"role": "user", "content": "."}], "api_key": "-", "max_retries": 0}
    async for _ in await litellm.acompletion(**call, mock_response=".", stream=True):
        pass
    with contextlib.suppress(Exception):
        tool = {"type": "function", "function": {"name": "none", "parameters": {"type": "object", "properties": {}}}}
        await litellm.acompletion(**call, api_base="http://127.0.0.1:1", tools=[tool])
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()  # its clients belong to this event loop
