"""The runs of ``agent-runtime eval``: retrieval, memory and strategy, with the settings in force.

Each run has an index (and for memory a store) of its own in a temporary folder, so that the workspace's data is left
alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from config.settings import Settings
from connectors.message import AgentRuntimeError, ConversationKey, Scope
from connectors.redis_calls import RoundTrip
from grounding.evaluation import (
    MEMORY_TOKENS,
    Conversation,
    ConversationMessage,
    ConversationQuestion,
    Evaluation,
    MemoryAnswer,
    Message,
    QuestionSet,
    SearchedDocuments,
    StrategyScores,
    evaluate_retrieval,
    evaluate_strategy,
    fill,
    load_documents,
)
from grounding.memory.context_document import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.memory.records import Record, RecordIndex, Records, RecordStore, Type, Window
from grounding.memory.records import found_in as records_in
from grounding.memory.selection import (
    LastSelections,
    Level,
    RecordSelector,
    RuleSelector,
    as_selected,
    floor_for,
)
from grounding.pipeline import Decision, Pipeline, StrategyChooser
from grounding.prompt import PrefixPolicy, SessionContinuity, build_prompt, passages_room, record_line
from grounding.prompt_input import (
    Block,
    DegradedBlock,
    Passage,
    PromptLimits,
    Query,
    RecalledTurn,
    RunContext,
    SelectedRecord,
    Tokens,
    load_tokens,
)
from grounding.retrieval import (
    DeepEmbedder,
    Embedder,
    Found,
    PassageIndex,
    PassageRoom,
    Reranker,
    Search,
    TurnFloor,
    TurnIndex,
)
from grounding.strategy import Choice, Cues, Strategy
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.background import RememberTurns
from runtime.cli.progress import StatusLine, status_line
from runtime.coordination import Job
from runtime.llm import EMBEDDING_SECONDS, LiteLLMReranker, open_embedder
from runtime.stores import RedisStore, open_redis


class NoLocalIndex(AgentRuntimeError):
    """The embedded index, in which questions are scored, is not installed."""


@contextmanager
def evaluation_folder() -> Iterator[tuple[Path, StatusLine]]:
    """Yield a temporary folder and a status line for one run."""
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as folder,
    ):
        yield Path(folder), status


def evaluation_index(
    settings: Settings, embedder: Embedder, folder: Path, deep_dimensions: int | None = None
) -> PassageIndex:
    """Return an empty embedded index in *folder*. Raises `NoLocalIndex`."""
    try:
        from grounding.retrieval.qdrant_edge import EmbeddedIndex
    except ImportError as error:
        raise NoLocalIndex(
            "questions are scored in an embedded index, so that yours is left alone: install agent-runtime[local]"
        ) from error
    return EmbeddedIndex(
        folder,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=settings.qdrant_timeout_seconds,
        deep_dimensions=deep_dimensions,
    )


@asynccontextmanager
async def _open_index(
    settings: Settings, embedder: Embedder, folder: Path, deep: DeepEmbedder | None = None
) -> AsyncIterator[PassageIndex]:
    index = evaluation_index(settings, embedder, folder, deep.dimensions if deep else None)
    try:
        await index.ensure()
        yield index
    finally:
        await index.close()


# ---- Retrieval ----


async def run_retrieval(settings: Settings, questions: QuestionSet, folder: Path, status: StatusLine) -> Evaluation:
    """Score *questions* in an index in *folder*. Raises `NoLocalIndex`, and what `evaluate` raises."""
    status.show("loading the embedding model …")
    embedder = await open_embedder(settings)
    tokens = await asyncio.to_thread(load_tokens)
    deep = _deep_embedder(settings)
    reranker: Reranker | None = None if settings.rerank_model is None else LiteLLMReranker(settings)

    def show(phase: str, done: int, total: int) -> None:
        status.show(f"{'indexing' if phase == 'documents' else 'asking'} {done:,}/{total:,} {phase} …")

    return await evaluate_retrieval(
        questions,
        embedder,
        tokens.count,
        lambda: evaluation_index(settings, embedder, folder, deep.dimensions if deep else None),
        reranker=reranker,
        deep=deep,
        room=_room(settings),
        progress=show,
    )


def _room(settings: Settings) -> PassageRoom:
    limits = PromptLimits.from_settings(settings, WINDOW_TOKENS)
    return PassageRoom(limits.top_k, limits.excerpt_bytes, passages_room(limits.retrieved_tokens))


def _deep_embedder(settings: Settings) -> DeepEmbedder | None:
    """Return the larger embedding model of *settings*, in this process, or None if they have none."""
    from runtime.search import deepening_unavailable_reason as why_not

    if why_not(settings):
        return None
    from grounding.retrieval import MiniLMEmbedder

    return MiniLMEmbedder(only_english=True)


# ---- Memory ----

ASSISTANT = "assistant"
RANKED_TURNS = 60
"""How many turns of the ranking are scored. Of long messages several parts are found."""
BATCH_TURNS = 32
WINDOW_TOKENS = 32_768
"""A window that limits nothing here: the memory's own budget is measured."""
ASKING = Choice(Strategy.TAIL, "chat_memory_cue", wants_history=True)
"""The questions of such sets are about the conversation, whether or not they say so."""
_NO_FLOOR = TurnFloor(float("-inf"), float("-inf"))


async def run_memory(
    settings: Settings, conversations: Sequence[Conversation], folder: Path, status: StatusLine
) -> list[MemoryAnswer]:
    """Recall turns for each question, with an index and a store in *folder*.

    Raises `NoLocalIndex`, `ChildFailed`, `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
    """
    settings = settings.model_copy(update={"data_dir": folder, "redis_url": None, "qdrant_url": None})
    status.show("loading the embedding model …")
    embedder, deep = await open_embedder(settings), _deep_embedder(settings)
    tokens = load_tokens()
    async with _open_index(settings, embedder, folder / "qdrant", deep) as index, open_redis(settings) as store:
        trial = _MemoryTrial(settings, store, index, embedder, deep, tokens)
        for number, conversation in enumerate(conversations, start=1):
            status.show(f"remembering {conversation.name}, {number}/{len(conversations)} …")
            await trial.replay(_key(number), conversation)
        await embedder.embed_query("warm up")
        total = sum(len(conversation.asked) for conversation in conversations)
        answers: list[MemoryAnswer] = []
        for number, conversation in enumerate(conversations, start=1):
            other_key = _key(number % len(conversations) + 1)
            for question in conversation.asked:
                answers.append(await trial.ask(_key(number), conversation, question, other_key))
                status.show(f"asking {len(answers):,}/{total:,} questions …")
        return answers


def _key(number: int) -> ConversationKey:
    return ConversationKey("eval", "console", f"conversation-{number}")


def _turn_id(number: int) -> str:
    return f"t{number:08d}"


def _entry(message: ConversationMessage, turn_id: str) -> TranscriptEntry:
    role = EntryRole.OUTBOUND if message.speaker == ASSISTANT else EntryRole.INBOUND
    return TranscriptEntry(role, message.text, turn_id, message.at.isoformat(), author=message.speaker)


class _NoDocuments:
    """A workspace without documents."""

    async def awake(self, scope: Scope) -> None:
        return

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        return Found(query)

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        return []


@dataclass(frozen=True)
class _RecallBlock:
    """The block of standing rules and earlier turns of one prompt."""

    text: str
    tokens: int
    turns: int
    took_ms: float


class _MemoryTrial:
    """Replays conversations and asks about them.

    Each message becomes a turn of its own. Patterns find standing rules in it. A conversation with only one person is
    that person's direct messages. A new session begins before the questions, so that no message is in the tail.
    """

    def __init__(
        self,
        settings: Settings,
        store: RedisStore,
        index: PassageIndex,
        embedder: Embedder,
        deep: DeepEmbedder | None,
        tokens: Tokens,
    ) -> None:
        self._redis = store.client
        self._transcript = Transcript(store.client)
        self._ranking = TurnIndex(index, embedder, floor=_NO_FLOOR, deep=deep)
        self._turns = turns = TurnIndex(index, embedder, deep=deep)
        self._remember = RememberTurns(self._transcript, turns)
        records = RecordStore(store.client)
        self._records = Records(records, tokens, RecordIndex(index, embedder, records, deep=deep))

        def costs(record: Record, level: Level) -> int:
            return tokens.count(record_line(as_selected(record, level), with_id=False)) + 1

        selections = LastSelections(store.client, settings.session_idle_seconds)
        self._pipeline = Pipeline(
            self._transcript,
            SessionContinuity(ContextDocuments(store.client), PrefixPolicy(tokens, settings.llm_grounding_layout)),
            GlobalContexts(
                store.client,
                tokens,
                max_tokens=settings.global_context_max_tokens,
                idle_seconds=settings.session_idle_seconds,
            ),
            _NoDocuments(),
            turns,
            timeout_seconds=60.0,
            selector=RecordSelector(self._records, selections, costs=costs, floor=lambda _: floor_for(embedder.name)),
            rules=RuleSelector(self._records, costs=costs, model=lambda _: embedder.name),
        )
        self._people: dict[ConversationKey, str] = {}
        self._tokens = tokens
        self._budgets = PromptLimits.from_settings(settings, WINDOW_TOKENS).model_copy(
            update={"records_tokens": MEMORY_TOKENS, "prompt_tokens": WINDOW_TOKENS, "prompt_bytes": WINDOW_TOKENS}
        )

    async def replay(self, key: ConversationKey, conversation: Conversation) -> None:
        """Store, remember and deepen every message, keep the standing rules, and begin a new session."""
        speakers = {message.speaker for message in conversation.said} - {ASSISTANT}
        if len(speakers) == 1:
            self._people[key] = f"{key.connector}:{key.external_id}"
        for start in range(0, len(conversation.said), BATCH_TURNS):
            batch = list(enumerate(conversation.said[start : start + BATCH_TURNS], start=start))
            for number, message in batch:
                await self._transcript.append(key, _turn_id(number), [_entry(message, _turn_id(number))])
            await self._remember([Job("turn.remember", key, _turn_id(number)) for number, _ in batch])
            await self._keep_rules(key, [_entry(message, _turn_id(number)) for number, message in batch])
        while await self._turns.deepen(key.scope):
            pass
        await self._transcript.begin_session(key)

    async def _keep_rules(self, key: ConversationKey, entries: Sequence[TranscriptEntry]) -> None:
        """Keep the standing rules that patterns find in *entries*."""
        person = self._people.get(key, "")
        scope = Scope(key.workspace_id, key.context_id, person or None)
        said = tuple(replace(entry, user=person or f"{key.connector}:{entry.author}") for entry in entries)
        known = await self._records.list(scope, (Type.RULE,))
        for found in records_in(Window(key.context_id, said, person, {}), known):
            if found.new.type is Type.RULE:
                await self._records.add(scope, found.new, found.by.model_copy(update={"context_id": key.context_id}))

    async def ask(
        self,
        key: ConversationKey,
        conversation: Conversation,
        question: ConversationQuestion,
        other_key: ConversationKey,
    ) -> MemoryAnswer:
        """Return what *question* recalls of its *conversation*, and how much it recalls of another one."""
        block = await self._recall(key, question)
        other = await self._recall(other_key, question) if other_key != key else _RecallBlock("", 0, 0, 0.0)
        ranking = await self._ranking.recall(key.scope, question.text, RANKED_TURNS)
        names = {_turn_id(number): message.id for number, message in enumerate(conversation.said)}
        ranked = tuple(dict.fromkeys(names[turn.turn_id] for turn in ranking))
        return MemoryAnswer(
            question, ranked, block.text, block.tokens, block.turns, block.took_ms, other.turns, other.tokens
        )

    async def _recall(self, key: ConversationKey, question: ConversationQuestion) -> _RecallBlock:
        began = time.perf_counter()
        trip = RoundTrip(self._redis)
        person = self._people.get(key, "")
        gathering = self._pipeline.begin(trip, key, self._budgets, audience=person or None, asker=person)
        await trip.send()
        grounds = await gathering.gather(question.text, Decision(ASKING), await gathering.last_messages())
        took_ms = (time.perf_counter() - began) * 1000
        rules = grounds.remembered.records
        taken = self._block(self._context(key, question, (), rules, MEMORY_TOKENS)).tokens
        block = self._block(self._context(key, question, grounds.recalled, rules, MEMORY_TOKENS - taken))
        return _RecallBlock(block.text, block.tokens, len({turn.turn_id for turn in grounds.recalled}), took_ms)

    def _block(self, context: RunContext) -> Block:
        """Return the block of rules and earlier turns in the prompt of *context*."""
        return next(block for block in build_prompt(context, self._tokens).blocks if block.name == "records")

    def _context(
        self,
        key: ConversationKey,
        question: ConversationQuestion,
        recalled: tuple[RecalledTurn, ...],
        rules: tuple[SelectedRecord, ...],
        recall_tokens: int,
    ) -> RunContext:
        return RunContext(
            turn_id="asked",
            workspace_id=key.workspace_id,
            context_id=key.context_id,
            connector=key.connector,
            external_id=key.external_id,
            direct=True,
            authors=(),
            identity="",
            query=Query(text=question.text),
            strategy=ASKING.strategy.value,
            reason=ASKING.reason,
            small_talk=False,
            wants_history=True,
            wants_documents=False,
            recalled=recalled,
            records=rules,
            budgets=self._budgets.model_copy(update={"records_tokens": recall_tokens}),
        )


# ---- Strategy ----


async def run_strategy(
    settings: Settings,
    messages: tuple[Message, ...],
    documents: Path | None,
    cues: Cues,
    folder: Path,
    status: StatusLine,
) -> StrategyScores:
    """Score the decisions about *messages*: by *cues*, and by the vocabulary of *documents* if they are given."""
    key = ConversationKey("eval", "console", "default")
    # Nobody waits for a reply here, and a slow machine must not change the figures.
    timeout_seconds = settings.qdrant_timeout_seconds + EMBEDDING_SECONDS

    def show(done: int, total: int) -> None:
        status.show(f"deciding {done}/{total} messages …")

    if documents is None:
        deciding = StrategyChooser(_NoDocuments(), timeout_seconds, vocabulary=False)
        return await evaluate_strategy(messages, deciding, cues, key, show)
    embedder, deep = await open_embedder(settings), _deep_embedder(settings)
    async with _open_index(settings, embedder, folder, deep) as index:
        await _index_documents(index, key.scope, documents, embedder, deep, status)
        deciding = StrategyChooser(SearchedDocuments(Search(index, embedder, deep=deep)), timeout_seconds)
        return await evaluate_strategy(messages, deciding, cues, key, show)


async def _index_documents(
    index: PassageIndex,
    scope: Scope,
    path: Path,
    embedder: Embedder,
    deep: DeepEmbedder | None,
    status: StatusLine,
) -> None:
    def show(done: int, total: int) -> None:
        status.show(f"indexing {done}/{total} documents …")

    documents = await asyncio.to_thread(load_documents, path)
    tokens = await asyncio.to_thread(load_tokens)
    await fill(index, scope, documents, embedder, tokens.count, show, deep=deep)
