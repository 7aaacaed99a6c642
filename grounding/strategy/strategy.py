"""Decide what a message needs to be answered: nothing, this conversation, or the workspace's documents. Pure.

`choose` decides by cues. If these leave it open, `choose_by_relevance` decides by the relevance of the workspace's
documents to the message; `grounding.pipeline.StrategyChooser` asks for it. Needing the conversation and needing
documents are two separate questions: the strategy is named after the message's request, and a message that needs both
gets both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, islice
from typing import Literal

from grounding.prompt_input import TailEntry
from grounding.retrieval import EARLIER_MAX_CHARACTERS, EARLIER_TURNS, MEASURED_CHUNKS, SMALLEST_CHUNKS
from grounding.strategy.cues import (
    Cues,
    FoldedText,
    Text,
    has_cue,
    matches,
    phrase_at,
    phrase_set,
    word_set,
    words_of,
)
from grounding.strategy.languages import ENGLISH

ASSISTANT = "assistant"
"""The speaker of the bot's own messages in a tail."""
SHORT_WORDS = 4
"""Up to this many words "what changed?" is about this conversation."""
MIN_QUESTION_WORDS = 5
"""A shorter question is too thin to search for only because it names an anchor."""
MATCH_LOG_ODDS = 0.7
"""How relevant the best passage must be to a message without cues, so that documents are wanted. Which passages a
prompt then shows is decided on the same scale by a lower limit, `grounding.retrieval.relevance.SHOWN_LOG_ODDS` (-2.1).
Figures: docs/decisions/08."""
LEANING_LOG_ODDS = 0.3
"""How much lower that limit is for a message that leans on the conversation: fewer of those need no document."""
SMALL_LOG_ODDS = 0.6
"""How much lower that limit is, for each unit of ln(`MEASURED_CHUNKS` / passages): in a small workspace few messages
match something by chance, and a question whose document is missed has no other one."""
SMALL_LEANING_LOG_ODDS = 0.16
"""The same for a message that leans on the conversation: what was asked before finds something, whatever is said now
("and who won the world cup?" after a question about holidays)."""
ASSISTANT_LOG_ODDS = 1.5
"""How much higher the limit is if the message speaks of the assistant itself ("what is your favourite book?")."""
_URL = re.compile(r"\bhttps?://\S", re.IGNORECASE)
_DOTTED = re.compile(r"(?<![\w@.\-])((?:[\w\-]+\.)+)([a-z]{2,10})(?![\w@(])(?=(/?))", re.IGNORECASE)
"""The labels before the ending, the ending, and a slash if a path follows; ``r.json()`` is a call, not a file."""


class Strategy(StrEnum):
    """The retrieval that a message asks for."""

    NONE = "none"
    TAIL = "tail"
    QMD = "qmd"


Reason = Literal[
    "empty",
    "small_talk",
    "chat_memory_cue",
    "leans_on_conversation",
    "workspace_retrieval_cue",
    "implicit_workspace_question",
    "workspace_match",
    "no_retrieval_cue",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy and the reason for it."""

    strategy: Strategy
    reason: Reason
    wants_history: bool = False
    """Whether earlier turns of this conversation beyond the tail should be looked for."""
    wants_documents: bool = False
    """Whether the workspace's documents should be searched."""
    open: bool = False
    """Whether the cues leave its needs open, so that the documents decide: the message names none, and does not ask
    about the conversation, though it may lean on it."""

    @property
    def small_talk(self) -> bool:
        return self.reason == "small_talk"


def choose(text: Text, cues: Cues = ENGLISH) -> Choice:
    """Return the strategy for *text*, the user's own words, by its cues."""
    message = FoldedText.of(text)
    words = message.words
    if not message.text.strip():
        return Choice(Strategy.NONE, "empty")
    documents = _names_documents(message, cues)
    refers = has_cue(words, cues.refers_to_history, cues)
    asks = has_cue(words, cues.asks_history, cues, but=cues.refers_to_history)
    weakly_asks = has_cue(words, cues.weakly_asks_history, cues) and (len(words) <= SHORT_WORDS or "since" in words)
    implied = _implies_documents(message, cues)
    history = asks or refers or (weakly_asks and not documents) or _only_continues(words, cues)
    if not (documents or history or implied) and _is_small_talk(message, cues):
        return Choice(Strategy.NONE, "small_talk")
    if asks or (history and not documents):
        leans = refers and not (asks or documents)
        return Choice(Strategy.TAIL, "chat_memory_cue", wants_history=True, wants_documents=documents, open=leans)
    if documents:
        return Choice(Strategy.QMD, "workspace_retrieval_cue", wants_history=refers, wants_documents=True)
    if implied:
        return Choice(Strategy.QMD, "implicit_workspace_question", wants_documents=True)
    return Choice(Strategy.NONE, "no_retrieval_cue", open=True)


def choose_by_relevance(
    choice: Choice,
    relevance: float = -math.inf,
    *,
    leans: bool,
    passages: int = 0,
    addresses_assistant: bool = False,
) -> Choice:
    """Return *choice*, which is open, for a message that *leans* on the conversation, or does not.

    *relevance* (log-odds, see `grounding.retrieval.relevance`) is that of the best one of *passages* passages. If it
    reaches the limit, the message gets documents.
    """
    large = MATCH_LOG_ODDS - (LEANING_LOG_ODDS if leans else 0.0)
    if addresses_assistant:
        large += ASSISTANT_LOG_ODDS
    size = min(max(passages, SMALLEST_CHUNKS), MEASURED_CHUNKS)
    less = SMALL_LEANING_LOG_ODDS if leans else SMALL_LOG_ODDS
    matches_documents = relevance >= large - less * math.log(MEASURED_CHUNKS / size)
    if choice.strategy is Strategy.TAIL:
        return replace(choice, wants_documents=matches_documents)
    if leans:
        return Choice(
            Strategy.TAIL, "leans_on_conversation", wants_history=True, wants_documents=matches_documents, open=True
        )
    if matches_documents:
        return replace(choice, strategy=Strategy.QMD, reason="workspace_match", wants_documents=True)
    return choice


def is_small_talk(text: Text, cues: Cues = ENGLISH) -> bool:
    """Say whether `choose` calls *text* small talk."""
    return choose(text, cues).small_talk


def is_question(text: Text, cues: Cues = ENGLISH) -> bool:
    """Say whether *text* has a question mark or begins with a question word."""
    message = FoldedText.of(text)
    return "?" in message.text or "？" in message.text or bool(phrase_at(message.words, 0, cues.question_words))


def addresses_assistant(text: Text, cues: Cues = ENGLISH) -> bool:
    """Say whether *text* speaks of the assistant itself, apart from politeness and references to its messages: "what is
    your name?", not "can you tell me …" and "you said …"."""
    words = words_of(text)
    masks = (*matches(words, cues.polite_requests), *matches(words, cues.refers_to_history))
    masked = {index for start, length in masks for index in range(start, start + length)}
    return any(start not in masked for start, _ in matches(words, cues.assistant))


# The text to search for


def search_text(text: Text, cues: Cues = ENGLISH) -> str:
    """Return *text* without the words that say where to look or how to answer, for searching.

    "Which file explains pricing?" is about pricing. Behind "about" these words belong to the subject: "the docs about
    the files field". Without the greetings and requests before its question, too (`without_courtesy`). Returns all of
    that if nothing else would be left.
    """
    message = FoldedText.of(text)
    first = _first_word_of_question(message, cues)
    words, spans = message.words[first:], message.spans[first:]
    dropped: set[int] = set()
    subject = words.index("about") if "about" in words else len(words)
    for start, length in matches(words[:subject], cues.containers):
        dropped.update(range(start, start + length))
    idle = word_set(cues.question_words) | word_set(cues.filler)
    if all(index in dropped or word in idle for index, word in enumerate(words)):
        return without_courtesy(message, cues)
    pieces: list[str] = []
    at = spans[0][0] if first else 0
    for index in sorted(dropped):
        pieces.append(message.text[at : spans[index][0]])
        at = spans[index][1]
    return " ".join("".join([*pieces, message.text[at:]]).split())


def tail_of(history: Iterable[tuple[str, str]]) -> tuple[TailEntry, ...]:
    """Return *history* (role and text, the oldest first) as the last messages of a conversation. The roles `ASSISTANT`
    and ``agent`` are the bot's."""
    return tuple(
        TailEntry(speaker=ASSISTANT if role in (ASSISTANT, "agent") else role, text=text, turn_id="")
        for role, text in history
    )


def earlier_questions(tail: Sequence[TailEntry], cues: Cues = ENGLISH) -> tuple[str, ...]:
    """Return people's messages in the last turns of *tail*, the oldest first, as `search_text`, without small talk.

    Messages that were answered together are one turn.
    """
    newest = islice(_newest_turns(tail, cues), EARLIER_TURNS)
    return tuple(search_text(turn, cues) for turn in newest)[::-1]


def _newest_turns(tail: Sequence[TailEntry], cues: Cues) -> Iterator[FoldedText]:
    by_people = [entry for entry in reversed(tail) if entry.speaker != ASSISTANT]
    for _, turn in groupby(enumerate(by_people), key=lambda item: item[1].turn_id or item[0]):
        text = "\n".join(entry.text for _, entry in reversed(list(turn)))[:EARLIER_MAX_CHARACTERS]
        message = FoldedText.of(text)
        if text.strip() and not is_small_talk(message, cues):
            yield message


def without_courtesy(text: Text, cues: Cues = ENGLISH) -> str:
    """Return *text* without the greetings, thanks and polite requests before its question.

    "Good morning, could you tell me how long probation is?" asks "how long probation is?". A greeting ends with a
    punctuation mark, or before a question or a request: "Good Friday" is none. Returns all of *text* if nothing else
    would be left.
    """
    message = FoldedText.of(text)
    first = _first_word_of_question(message, cues)
    return message.text[message.spans[first][0] :] if first else message.text


def _first_word_of_question(message: FoldedText, cues: Cues) -> int:
    """Return the first word behind greetings, thanks and polite requests; 0 if nothing would be left."""
    words = message.words
    at = 0
    while at < len(words):
        if (after := _end_of_request(words, at, cues)) > at:
            if after < len(words) and words[after] not in word_set(cues.question_words):
                return at  # "tell me a joke" is no question
        elif at and (words[at],) in phrase_set(cues.follow_ups):
            after = at + 1
        else:
            after = _end_of_greeting(message, at, cues)
        if after == at:
            return at
        at = after
    return 0


def _end_of_request(words: tuple[str, ...], at: int, cues: Cues) -> int:
    """Return the word behind the polite request that begins with the word *at* ("please", "could you please tell me");
    *at* itself if there is none."""
    end = at
    while True:
        asked = _end_of_courtesies(words, end, cues)
        to_tell = _end_of_courtesies(words, asked + phrase_at(words, asked, cues.asks_somebody), cues)
        told = phrase_at(words, to_tell, cues.asks_to_tell)
        after = to_tell + told if told else asked
        if after == end:
            return end
        end = after


def _end_of_courtesies(words: tuple[str, ...], at: int, cues: Cues) -> int:
    while length := phrase_at(words, at, cues.courtesies):
        at += length
    return at


def _end_of_greeting(message: FoldedText, at: int, cues: Cues) -> int:
    """Return the word behind the greeting that begins with the word *at*; *at* itself if there is none."""
    words, spans = message.words, message.spans
    end = at + phrase_at(words, at, cues.small_talk)
    if end == at:
        return at
    starts = word_set(cues.question_words) | word_set(cues.follow_ups)
    for after in range(end, len(words)):
        mark = message.text[spans[after - 1][1] : spans[after][0]].strip(" '’")
        if mark or words[after] in starts or _end_of_request(words, after, cues) > after:
            return after
        if words[after] not in word_set(cues.filler):
            return at
    return len(words)


# Cues in a message


def _names_documents(message: FoldedText, cues: Cues) -> bool:
    words = message.words
    if _URL.search(message.text) or any(_is_address(match, cues) for match in _DOTTED.finditer(message.text)):
        return True
    return has_cue(words, cues.documents, cues) or (
        has_cue(words, cues.search, cues) and (has_cue(words, cues.anchors, cues) or has_cue(words, cues.parts, cues))
    )


def _is_address(match: re.Match[str], cues: Cues) -> bool:
    """Say whether a *match* of `_DOTTED` is a file or a site: "pricing.md"; not "node.js", an idiom, and not "I'm
    done.so what", in which only the space is missing."""
    labels, ending = match[1], match[2].lower()
    if words_of(match[0]) in phrase_set(cues.idioms):
        return False
    if ending in word_set(cues.file_endings):
        return True
    if ending not in word_set(cues.domains):
        return False
    return ending not in word_set(cues.domains_that_are_words) or labels.count(".") > 1 or bool(match[3])


def _implies_documents(message: FoldedText, cues: Cues) -> bool:
    words = message.words
    return len(words) >= MIN_QUESTION_WORDS and is_question(message, cues) and has_cue(words, cues.anchors, cues)


def _only_continues(words: tuple[str, ...], cues: Cues) -> bool:
    """Say whether the message, politeness aside, only says to go on."""
    filler = word_set(cues.filler)
    rest = tuple(word for is_polite, word in _marked_small_talk(words, cues) if not is_polite and word not in filler)
    return rest in phrase_set(cues.continues)


def _is_small_talk(message: FoldedText, cues: Cues) -> bool:
    """Say whether the message is only small talk and filler; punctuation and emoji alone are."""
    words = message.words
    if not words:
        return True
    marked = _marked_small_talk(words, cues)
    if not any(is_polite for is_polite, _ in marked):
        return False
    filler = word_set(cues.filler)
    if all(is_polite or word in filler for is_polite, word in marked):
        return True
    return _greets_name(message, cues)


def _greets_name(message: FoldedText, cues: Cues) -> bool:
    """Say whether the message is a greeting and one name: "Hello Anna!"."""
    words = message.words
    start, end = message.spans[-1]
    is_name = message.text[start:end].istitle() and words[-1] not in word_set(cues.question_words)
    ends = message.text[end:].strip(" !.,\n\t")
    return is_name and not ends and words[:-1] in phrase_set(cues.greetings)


def _marked_small_talk(words: tuple[str, ...], cues: Cues) -> list[tuple[bool, str]]:
    """Return each of *words* with whether it belongs to small talk."""
    polite = {index for start, length in matches(words, cues.small_talk) for index in range(start, start + length)}
    return [(index in polite, word) for index, word in enumerate(words)]
