"""Material given whole, and searched where it is too much: Python's own reference as it grows and shrinks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt import build_prompt
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply, offered, told

ACME = Scope("acme")
WINDOW = 64_000
LINE = int(0.7 * WINDOW)
ROOMY: dict[str, Any] = {
    "access_policy": "open",
    "llm_context_window_tokens": WINDOW,
}


async def attach(bot: Bot, scope: Scope, files: dict[str, str]) -> None:
    for path, text in files.items():
        await bot.runtime.materials.put(scope, path, text.encode())


async def size(bot: Bot) -> int:
    materials = bot.runtime.materials
    return materials.size(await materials.store.held(ACME)).tokens


async def until_indexed(bot: Bot, scope: Scope) -> None:
    async with asyncio.timeout(90):
        while await bot.runtime.materials.is_behind(scope):
            await asyncio.sleep(0.05)


async def test_material_is_given_whole_below_the_line_and_searched_above_it(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """It switches over by itself as it grows past 0.7 of the window, and back when it is well below it again."""
    files = {f"reference/{name}.rst": text for name, text in sorted(topics.items())}
    last = files.popitem()
    async with running_bot(model_settings(**ROOMY, llm_tools="always"), openai_server) as bot:
        await attach(bot, ACME, files)
        while await size(bot) >= LINE:
            path = max(files, key=lambda path: len(files[path]))
            await bot.runtime.materials.delete(ACME, path)
            del files[path]
        bot.model.will("It enters a context manager [reference/with.rst].")
        first = await bot.say("what does the with statement do?")
        assert first["sources"] == [{"source": "reference/with.rst", "heading": ""}]
        sent = bot.sent["system"]
        assert all(f"=== {path}\n" in sent for path in files)
        assert (bot.grounding["codex_mode"], bot.grounding["codex_why"]) == ("whole", "below_line")
        assert bot.grounding["tokens_codex"] == await size(bot)
        assert "search_codex" not in offered(bot.replies_asked[-1])

        await attach(bot, ACME, {last[0]: last[1], "reference/more.rst": "further words about yarn " * 4000})
        await until_indexed(bot, ACME)
        bot.model.will(Reply(tool_calls=(("search_codex", {"query": "context manager of the with statement"}),)), "So.")
        await bot.say("what does the with statement do?")
        assert (bot.grounding["codex_mode"], bot.grounding["codex_why"]) == ("search", "over_line")
        assert bot.grounding["tokens_codex"] == 0
        assert "=== " not in bot.replies_asked[-1]["messages"][0]["content"]
        assert "search_codex" in offered(bot.replies_asked[-1])
        [found] = told(bot.replies_asked[-1])
        assert "[reference/" in found
        assert "context manager" in found

        await bot.runtime.materials.delete(ACME, "reference/more.rst")
        while await size(bot) >= LINE:
            path = min(files, key=lambda path: len(files[path]))
            await bot.runtime.materials.delete(ACME, path)
            del files[path]
        await bot.say("and now?")
        assert (bot.grounding["codex_mode"], bot.grounding["codex_why"]) == ("search", "near_line")
        while await size(bot) >= 0.85 * LINE:
            await bot.runtime.materials.delete(ACME, files.popitem()[0])
        await bot.say("and now?")
        assert (bot.grounding["codex_mode"], bot.grounding["codex_why"]) == ("whole", "below_line")
        assert "=== reference/" in bot.sent["system"]

        kept = await bot.runtime.manifests.get(ACME, first["turn_id"])
        rebuilt = build_prompt(kept.context, bot.runtime.tokens)
        assert rebuilt.sha256 == kept.prompt_sha256
        assert rebuilt.system == sent
