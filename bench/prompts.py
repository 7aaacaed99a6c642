"""The prompts that the bot makes of conversations, played to it whole: real stores, pipeline and background work.

The model's answers are those of the conversations; of its other work, the context documents, it gets made-up ones. All
conversations are held in turn, a turn of each, as in a workspace where several talk at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from bench.chats import Chat, Scene
from config import load
from config.settings import Settings
from connectors.message import Scope
from grounding.memory.context_document import SECTIONS
from grounding.memory.global_context import Editor, EditOrigin
from grounding.prompt_input import ChatMessage, Layout, load_tokens
from tests.emulators import openai
from tests.emulators.bot import Bot, running_bot

SYSTEM_TOKENS = 700
KNOWN_LINES = 14
"""Of the global context, about 20 tokens each."""
SIZES: dict[str, Any] = {
    "llm_grounding_memory_summary_max_tokens": 400,
    "llm_grounding_memory_summary_refresh_turns": 3,
    "llm_grounding_chat_tail_max_tokens": 3000,
    "llm_grounding_chat_tail_lines": 400,
    "llm_grounding_chat_tail_bytes": 24_000,
    "llm_grounding_qmd_max_tokens": 1200,
    "llm_grounding_top_k": 5,
    "llm_grounding_max_doc_excerpt_bytes": 1800,
    "llm_grounding_max_prompt_tokens": 6000,
    "llm_grounding_max_prompt_bytes": 40_000,
    "llm_context_window_tokens": 32_768,
    "strategy_vocabulary": False,
    "records_extraction": False,
    "rate_limit_messages": 1_000_000,
    "access_policy": "open",
    "llm_timeout_seconds": 60.0,
}
"""Budgets of the blocks: summary 400 tokens, tail up to 3,000, passages 1,200. Cues alone decide
what is retrieved, so that how often that happens is known. The context document is made anew so often that it tells of
what leaves the tail when the tail is compacted."""
RULES_TOKENS = 140
"""Of the rules below, about."""
_RULES = (
    "Say in one sentence what was asked before you answer it, where the question has several parts.",
    "Give figures with their unit and the day on which they were measured, and say who measured them.",
    "Where two sources say different things, name both of them and what would decide between them.",
    "Keep to the harbour's own names for places and machines, and do not translate them.",
    "Offer a next step only where somebody could take it today, with what is there already.",
    "A warning comes first, before everything else, and says what could happen and to whom.",
    "What is not known is said to be not known, with whoever could know it, if there is one.",
)


@dataclass(frozen=True)
class Sent:
    """One prompt as the model was sent it."""

    chat: str
    turn: int
    messages: list[ChatMessage]
    retrieved: bool
    blocks: dict[str, int]
    """Tokens by block, as the runtime counts them."""


def sizes(tail: int) -> dict[str, Any]:
    """`SIZES` with a tail that may grow to so many tokens, and the ceilings of all blocks with it."""
    prompt = 3000 + tail
    return {
        **SIZES,
        "llm_grounding_chat_tail_max_tokens": tail,
        "llm_grounding_chat_tail_bytes": 8 * tail,
        "llm_grounding_max_prompt_tokens": prompt,
        "llm_grounding_max_prompt_bytes": 40_000 + 8 * tail,
        "context_max_tokens": max(8000, prompt),
    }


async def played(scene: Scene, layout: Layout, tail: int = 3000) -> list[Sent]:
    """The prompts of all turns of *scene*, in the order in which they were sent. The tail may grow to *tail* tokens."""
    with tempfile.TemporaryDirectory(prefix="ar-bench-") as folder:
        async with openai.serving() as model:
            settings = _settings(Path(folder), model.base_url, layout, tail)
            async with running_bot(settings, model, documents=scene.documents) as bot:
                await _furnish(bot)
                writer = _Writer(model)
                return [await _turn(bot, writer, chat, number) for chat, number in in_turn(scene.chats)]


def in_turn(chats: Sequence[Chat]) -> Iterator[tuple[Chat, int]]:
    """All turns, by number: the first of each of *chats*, the second of each, and so on."""
    for number in range(max(len(chat.turns) for chat in chats)):
        for chat in chats:
            if number < len(chat.turns):
                yield chat, number


def _settings(folder: Path, base_url: str, layout: Layout, tail: int) -> Settings:
    fields: dict[str, Any] = {
        **sizes(tail),
        "data_dir": folder,
        "llm_model": "openai/bench",
        "llm_api_base": base_url,
        "llm_api_key": SecretStr("key"),
        "llm_grounding_layout": layout,
    }
    return load({}).settings.model_copy(update=fields)


async def _furnish(bot: Bot) -> None:
    """Give the workspace rules of `SYSTEM_TOKENS` and `KNOWN_LINES` lines that are always known."""
    tokens, scope = load_tokens(), Scope("acme")
    await bot.say("Is anybody there?", context="before")
    baseline = bot.grounding["tokens_identity"]
    rules: list[str] = []
    while baseline + tokens.count("\n".join(rules)) < SYSTEM_TOKENS:
        rules.append(f"{len(rules) + 1}. {_RULES[len(rules) % len(_RULES)]}")
    soul = bot.runtime.settings.data_dir / "workspaces" / "acme" / "context" / "SOUL.md"
    soul.parent.mkdir(parents=True, exist_ok=True)
    soul.write_text("\n".join(rules), encoding="utf-8")
    await bot.runtime.publisher.import_workspace(scope)
    for number in range(KNOWN_LINES):
        line = f"The pilot of watch {number} is called on channel {number + 3} and answers until {number + 8} o'clock."
        await bot.runtime.global_contexts.append(Editor(scope, "api"), line, EditOrigin("bench"))
    await bot.settle()


async def _turn(bot: Bot, writer: _Writer, chat: Chat, number: int) -> Sent:
    said = chat.turns[number]
    writer.reply = said.answered
    await bot.say(said.asked, context=chat.name)
    event, messages = bot.grounding, bot.replies_asked[-1]["messages"]
    await bot.settle()
    blocks = {name.removeprefix("tokens_"): count for name, count in event.items() if name.startswith("tokens_")}
    bot.model.requests.clear()
    return Sent(chat.name, number, messages, bool(event["used_qmd"]), blocks)


class _Writer:
    """Answers for the model: turns as their conversations go on, context documents of about 400 tokens."""

    def __init__(self, model: openai.FakeOpenAI) -> None:
        self.reply = ""
        self._documents = 0
        model.answer = self._answer

    def _answer(self, body: dict[str, Any]) -> str:
        if not openai.in_background(body):
            return self.reply
        self._documents += 1
        items = "\n".join(
            f"- The watch of day {n + self._documents} found nothing that has to be done at once, wrote it down, and "
            "went to look after the lamps of the outer mole."
            for n in range(2)
        )
        return "\n\n".join(f"## {section}\n\n{items}" for section in SECTIONS)


def replayed(chats: Sequence[Chat]) -> list[Sent]:
    """The same conversations with all that was said before in each prompt, word for word, and nothing looked up."""
    system, found = "\n".join(_RULES * (SYSTEM_TOKENS // RULES_TOKENS)), []
    for chat, number in in_turn(chats):
        messages: list[ChatMessage] = [{"role": "system", "content": system}]
        for said in chat.turns[:number]:
            messages.append({"role": "user", "content": said.asked})
            messages.append({"role": "assistant", "content": said.answered})
        messages.append({"role": "user", "content": chat.turns[number].asked})
        found.append(Sent(chat.name, number, messages, retrieved=False, blocks={}))
    return found
