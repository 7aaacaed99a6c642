"""``eval memory``: the run. Conversations go through the transcript and the recall index of a folder of their own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding import assemble
from grounding.budgets import Budgets
from grounding.continuing import Continuing
from grounding.documents.conversation_set import Asked, Conversation, Said
from grounding.documents.embedding import Embedder
from grounding.documents.index import PassageIndex
from grounding.documents.relevance import TurnFloor
from grounding.documents.turns import Turns
from grounding.evaluate_memory import MEMORY_TOKENS, Recalled
from grounding.pipeline import Pipeline
from grounding.run_context import DegradedBlock, Passage, Query, RecalledTurn, RunContext
from grounding.sessions.freezing import Freezing
from grounding.strategy import Choice, Strategy
from grounding.tokens import Tokens, load_tokens
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from runtime.after_turn import RememberTurns
from runtime.cli.evaluation.running import embedder_of, trial_index
from runtime.cli.output import StatusLine
from runtime.jobs import Job
from runtime.stores import open_redis
from runtime.wiring.kept import Kept, wire_kept

ASSISTANT = "assistant"
RANKED_TURNS = 60
"""How deep the ranking is looked at; of long messages several parts are found."""
TURNS_TOGETHER = 32
WINDOW_TOKENS = 32_768
"""A window that bounds nothing here: the memory's own budget is what is measured."""
ASKING = Choice(Strategy.TAIL, "chat_memory_cue", wants_history=True)
"""Questions of such sets ask about the conversation, whether or not they say so."""
_NO_FLOOR = TurnFloor(float("-inf"), float("-inf"))


async def run_memory(
    settings: Settings, conversations: Sequence[Conversation], folder: Path, status: StatusLine
) -> list[Recalled]:
    """What is recalled for each question, with the settings in force but for where things are kept: under *folder*.

    Raises `runtime.cli.evaluation.running.NoLocalIndex`, `runtime.embedded.child.ChildFailed`, `IndexUnavailable`,
    `EmbedderUnavailable` and `StoreUnavailable`.
    """
    own = settings.model_copy(update={"data_dir": folder, "redis_url": None, "qdrant_url": None})
    status.show("loading the embedding model …")
    embedder = await embedder_of(own)
    tokens = load_tokens()
    async with _index(own, embedder, folder / "qdrant") as index, open_redis(own) as store:
        memory = _Memory(own, wire_kept(own, store, tokens), index, embedder, tokens)
        for number, conversation in enumerate(conversations, start=1):
            status.show(f"remembering {conversation.name}, {number}/{len(conversations)} …")
            await memory.live_through(_key(number), conversation)
        await embedder.embed_query("warm up")
        total = sum(len(conversation.asked) for conversation in conversations)
        answers: list[Recalled] = []
        for number, conversation in enumerate(conversations, start=1):
            elsewhere = _key(number % len(conversations) + 1)
            for asked in conversation.asked:
                answers.append(await memory.ask(_key(number), conversation, asked, elsewhere))
                status.show(f"asking {len(answers):,}/{total:,} questions …")
        return answers


@asynccontextmanager
async def _index(settings: Settings, embedder: Embedder, folder: Path) -> AsyncIterator[PassageIndex]:
    index = trial_index(settings, embedder, folder)
    try:
        await index.ensure()
        yield index
    finally:
        await index.close()


def _key(number: int) -> ConversationKey:
    return ConversationKey("eval", "console", f"conversation-{number}")


def _turn_id(number: int) -> str:
    return f"t{number:08d}"


def _entry(said: Said, turn_id: str) -> Entry:
    role = EntryRole.OUTBOUND if said.speaker == ASSISTANT else EntryRole.INBOUND
    return Entry(role, said.text, turn_id, said.at.isoformat(), author=said.speaker)


class _NoDocuments:
    """A workspace without documents."""

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        lost: list[DegradedBlock],
        earlier: Sequence[str],
    ) -> Sequence[Passage]:
        return []


@dataclass(frozen=True)
class _Told:
    """The block of earlier turns of one prompt."""

    text: str
    tokens: int
    turns: int
    took_ms: float


class _Memory:
    """Has conversations, and is asked about them later: each message was a turn of its own, and a new session has begun
    since, so that nothing of them is in the tail."""

    def __init__(self, settings: Settings, kept: Kept, index: PassageIndex, embedder: Embedder, tokens: Tokens) -> None:
        self._transcript: Transcript = kept.transcript
        self._turns = Turns(index, embedder)
        self._ranking = Turns(index, embedder, floor=_NO_FLOOR)
        self._remember = RememberTurns(kept.transcript, self._turns)
        self._pipeline = Pipeline(
            kept.transcript,
            Continuing(kept.contexts, Freezing(tokens, settings.llm_grounding_layout)),
            kept.global_contexts,
            _NoDocuments(),
            self._turns,
            timeout_seconds=60.0,
        )
        self._tokens = tokens
        self._budgets = Budgets.from_settings(settings, WINDOW_TOKENS).model_copy(
            update={"records_tokens": MEMORY_TOKENS, "prompt_tokens": WINDOW_TOKENS, "prompt_bytes": WINDOW_TOKENS}
        )

    async def live_through(self, key: ConversationKey, conversation: Conversation) -> None:
        """Say everything that was said, remember it, and begin a new session."""
        for start in range(0, len(conversation.said), TURNS_TOGETHER):
            turns = list(enumerate(conversation.said[start : start + TURNS_TOGETHER], start=start))
            for number, said in turns:
                await self._transcript.append(key, _turn_id(number), [_entry(said, _turn_id(number))])
            await self._remember([Job("turn.remember", key, _turn_id(number)) for number, _ in turns])
        await self._transcript.begin_session(key)

    async def ask(
        self, key: ConversationKey, conversation: Conversation, asked: Asked, elsewhere: ConversationKey
    ) -> Recalled:
        """What is recalled of *conversation* (*key*) for what is *asked*, and what *elsewhere*."""
        told = await self._told(key, asked)
        other = await self._told(elsewhere, asked) if elsewhere != key else _Told("", 0, 0, 0.0)
        found = await self._ranking.recall(key.scope, asked.text, RANKED_TURNS)
        names = {_turn_id(number): said.id for number, said in enumerate(conversation.said)}
        ranked = tuple(dict.fromkeys(names[one.turn_id] for one in found))
        return Recalled(asked, ranked, told.text, told.tokens, told.turns, told.took_ms, other.turns, other.tokens)

    async def _told(self, key: ConversationKey, asked: Asked) -> _Told:
        began = time.perf_counter()
        grounds = await self._pipeline.ground(key, asked.text, ASKING, self._budgets)
        took = (time.perf_counter() - began) * 1000
        prompt = assemble.prompt(self._context(key, asked, grounds.recalled), self._tokens)
        block = next(block for block in prompt.blocks if block.name == "records")
        return _Told(block.text, block.tokens, len({one.turn_id for one in grounds.recalled}), took)

    def _context(self, key: ConversationKey, asked: Asked, recalled: tuple[RecalledTurn, ...]) -> RunContext:
        return RunContext(
            turn_id="asked",
            workspace_id=key.workspace_id,
            context_id=key.context_id,
            connector=key.connector,
            external_id=key.external_id,
            direct=True,
            authors=(),
            identity="",
            query=Query(text=asked.text),
            strategy=ASKING.strategy.value,
            reason=ASKING.reason,
            small_talk=False,
            wants_history=True,
            wants_documents=False,
            recalled=recalled,
            budgets=self._budgets,
        )
