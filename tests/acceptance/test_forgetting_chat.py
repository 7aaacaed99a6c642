"""What is forgotten stands nowhere any more: not in a store, not in the index, not in a file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from config.settings import Settings
from connectors.message import Scope
from grounding.memory.records import NewRecord, Provenance, Type
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from tests.emulators.bot import Bot, running_bot
from tests.emulators.hiding import places_of
from tests.emulators.openai import FakeOpenAI

SAID, KEPT = "quizzaciously", "flibbertigibbet"
"""Words that nothing else says: one in messages, and what came of them, one in records alone."""
LENA = Scope("acme", audience="http:u1")
DM: dict[str, Any] = {"context": "dm", "direct": True}


async def where(bot: Bot, word: str) -> set[str]:
    """The process of the index has its folder open: a copy is looked at, as the next start would find it."""
    identity, data_dir = (await bot.runtime.knowledge.ready()).identity, bot.runtime.settings.data_dir
    with TemporaryDirectory() as folder:
        copy = await asyncio.to_thread(shutil.copytree, data_dir / "qdrant", Path(folder) / "qdrant")
        index = EmbeddedIndex(copy, identity.model, identity.dimensions, timeout_seconds=30)
        assert await index.exists()
        try:
            return await places_of(word, bot.runtime.store.client, index, data_dir)
        finally:
            await index.close()


async def keep_records(bot: Bot) -> None:
    for type_ in (Type.FACT, Type.EPISODE, Type.ITEM):
        new = NewRecord(type=type_, text=f"The {type_} of the harbour is {KEPT}")
        await bot.runtime.records.add(LENA, new, Provenance())
    censor = NewRecord(type=Type.CENSOR, text=f"Never say {KEPT}", trigger=f"x{KEPT}", severity="warn")
    await bot.runtime.records.add(LENA, censor, Provenance())


async def test_a_word_that_is_forgotten_stands_nowhere_any_more(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Records leave the manifests of turns that were shown them; what was said itself stays until that is forgotten."""
    settings = model_settings(
        access_policy="open", records_extraction=True, records_extraction_turns=2, llm_context_window_tokens=32_000,
        llm_grounding_memory_summary_refresh_turns=2,
    )  # fmt: skip
    async with running_bot(settings, openai_server) as bot:
        await keep_records(bot)
        for text in (f"Always answer {SAID}", f"My boat is called {SAID}, what of the harbour?", "and its episode?"):
            answer = await bot.say(text, **DM)
            await bot.settle()
        await bot.say("/good", **DM)
        kept, said = await where(bot, KEPT), await where(bot, SAID)
        shown = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])

        await bot.runtime.records.forget(LENA)
        await bot.settle()
        left = await where(bot, KEPT)
        cut = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])
        still = await where(bot, SAID)

        await bot.say("/forget all", **DM)
        await bot.settle()

        assert {name.split(":")[1] for name in kept} == {"manifests", "records"}
        assert left == set()
        assert (shown.cut, shown.context.censors != ()) == (0, True)
        assert (cut.cut, cut.context.records, cut.context.censors) == (
            len(shown.context.records) + len(shown.context.censors), (), (),
        )  # fmt: skip
        assert {name.split()[0] for name in said} == {"redis", "index", "file"}
        assert "redis ar:records:{w.acme}:kept:http%3Au1" in said - still
        assert await where(bot, SAID) == set()
