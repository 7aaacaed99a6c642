"""Reads question sets: questions about documents (`load`), and about long conversations (`load_conversations`).

Questions about documents have two forms. One is a BEIR folder (Thakur et al., NeurIPS 2021): ``corpus.jsonl`` (``_id``,
``title``, ``text``, optional ``metadata.workspace``), ``queries.jsonl`` (``_id``, ``text``, optional
``metadata.workspace`` and ``metadata.history``) and ``qrels/test.tsv`` (query, document, relevance; more than 0 is
relevant). The other is a JSON lines file of questions (``question``, ``expected``: a path or a list of paths, optional
``history``) with Markdown beside it, in a folder ``docs`` or in the file's own folder. A history is a list of
``{"role": "user"|…, "text": …}``, the oldest first.

Conversations are a BEIR folder too: ``corpus.jsonl`` has one message a line, in the order of the conversation (``_id``,
``text``, ``metadata`` with ``workspace``, which names the conversation, and optional ``date`` and ``speaker``),
``queries.jsonl`` the questions (``_id``, ``text``, ``metadata`` with ``workspace`` and ``category``) and
``qrels/test.tsv`` the messages that are evidence (query, message, relevance). The speaker ``assistant`` is the bot. The
speaker's name and a colon at the beginning of a text are removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError
from grounding.documents import is_document_path

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb that needs no tokenizer, so that figures of different machines and models can be compared."""


class BadQuestionSet(AgentRuntimeError):
    """A question set that cannot be read; the text names the file, the line and what was expected."""


def rough_tokens(text: str) -> int:
    """Return the rough number of tokens of *text*: its characters divided by four, and one."""
    return len(text) // CHARACTERS_PER_TOKEN + 1


@dataclass(frozen=True, slots=True)
class Text:
    """One document of a set. ``path`` is its path under ``docs/``, ``tokens`` what it costs without its title."""

    id: str
    path: str
    text: str
    workspace: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the ids of the documents that answer it, and the turns before it (role, text)."""

    id: str
    text: str
    expected: frozenset[str]
    workspace: str
    history: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Documents and questions. Workspaces are the set's own names; each is searched alone.

    ``absent`` are expected documents that the set does not have, so that nothing can find them.
    """

    documents: tuple[Text, ...]
    questions: tuple[Question, ...]
    absent: frozenset[str] = frozenset()


def load(path: Path) -> QuestionSet:
    """Read the set at *path*: a BEIR folder, a questions file, or a folder with ``questions.jsonl``.

    Raises `BadQuestionSet`.
    """
    if (path / "corpus.jsonl").is_file():
        return _load_beir(path)
    questions = path / "questions.jsonl" if path.is_dir() else path
    if not questions.is_file():
        raise BadQuestionSet(
            f"{path} is neither a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv) nor a folder with "
            "questions.jsonl and Markdown under docs/"
        )
    return _load_markdown(questions)


def _lines(file: Path) -> list[tuple[str, str]]:
    """Return the lines of *file* that are not blank, each with its place for errors. Only a line feed ends a line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise BadQuestionSet(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadQuestionSet(f"{file}: expected UTF-8 ({error.reason} at byte {error.start})") from error
    return [(f"{file}, line {number}", line) for number, line in enumerate(lines, start=1) if line.strip()]


def records(file: Path, *fields: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of *file*, one a line, which must have *fields*, each with its place for errors."""
    for place, line in _lines(file):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise BadQuestionSet(f"{place}: no JSON: {error}") from error
        if not isinstance(record, dict) or any(field not in record for field in fields):
            wanted = " and ".join(f'"{field}"' for field in fields)
            raise BadQuestionSet(f"{place}: expected an object with {wanted}")
        yield place, record


def string_of(place: str, record: Mapping[str, Any], field: str) -> str:
    """Return the text in *field*."""
    value = record[field]
    if not isinstance(value, str):
        raise BadQuestionSet(f'{place}: expected "{field}" to be a text, got {type(value).__name__}')
    # JSON may hold half a character, which no encoder takes.
    return value.encode("utf-8", "replace").decode("utf-8")


def id_of(place: str, record: Mapping[str, Any]) -> str:
    """Return the ``_id`` of a record, as a text."""
    value = record["_id"]
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise BadQuestionSet(f'{place}: expected "_id" to be a text or a whole number')
    return str(value)


def metadata_of(place: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``metadata`` of a record; empty if it has none."""
    value = record.get("metadata") or {}
    if not isinstance(value, dict):
        raise BadQuestionSet(f'{place}: expected "metadata" to be an object')
    return value


def history_of(place: str, found: object) -> tuple[tuple[str, str], ...]:
    """Return the earlier turns of a record, each with its role and text."""
    turns = found or []
    expected = f'{place}: expected "history" to be a list of {{"role", "text"}}, the oldest first'
    if not isinstance(turns, list):
        raise BadQuestionSet(expected)
    history = []
    for turn in turns:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(field), str) for field in ("role", "text")):
            raise BadQuestionSet(expected)
        history.append((turn["role"], turn["text"]))
    return tuple(history)


def load_documents(path: Path) -> dict[str, str]:
    """Return texts by path: of a ``corpus.jsonl``, of a folder with one, or of a folder of Markdown.

    Raises `BadQuestionSet`, also if there is no document.
    """
    corpus = path / "corpus.jsonl" if path.is_dir() else path
    texts = _corpus_texts(corpus) if corpus.is_file() else _markdown_texts(path)
    if not texts:
        raise BadQuestionSet(f"{path} holds no documents: expected corpus.jsonl (_id, title, text) or Markdown")
    return {one.path: one.text for one in texts}


def _load_beir(folder: Path) -> QuestionSet:
    documents = _corpus_texts(folder / "corpus.jsonl")
    known = {one.id for one in documents}
    gold = judgements(qrels_of(folder))
    asked: dict[str, str] = {}
    questions = []
    for place, record in records(folder / "queries.jsonl", "_id", "text"):
        name, metadata = id_of(place, record), metadata_of(place, record)
        once(asked, name, place)
        text = string_of(place, record, "text")
        if name in gold:
            history, workspace = history_of(place, metadata.get("history")), str(metadata.get("workspace", ""))
            questions.append(Question(name, text, frozenset(gold[name]), workspace, history))
    absent = frozenset(one for question in questions for one in question.expected if one not in known)
    return QuestionSet(documents, tuple(questions), absent)


def _corpus_texts(file: Path) -> tuple[Text, ...]:
    places: dict[str, str] = {}
    texts = []
    for number, (place, record) in enumerate(records(file, "_id", "text")):
        name, text = id_of(place, record), string_of(place, record, "text")
        once(places, name, place)
        title, workspace = str(record.get("title") or ""), str(metadata_of(place, record).get("workspace", ""))
        texts.append(Text(name, f"{number}.txt", f"{title}\n\n{text}".strip(), workspace, rough_tokens(text)))
    return tuple(texts)


def once(places: dict[str, str], name: str, place: str) -> None:
    """Note that *name* was used at *place*; a second time is an error."""
    if name in places:
        raise BadQuestionSet(f"{place}: the id {name!r} was given before ({places[name]}); ids must differ")
    places[name] = place


def qrels_of(folder: Path) -> Path:
    """Return ``qrels/test.tsv``, or the only other file of judgements."""
    wanted = folder / "qrels" / "test.tsv"
    if wanted.is_file():
        return wanted
    others = sorted((folder / "qrels").glob("*.tsv"))
    if len(others) == 1:
        return others[0]
    raise BadQuestionSet(f"{folder} has no qrels/test.tsv (lines of query id, document id and relevance, with tabs)")


def judgements(file: Path) -> dict[str, set[str]]:
    """Return the ids of the documents that answer each question."""
    gold: dict[str, set[str]] = {}
    for number, (place, line) in enumerate(_lines(file)):
        cells = [cell.strip() for cell in line.split("\t")]
        try:
            query, document, relevance = cells[0], cells[1], float(cells[2])
        except (IndexError, ValueError):
            if number == 0:  # the heading
                continue
            raise BadQuestionSet(
                f"{place}: expected query id, document id and a relevance number, with tabs between"
            ) from None
        if len(cells) != 3:
            raise BadQuestionSet(f"{place}: expected three cells with tabs between, got {len(cells)}")
        if relevance > 0:
            gold.setdefault(query, set()).add(document)
    return gold


def _load_markdown(file: Path) -> QuestionSet:
    root = file.parent / "docs" if (file.parent / "docs").is_dir() else file.parent
    documents = _markdown_texts(root)
    known = {one.id for one in documents}
    asked: dict[str, str] = {}
    questions = []
    for place, record in records(file, "question", "expected"):
        text = string_of(place, record, "question")
        # Its text is its id, so that results stay comparable when questions are added or moved.
        if text in asked:
            raise BadQuestionSet(f"{place}: the same question was asked before ({asked[text]})")
        asked[text] = place
        expected, history = _expected(place, record["expected"], known, root), history_of(place, record.get("history"))
        questions.append(Question(text, text, expected, "", history))
    return QuestionSet(documents, tuple(questions))


def _markdown_texts(root: Path) -> tuple[Text, ...]:
    texts = []
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if not file.is_file() or not is_document_path(path):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadQuestionSet(f"{file} cannot be read as UTF-8 text: {error}") from error
        texts.append(Text(path, path, text, "", rough_tokens(text)))
    return tuple(texts)


def _expected(place: str, found: object, known: Set[str], root: Path) -> frozenset[str]:
    paths = found if isinstance(found, list) else [found]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise BadQuestionSet(f'{place}: expected "expected" to be a path or a list of paths')
    if missing := [path for path in paths if path not in known]:
        raise BadQuestionSet(f"{place}: {missing[0]!r} is expected, but there is no such document in {root}")
    return frozenset(paths)


# Conversations


BETWEEN_MESSAGES = timedelta(seconds=30)
"""The time after the message before, if a message has no later date."""
UNDATED = datetime(2024, 1, 1, 9, tzinfo=UTC)
"""The beginning of a conversation without dates."""
_DATES = ("%I:%M %p on %d %B, %Y", "%B-%d-%Y", "%d %B %Y", "%B %d, %Y")
"""Forms of dates beside ISO 8601."""


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """One message; ``id`` is the set's."""

    id: str
    speaker: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ConversationQuestion:
    """A question about a conversation, and the ids of the messages that are evidence for its answer."""

    id: str
    text: str
    category: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order, and questions that come after all of them."""

    name: str
    said: tuple[ConversationMessage, ...]
    asked: tuple[ConversationQuestion, ...]


def load_conversations(folder: Path) -> list[Conversation]:
    """Return the conversations of the set in *folder*, by name, also those without questions.

    Raises `BadQuestionSet`, also for a set without any question.
    """
    if not (folder / "corpus.jsonl").is_file():
        raise BadQuestionSet(f"{folder} has no corpus.jsonl: expected corpus.jsonl, queries.jsonl and qrels/test.tsv")
    said = _said(folder / "corpus.jsonl")
    asked = _asked(folder, {one.id for messages in said.values() for one in messages})
    if unknown := sorted(asked.keys() - said.keys()):
        raise BadQuestionSet(f"questions are about the conversation {unknown[0]!r}, of which corpus.jsonl has nothing")
    if not asked:
        raise BadQuestionSet("the set has no question with evidence in its conversations")
    return [Conversation(name, tuple(said[name]), tuple(asked.get(name, ()))) for name in sorted(said)]


def _said(file: Path) -> dict[str, list[ConversationMessage]]:
    places: dict[str, str] = {}
    last: dict[str, datetime] = {}
    said: dict[str, list[ConversationMessage]] = {}
    for place, record in records(file, "_id", "text"):
        name, metadata = id_of(place, record), metadata_of(place, record)
        once(places, name, place)
        conversation = str(metadata.get("workspace", ""))
        speaker = " ".join(str(metadata.get("speaker") or "").split())
        text = string_of(place, record, "text").removeprefix(f"{speaker}: ")
        before, at = last.get(conversation), _date(metadata.get("date"))
        if before is not None and (at is None or at <= before):
            at = before + BETWEEN_MESSAGES
        last[conversation] = at = at or UNDATED
        if text.strip():  # the log has no entry for an empty message
            said.setdefault(conversation, []).append(ConversationMessage(name, speaker, text, at))
    return said


def _asked(folder: Path, known: set[str]) -> dict[str, list[ConversationQuestion]]:
    evidence = judgements(qrels_of(folder))
    places: dict[str, str] = {}
    asked: dict[str, list[ConversationQuestion]] = {}
    for place, record in records(folder / "queries.jsonl", "_id", "text"):
        name, metadata = id_of(place, record), metadata_of(place, record)
        once(places, name, place)
        if not evidence.get(name, set()) & known:
            continue
        text, category = string_of(place, record, "text"), str(metadata.get("category") or "")
        question = ConversationQuestion(name, text, category, frozenset(evidence[name]))
        asked.setdefault(str(metadata.get("workspace", "")), []).append(question)
    return asked


def _date(written: object) -> datetime | None:
    """Return the date in a form that sets use, taken as UTC; None if it is none."""
    text = " ".join(str(written or "").split())
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except ValueError:
        pass
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None
