"""``eval retrieval``: the run, with the settings in force."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from config.settings import Settings
from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.evaluation import (
    MEMORY_TOKENS,
    Asked,
    Conversation,
    Difference,
    Evaluation,
    Figures,
    QuestionSet,
    Recalled,
    Said,
    Scores,
    evaluate,
    figures,
    paired,
    score,
)
from grounding.memory.context_document import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.pipeline import Pipeline
from grounding.prompt import Continuing, Freezing, assemble
from grounding.prompt_input import Budgets, DegradedBlock, Passage, Query, RecalledTurn, RunContext, Tokens, load_tokens
from grounding.retrieval import Embedder, Fusion, PassageIndex, TurnFloor, Turns
from grounding.strategy import Choice, Strategy
from grounding.transcript import Entry, EntryRole, Transcript
from runtime.background import RememberTurns
from runtime.cli.invocation import Invocation, json_option, keep_events_off_the_screen, run
from runtime.cli.output import StatusLine, count, line, note, print_json, status_line, table
from runtime.coordination import Job
from runtime.stores import RedisStore, open_redis

if TYPE_CHECKING:
    from grounding.evaluation import MemoryResult, MemoryScores, Message, Share, StrategyScores
    from grounding.retrieval import AtHand, Reranker, Vocabulary
    from grounding.strategy import Cues


SHOW_EVERY_SECONDS = 0.2


class NoLocalIndex(AgentRuntimeError):
    """The embedded index, in which questions are scored, is not installed."""


async def run_retrieval(settings: Settings, questions: QuestionSet, folder: Path, status: StatusLine) -> Evaluation:
    """Score *questions* in an index of their own under *folder*.

    Raises `NoLocalIndex`, and what `grounding.evaluation.evaluate.evaluate` raises.
    """
    from grounding.prompt_input.tokens import load_tokens

    status.show("loading the embedding model …")
    embedder = await embedder_of(settings)
    tokens = await asyncio.to_thread(load_tokens)
    deep = deeper_of(settings)
    return await evaluate(
        questions,
        embedder,
        tokens.count,
        lambda: trial_index(settings, embedder, folder, deep.dimensions if deep else None),
        reranker=_reranker(settings),
        deep=deep,
        progress=_Shown(status).show,
    )


def trial_index(
    settings: Settings, embedder: Embedder, folder: Path, deep_dimensions: int | None = None
) -> PassageIndex:
    """An empty embedded index under *folder*. Raises `NoLocalIndex`."""
    try:
        from grounding.retrieval.qdrant_edge import EmbeddedIndex
    except ImportError as error:
        raise NoLocalIndex(
            "questions are scored in an embedded index, so that yours is left alone: install agent-runtime[local]"
        ) from error
    seconds = settings.qdrant_timeout_seconds
    return EmbeddedIndex(
        folder,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=seconds,
        fusion=Fusion.from_settings(settings),
        deep_dimensions=deep_dimensions,
    )


def _reranker(settings: Settings) -> Reranker | None:
    if settings.rerank_model is None:
        return None
    from runtime.llm import LiteLLMReranker

    return LiteLLMReranker(settings)


async def embedder_of(settings: Settings) -> Embedder:
    """The embedding model of *settings*."""
    from runtime.llm import open_embedder

    return await open_embedder(settings)


def deeper_of(settings: Settings) -> AtHand | None:
    """The deeper model of *settings*, in this process; None where there is none."""
    from runtime.search.deepening import why_not

    if why_not(settings):
        return None
    from grounding.retrieval.index import AtHand
    from grounding.retrieval.minilm import MiniLMEmbedder

    return AtHand(MiniLMEmbedder(only_english=True))


class _Shown:
    """What is done of how much, and how fast it goes."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._what = ""
        self._began = self._last = 0.0

    def show(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last = what, now, 0.0
        if now - self._last < SHOW_EVERY_SECONDS:
            return
        self._last = now
        verb = "indexing" if what == "documents" else "asking"
        rate = f", {done / (now - self._began):,.0f} a second" if now - self._began > 1 else ""
        self._status.show(f"{verb} {done:,}/{total:,} {what}{rate} …")


# ---- result ----
#
# The result of ``eval retrieval``: means, figures of each question, and how it compares with an earlier one. Pure but
# for `read_earlier`.


TITLES = {
    "recall_at_5": "recall@5",
    "recall_at_10": "recall@10",
    "ndcg_at_10": "nDCG@10",
    "mrr": "MRR",
    "recall_at_1000_tokens": "recall@1000tok",
    "recall_at_1000_tokens_of_passages": "…of passages",
}
"""How each of `Figures` is called where people read it."""
DIGITS = 6

ByArm = Mapping[str, Mapping[str, Figures]]
"""By arm, then by question."""


class NoEarlierResult(AgentRuntimeError):
    """What should be compared with is no result of `eval retrieval --json`."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run over one set."""

    name: str
    questions: QuestionSet
    evaluation: Evaluation
    figures: ByArm
    scores: Mapping[str, Scores]

    @classmethod
    def of(cls, name: str, questions: QuestionSet, evaluation: Evaluation) -> Result:
        """The figures of *evaluation* over the set that is called *name*."""
        by_arm = {
            arm: {question: figures(ranking) for question, ranking in rankings.items()}
            for arm, rankings in evaluation.arms.items()
        }
        scores = {arm: score(list(rankings.values())) for arm, rankings in evaluation.arms.items()}
        return cls(name, questions, evaluation, by_arm, scores)

    def as_json(self) -> dict[str, Any]:
        """One object, with which a later run can be compared."""
        evaluation = self.evaluation
        lost = [{"block": what, "why": why, "questions": times} for (what, why), times in evaluation.lost.items()]
        return {
            "documents": len(self.questions.known),
            "passages": evaluation.chunks,
            "questions": len(self.questions.questions),
            "absent": len(self.questions.absent),
            "main": evaluation.main,
            "arms": {arm: asdict(one) for arm, one in self.scores.items()},
            "lost": lost,
            "per_question": {
                "fields": list(Figures._fields),
                "arms": {
                    arm: {question: list(_rounded(found)) for question, found in one.items()}
                    for arm, one in self.figures.items()
                },
            },
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How each figure of each arm that both have differs from the earlier result *name*."""

    name: str
    questions: int
    arms: Mapping[str, Mapping[str, Difference]]

    def as_json(self) -> dict[str, Any]:
        return {
            "with": self.name,
            "questions": self.questions,
            "arms": {
                arm: {
                    field: {
                        "change": round(one.mean, DIGITS),
                        "margin": round(one.margin, DIGITS),
                        "verdict": one.verdict,
                    }
                    for field, one in changes.items()
                }
                for arm, changes in self.arms.items()
            },
        }


def read_earlier(file: Path) -> dict[str, dict[str, Figures]]:
    """The figures that an earlier run printed with ``--json`` to *file*. Raises `NoEarlierResult`."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))["per_question"]
        at = [stored["fields"].index(field) if field in stored["fields"] else None for field in Figures._fields]
        return {
            arm: {
                question: Figures(*(0.0 if place is None else float(values[place]) for place in at))
                for question, values in by_question.items()
            }
            for arm, by_question in stored["arms"].items()
        }
    except OSError as error:
        raise NoEarlierResult(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise NoEarlierResult(
            f"{file} is no earlier result: write one with `agent-runtime eval retrieval PATH --json > {file.name}`"
        ) from error


def compare(new: ByArm, old: ByArm, name: str) -> Comparison:
    """*new* against *old*, called *name*, over the questions that both have. Raises `NoEarlierResult` where there are
    not at least two, or no arm in common."""
    arms = [arm for arm in new if arm in old]
    shared = set.intersection(*(new[arm].keys() & old[arm].keys() for arm in arms)) if arms else set()
    check_shared(len(shared), name)
    # What was stored was rounded; without rounding the new the same would differ.
    rounded = {arm: {question: _rounded(found) for question, found in new[arm].items()} for arm in arms}
    return Comparison(name, len(shared), {arm: differences(rounded[arm], old[arm]) for arm in arms})


def _rounded(found: Figures) -> Figures:
    return Figures(*(round(value, DIGITS) for value in found))


def check_shared(questions: int, name: str) -> None:
    """Raises `NoEarlierResult` where too few *questions* are also in the earlier result *name*."""
    if not questions:
        raise NoEarlierResult(f"{name} and this run have no question in common: it is of another set")
    if questions == 1:
        raise NoEarlierResult(f"{name} and this run have one question in common: a comparison needs two or more")


def differences(new: Mapping[str, Figures], old: Mapping[str, Figures]) -> dict[str, Difference]:
    """For each of `Figures` the paired difference of two arms."""
    return {
        field: paired(
            {question: found[at] for question, found in new.items()},
            {question: found[at] for question, found in old.items()},
        )
        for at, field in enumerate(Figures._fields)
    }


# ---- printing ----
#
# What ``eval retrieval`` prints for people.


HEADERS = ("arm", "recall@5", "recall@10", "nDCG@10", "MRR", "@1000tok", "p50", "p95")
"""Short, so that the table fits into 80 columns."""
COMPARED = ("recall_at_5", "recall_at_10", "ndcg_at_10", "recall_at_1000_tokens")


def print_result(result: Result) -> None:
    """The table, and what one must know to read it."""
    evaluation, questions, scores = result.evaluation, result.questions, result.scores
    asked = count(len(questions.questions), "question")
    line(f"{result.name}: {count(len(questions.known), 'document')}, {count(evaluation.chunks, 'passage')}, {asked}")
    table(HEADERS, [[arm, *_cells(one)] for arm, one in scores.items()], right=HEADERS[1:])
    line("@1000tok: recall within 1,000 tokens of whole documents; p50, p95: milliseconds.")
    if any(one.recall_at_1000_tokens != one.recall_at_1000_tokens_of_passages for one in scores.values()):
        told = ", ".join(f"{arm} {one.recall_at_1000_tokens_of_passages:.3f}" for arm, one in scores.items())
        line("Within 1,000 tokens of passages, which is what a prompt pays for:")
        line(told)
    for (what, why), times in evaluation.lost.items():
        note(f"{what} failed for {count(times, 'question')} ({why}): there the fused order stands")
    if questions.absent:
        missing = count(len(questions.absent), "expected document")
        note(f"the corpus lacks {missing}, which nothing can find, e.g. {min(questions.absent)}")


def print_comparison(comparison: Comparison) -> None:
    """The change of each arm, with what it means."""
    line(f"Change since {comparison.name}, over {count(comparison.questions, 'question')}:")
    headers = ["arm", *(TITLES[field] for field in COMPARED)]
    rows = [[arm, *(_change(changes[field]) for field in COMPARED)] for arm, changes in comparison.arms.items()]
    table(headers, rows, right=headers[1:])
    line("noise: within the 95 % interval of a paired t-test over the questions.")


def _cells(scores: Scores) -> list[str]:
    shares = (
        scores.recall_at_5,
        scores.recall_at_10,
        scores.ndcg_at_10,
        scores.mrr,
        scores.recall_at_1000_tokens,
    )
    return [*(f"{share:.3f}" for share in shares), _milliseconds(scores.p50_ms), _milliseconds(scores.p95_ms)]


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _change(difference: Difference) -> str:
    if not difference.mean:
        return "same"
    return f"{difference.mean:+.3f} {difference.verdict.removeprefix('within ')}"


# ---- remembering ----
#
# ``eval memory``: the run. Conversations go through the transcript and the recall index of a folder of their own.


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

    Raises `runtime.cli.evaluation.NoLocalIndex`, `runtime.embedded.child.ChildFailed`, `IndexUnavailable`,
    `EmbedderUnavailable` and `StoreUnavailable`.
    """
    own = settings.model_copy(update={"data_dir": folder, "redis_url": None, "qdrant_url": None})
    status.show("loading the embedding model …")
    embedder = await embedder_of(own)
    tokens = load_tokens()
    async with _index(own, embedder, folder / "qdrant") as index, open_redis(own) as store:
        memory = _Memory(own, store, index, embedder, tokens)
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

    def __init__(
        self, settings: Settings, store: RedisStore, index: PassageIndex, embedder: Embedder, tokens: Tokens
    ) -> None:
        self._transcript = Transcript(store.client)
        self._turns = Turns(index, embedder)
        self._ranking = Turns(index, embedder, floor=_NO_FLOOR)
        self._remember = RememberTurns(self._transcript, self._turns)
        self._pipeline = Pipeline(
            self._transcript,
            Continuing(ContextDocuments(store.client), Freezing(tokens, settings.llm_grounding_layout)),
            GlobalContexts(
                store.client,
                tokens,
                max_tokens=settings.global_context_max_tokens,
                idle_seconds=settings.session_idle_seconds,
            ),
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


# ---- memory ----
#
# ``agent-runtime eval memory``: figures for what is recalled of long conversations.


MEMORY_HEADERS = ("category", "questions", "recall@5", "recall@10", "nDCG@10", "@1000tok")


@click.command("memory")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
@click.pass_obj
def memory(invocation: Invocation, folder: Path, as_json: bool) -> None:
    """Measure what is recalled of the long conversations in FOLDER, with the current settings.

    Read are corpus.jsonl (messages as they were said: _id, text, metadata with workspace, session, date, speaker),
    queries.jsonl (_id, text, metadata with workspace, category) and qrels/test.tsv (which messages are evidence).
    A workspace is one conversation. No model is called, and the data is deleted at the end.
    """
    from grounding.evaluation.datasets import load_conversations
    from grounding.evaluation.evaluate import score_memory

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as data_dir,
    ):
        conversations = load_conversations(folder)
        result = score_memory(conversations, run(run_memory(settings, conversations, Path(data_dir), status)))
    if as_json:
        print_json(asdict(result))
    else:
        _show(result)


def _show(result: MemoryResult) -> None:
    line(f"{count(result.conversations, 'conversation')}, {count(result.messages, 'message')}")
    rows = [("all", result.with_adversarial), *result.categories.items()]
    if result.scores != result.with_adversarial:
        rows.insert(0, ("not adversarial", result.scores))
    table(MEMORY_HEADERS, [[name, *_memory_cells(scores)] for name, scores in rows], right=MEMORY_HEADERS[1:])
    line("@1000tok: evidence with 60 % of its content words in a prompt that may hold 1,000 tokens of earlier turns.")
    line(f"A prompt recalls {result.turns:.1f} turns in {result.tokens:.0f} tokens; asked in another conversation,")
    line(f"{result.elsewhere_turns:.1f} in {result.elsewhere_tokens:.0f}.")
    line(f"Grounding took {result.p50_ms:.1f} ms (p50), {result.p95_ms:.1f} ms (p95).")


def _memory_cells(scores: MemoryScores) -> list[str]:
    shares = (scores.recall_at_5, scores.recall_at_10, scores.ndcg_at_10, scores.recall_at_1000_tokens)
    return [str(scores.questions), *(f"{share:.3f}" for share in shares)]


# ---- strategy ----
#
# ``agent-runtime eval strategy``: figures for the strategy on a set of labelled messages.


@click.command("strategy")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--documents",
    type=click.Path(path_type=Path, exists=True),
    help="The workspace's documents: a folder of Markdown, or a corpus.jsonl. Without them cues alone decide.",
)
@click.option(
    "--cues", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Use the cues in this CUES.toml."
)
@click.option("--wrong", is_flag=True, help="List the messages where the decision differs from the label.")
@json_option
@click.pass_obj
def strategy(
    invocation: Invocation, path: Path, documents: Path | None, cues: Path | None, wrong: bool, as_json: bool
) -> None:
    """Measure the strategy on the messages at PATH.

    PATH holds JSON lines ({"text", "strategy"?, "reason"?, "needs_history"?, "needs_documents"?, "history"?}), or is a
    folder with queries.jsonl, labels in its metadata. Missing labels are not measured.
    """
    from grounding.evaluation.evaluate import load_messages

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as folder,
    ):
        messages = load_messages(path)
        scores = run(_score(settings, messages, documents, _cues(cues), Path(folder), status))
    if as_json:
        print_json(asdict(scores) if wrong else {**asdict(scores), "wrong": len(scores.wrong)})
        return
    _strategy_show(scores)
    if wrong:
        _show_wrong(scores)


def _cues(file: Path | None) -> Cues:
    from grounding.strategy.languages import ENGLISH, InvalidCues, cues_of

    if file is None:
        return ENGLISH
    try:
        return cues_of((file.read_text(encoding="utf-8-sig"),))
    except (InvalidCues, OSError, UnicodeDecodeError) as error:
        raise InvalidCues(f"{file}: {error}") from error


async def _score(
    settings: Settings,
    messages: tuple[Message, ...],
    documents: Path | None,
    cues: Cues,
    folder: Path,
    status: StatusLine,
) -> StrategyScores:
    from connectors.message import ConversationKey
    from grounding.evaluation.evaluate import evaluate_strategy
    from grounding.pipeline import Deciding

    key = ConversationKey("eval", "console", "default")

    def show(done: int, total: int) -> None:
        status.show(f"deciding {done}/{total} messages …")

    async with AsyncExitStack() as stack:
        # Nobody waits for a reply here, and a slow machine must not change the figures.
        patient = settings.qdrant_timeout_seconds + settings.embedding_timeout_seconds
        if documents is None:
            deciding = Deciding(_NothingSaid(), _StrategyNoDocuments(), patient, vocabulary=False)
        else:
            vocabulary = await _indexed(settings, documents, key.scope, folder, status, stack)
            deciding = Deciding(_NothingSaid(), vocabulary, patient)
        return await evaluate_strategy(messages, deciding, cues, key, show)


async def _indexed(
    settings: Settings, path: Path, scope: Scope, folder: Path, status: StatusLine, stack: AsyncExitStack
) -> Vocabulary:
    """What the documents at *path* speak of, through an index under *folder* that is closed with *stack*."""
    from grounding.evaluation.evaluate import fill, load_documents
    from grounding.prompt_input.tokens import load_tokens
    from grounding.retrieval.search import Vocabulary

    documents = await asyncio.to_thread(load_documents, path)
    embedder = await embedder_of(settings)
    tokens = await asyncio.to_thread(load_tokens)
    index = await asyncio.to_thread(trial_index, settings, embedder, folder)
    stack.push_async_callback(index.close)
    await index.ensure()

    def show(done: int, total: int) -> None:
        status.show(f"indexing {done}/{total} documents …")

    await fill(index, scope, documents, embedder, tokens.count, show)
    return Vocabulary(index, embedder)


class _NothingSaid:
    """A conversation of which only the set knows."""

    async def tail(self, key: ConversationKey, max_entries: int, except_turn: str = "") -> list[Entry]:
        return []


class _StrategyNoDocuments:
    """A workspace of which nothing is known."""

    async def awake(self, scope: Scope) -> None:
        return

    async def best_match(self, scope: Scope, text: str) -> None:
        return None


def _strategy_show(scores: StrategyScores) -> None:
    line(count(scores.messages, "message"))
    if scores.accuracy is not None and scores.macro_f1 is not None:
        line(f"strategy: accuracy {scores.accuracy:.3f}, macro-F1 {scores.macro_f1:.3f}")
        headers = ["label", "messages", "precision", "recall", "F1", "as none", "as tail", "as qmd"]
        rows = [
            [label, str(share.count), *_figures(share), *(str(number) for number in scores.confusion[label].values())]
            for label, share in scores.labels.items()
        ]
        table(headers, rows, right=headers[1:])
    if scores.reason_accuracy is not None:
        line(f"reason: accuracy {scores.reason_accuracy:.3f}")
    needs = [("needs history", scores.needs_history), ("needs documents", scores.needs_documents)]
    for name, share in needs:
        if share is not None:
            precision, recall, f1 = _figures(share)
            line(f"{name}: precision {precision}, recall {recall}, F1 {f1} ({share.count} do)")
    line(f"decisions that differ from the label: {len(scores.wrong)}")


def _show_wrong(scores: StrategyScores) -> None:
    for one in scores.wrong:
        expected = ", ".join(f"{name} {value}" for name, value in one.expected.items())
        got = ", ".join(str(value) for value in one.got.values())
        line(f"{' '.join(one.text.split())!r}: expected {expected}; got {got}")


def _figures(share: Share) -> list[str]:
    return [f"{share.precision:.3f}", f"{share.recall:.3f}", f"{share.f1:.3f}"]
