"""Blocks that other distributions put into prompts: what the model is told, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt import source_tree
from runtime.formatters import Installed
from runtime.http.doctor import run_checks
from runtime.process import bootstrap
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI


async def test_the_source_tree_of_a_session_stays_as_it_was_and_the_turn_is_built_again_without_it(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = tmp_path / "checkout"
    tree.mkdir()
    (tree / "app.py").write_text("x" * 12, encoding="utf-8")
    settings = model_settings(access_policy="open", source_trees={"acme": tree}, formatter_timeout_seconds=60)

    def installed(settings: Settings) -> tuple[Installed, ...]:
        made: Any = source_tree.formatter(settings)
        return (Installed(made, "agent-runtime 0.1.0"),)

    monkeypatch.setattr(bootstrap, "load_formatters", installed)
    async with running_bot(settings, openai_server) as bot:
        turn = (await bot.say("which file is there?"))["turn_id"]
        assert bot.sent["system"].count(f"{source_tree.HEAD}\napp.py 12") == 1
        (tree / "new.py").write_text("", encoding="utf-8")
        await bot.say("and now?")
        assert "new.py" not in bot.sent["system"]
        await bot.say("and here?", context="elsewhere")
        assert "new.py 0" in bot.sent["system"]
        await bot.runtime.workspaces.create("other")
        await bot.say("and there?", workspace="other")
        assert "app.py" not in bot.sent["system"]
        checks = {check.name: check.detail for check in await run_checks(bot.runtime)}
        assert checks["formatters"] == "source_tree (agent-runtime 0.1.0)"
        kept = (await bot.runtime.manifests.get(Scope("acme"), turn)).context
        (tree / "app.py").unlink()
        rebuilt = (await bot.runtime.prompting.rebuild(kept)).prompt
        block = rebuilt.block("source_tree")
        assert block is not None
        assert (block.why, block.budget) == ("agent-runtime 0.1.0", 1500)
        first = bot.replies_asked[0]["messages"]
        assert [one["content"] for one in rebuilt.messages] == [one["content"] for one in first]
