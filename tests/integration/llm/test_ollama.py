"""How much a model reads at once, where its server has to be told so: an Ollama server cuts what is longer than the
window that it was asked for, and says nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from runtime.llm import Model
from runtime.llm.capabilities import DEFAULT_WINDOW_TOKENS
from tests.conftest import MakeSettings
from tests.emulators.loopback import serving

MESSAGES = [{"role": "user", "content": "Who keeps the harbour?"}]
SAID = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": "Nadia."}}
DONE = {"done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 3}


class Ollama:
    """``/api/show`` of a model that was trained for *trained* tokens, and ``/api/chat``, in their documented forms."""

    def __init__(self, trained: int) -> None:
        self.url = ""
        self.trained = trained
        self.about: dict[str, Any] = {}
        """What else ``/api/show`` says."""
        self.has_model = True
        self.options: list[Any] = []

    async def show(self, request: web.Request) -> web.Response:
        if not self.has_model:
            return web.json_response({"error": "model 'm' not found"}, status=404)
        info = {"general.architecture": "llama", "llama.context_length": self.trained}
        return web.json_response({"model_info": info, **self.about})

    async def chat(self, request: web.Request) -> web.Response:
        self.options.append((await request.json())["options"])
        return web.json_response({**SAID, **DONE})


@asynccontextmanager
async def ollama(trained: int, port: int | None = 0) -> AsyncIterator[Ollama]:
    """It has an event loop of its own: after a call LiteLLM asks it about the model, and blocks our loop meanwhile."""
    server, ready, stop = Ollama(trained), threading.Event(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/api/show", server.show), web.post("/api/chat", server.chat)])
        async with serving(app, port or 0) as server.url:
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    await asyncio.to_thread(ready.wait)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join)


@pytest.mark.parametrize(
    ("trained", "set_to", "window"),
    [(131_072, None, DEFAULT_WINDOW_TOKENS), (2048, None, 2048), (131_072, 32_768, 32_768)],
)
async def test_ollama_reads_as_much_as_prompts_are_made_for(
    settings: MakeSettings, trained: int, set_to: int | None, window: int
) -> None:
    async with ollama(trained) as server:
        model = Model(settings(llm_model="ollama_chat/m", llm_api_base=server.url, llm_context_window_tokens=set_to))
        assert await model.window_tokens() == window
        answer = await model.complete(MESSAGES)
        assert (answer.text, answer.usage.cost_usd) == ("Nadia.", 0.0)
        assert [one["num_ctx"] for one in server.options] == [window]
        await model.close()


OLD, NEW = {"template": "{{ .Prompt }}"}, {"template": "{{ .Prompt }}", "capabilities": ["completion", "tools"]}


@pytest.mark.parametrize(
    ("about", "calls"),
    [
        (OLD, False),
        ({"template": "{{ if .Tools }}…{{ end }}"}, True),
        (NEW, True),
        ({"capabilities": ["completion"], "template": "no {{ .Tools }}"}, False),
    ],
)
async def test_the_server_that_is_set_says_whether_its_model_calls_functions(
    settings: MakeSettings, about: dict[str, Any], calls: bool
) -> None:
    async with ollama(2048) as server:
        server.about = about
        model = Model(settings(llm_model="ollama_chat/m", llm_api_base=server.url))
        assert await model.calls_tools() is calls
        await model.close()


async def test_a_server_that_starts_after_the_bot_still_says_what_its_model_can_do(settings: MakeSettings) -> None:
    async with ollama(2048) as former:
        pass
    model = Model(settings(llm_model="ollama_chat/m", llm_api_base=former.url))
    await model.warm()
    assert (await model.calls_tools(), await model.window_tokens()) == (False, DEFAULT_WINDOW_TOKENS)
    async with ollama(2048, urlsplit(former.url).port) as server:
        server.about = NEW
        assert (await model.calls_tools(), await model.window_tokens()) == (True, 2048)
        await model.close()


async def test_a_model_that_is_pulled_later_is_asked_about_again(settings: MakeSettings) -> None:
    async with ollama(2048) as server:
        server.about, server.has_model = NEW, False
        model = Model(settings(llm_model="ollama_chat/m", llm_api_base=server.url))
        assert await model.calls_tools() is False
        server.has_model = True
        assert await model.calls_tools() is True
        await model.close()
