"""Choose the frame of a message: how the bot approaches it. Pure.

A frame says which types of records a kind of message needs, and which questions to consider. `choose` finds it by cues;
`scale` estimates how much room a message needs. The frames that ship are in ``frames.toml``; a workspace's
``FRAMES.toml`` has the same form and adds to them:

```toml
[frames.incident]                         # a new frame, or changes to one that ships
description = "A service is down: restore it first, explain later."
questions = ["Who is affected?", "What was deployed last?"]
cues = ["pager", "sev1"]                  # added to the frame's cues
remove = ["outage"]                       # removed from them
priorities = { episode = 1.0, procedure = 0.9 }
shape = { episode = 1.5 }
rank = 5

[acting]
add = ["make the change"]
remove = ["execute"]
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from connectors.message import AgentRuntimeError
from grounding.memory.records import Type
from grounding.retrieval import ASKING, term_set
from grounding.strategy import ENGLISH, Cues, FoldedText, Text, matches, phrase_problem, word_set, words_of

CONVERSATION = "conversation"
"""The frame of a message that asks for nothing in particular. It has no block."""
QUESTION = "question"
"""The frame of a question without a cue."""
LOADED = (Type.DECISION, Type.FACT, Type.PROCEDURE, Type.EPISODE, Type.ITEM)
"""The types that share the block of records, in their order there. Censors have a block of their own."""
UNNAMED_PRIORITY = 0.5
"""The priority of a type that a frame does not mention."""
FEW_TERMS = 1
"""A message that begins like a continuation ("and", "what about") and names at most so many things, continues."""
LONGEST_CONSIDERED_CHARACTERS = 20_000
MAX_FRAMES = 32
MAX_PROBLEMS = 10

FrameReason = Literal["cue", "question", "goes_on", "nothing_asked"]
_SENTENCE_END = re.compile(r"[.!\n]+")
_QUESTION_MARK = re.compile(r"[?？؟]")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Frame:
    """How the bot approaches a kind of message.

    ``priorities`` (0 to 1 per type) are part of a record's score. ``shape`` multiplies a type's budget (default 1).
    ``cues`` are lower-case words and phrases, matched as whole words without accents in all languages at once. If two
    frames have as many cues in a message, the larger ``rank`` wins.
    """

    name: str
    description: str = ""
    questions: tuple[str, ...] = ()
    priorities: Mapping[Type, float] = field(default_factory=dict)
    shape: Mapping[Type, float] = field(default_factory=dict)
    cues: tuple[str, ...] = ()
    rank: int = 0

    def priority(self, of: Type) -> float:
        return self.priorities.get(of, UNNAMED_PRIORITY)

    def share(self, of: Type) -> float:
        return self.shape.get(of, 1.0)


@dataclass(frozen=True, slots=True)
class Frames:
    """The available frames by name, and the cues that tell the bot to go ahead with a decision."""

    by_name: Mapping[str, Frame]
    acting: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Frame:
        return self.by_name[name]


# The file format


def _checked_cue(phrase: str) -> str:
    if problem := phrase_problem(phrase):
        raise ValueError(problem)
    return phrase


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a frame: use a-z, 0-9, - and _")
    return name


_Name = Annotated[str, AfterValidator(_checked_name)]
_Cues = Annotated[tuple[Annotated[str, AfterValidator(_checked_cue)], ...], Field(max_length=500)]
_Phrases = Annotated[tuple[str, ...], Field(max_length=500)]
_Sentence = Annotated[str, Field(min_length=1, max_length=200)]
_Priorities = dict[Type, Annotated[float, Field(ge=0.0, le=1.0)]]
_Shape = dict[Type, Annotated[float, Field(ge=0.0, le=4.0)]]


class InvalidFrames(AgentRuntimeError):
    """The file of frames cannot be used. The text names every problem and what would be valid."""

    user_text = "These frames cannot be used."


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Changes(_Strict):
    description: str | None = Field(default=None, max_length=400)
    questions: tuple[_Sentence, ...] | None = Field(default=None, max_length=8)
    cues: _Cues = ()
    remove: _Phrases = ()
    priorities: _Priorities = {}
    shape: _Shape = {}
    rank: int | None = Field(default=None, ge=0, le=1000)


class _Acting(_Strict):
    add: _Cues = ()
    remove: _Phrases = ()


class _File(_Strict):
    frames: dict[_Name, _Changes] = Field(default={}, max_length=MAX_FRAMES)
    acting: _Acting = _Acting()


def parse(text: str) -> _File:
    """Parse *text*. Raises `InvalidFrames` with all problems."""
    try:
        return _File.model_validate(tomllib.loads(text))
    except RecursionError:
        raise InvalidFrames("no TOML that can be read: brackets in brackets, too deep") from None
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()
        ]
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise InvalidFrames("; ".join(problems[:MAX_PROBLEMS]) + more) from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise InvalidFrames(f"no TOML: {error}") from error


def problem_in(text: str) -> str:
    """Return the problems of *text* as a file of frames; empty if there are none."""
    try:
        parse(text)
    except InvalidFrames as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def frames_of(files: tuple[str, ...]) -> Frames:
    """Return the shipped frames with the changes of *files*, the least specific first.

    The same files give the same object. Raises `InvalidFrames`.
    """
    frames = SHIPPED
    for text in files:
        frames = _apply(parse(text), frames)
    return frames


def _apply(file: _File, frames: Frames) -> Frames:
    by_name = dict(frames.by_name)
    for name, changes in file.frames.items():
        by_name[name] = _changed(by_name.get(name, Frame(name)), changes)
    return Frames(by_name, _phrases(frames.acting, file.acting.add, file.acting.remove))


def _changed(frame: Frame, changes: _Changes) -> Frame:
    return replace(
        frame,
        description=frame.description if changes.description is None else changes.description,
        questions=frame.questions if changes.questions is None else changes.questions,
        priorities={**frame.priorities, **changes.priorities},
        shape={**frame.shape, **changes.shape},
        cues=_phrases(frame.cues, changes.cues, changes.remove),
        rank=frame.rank if changes.rank is None else changes.rank,
    )


def _phrases(phrases: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...]) -> tuple[str, ...]:
    removed = {phrase.strip().lower() for phrase in remove}
    added = (phrase.strip().lower() for phrase in add)
    return tuple(dict.fromkeys(phrase for phrase in (*phrases, *added) if phrase not in removed))


SHIPPED = _apply(parse((Path(__file__).parent / "frames.toml").read_text(encoding="utf-8")), Frames({}))
"""The frames that ship, in the order in which they are displayed."""


def as_table(frames: Frames) -> dict[str, Any]:
    """Return *frames* by name, for display."""
    return {
        frame.name: {
            "description": frame.description,
            "questions": list(frame.questions),
            "priorities": {of.value: value for of, value in frame.priorities.items()},
            "shape": {of.value: value for of, value in frame.shape.items()},
            "cues": list(frame.cues),
            "rank": frame.rank,
        }
        for frame in frames.by_name.values()
    }


# Choosing


@dataclass(frozen=True, slots=True)
class Chosen:
    """The frame of a message, the reason, and the cue found. ``acts``: the message says to go ahead with a decision.

    ``cued`` are the names of all frames that have a cue in the message.
    """

    frame: Frame
    reason: FrameReason
    cue: str = ""
    acts: bool = False
    cued: frozenset[str] = frozenset()


def choose(text: Text, frames: Frames = SHIPPED, earlier: Sequence[str] = (), cues: Cues = ENGLISH) -> Chosen:
    """Choose the frame for *text*, the user's own words. *earlier* are the messages just before, oldest first.

    The frame with the most distinct cues wins, then the higher rank, then the first name. Without a cue, a message
    without content of its own ("why?", "and RabbitMQ?") continues in the frame of the message before, a question gets
    the question frame, and all else is conversation. Small talk has no cues and changes nothing. Deterministic.
    """
    message = FoldedText.of(text)
    words = message.words
    acts = any(True for _ in matches(words, frames.acting))
    own = _cues_by_frame(words, frames)
    if own:
        best = _most_cued(own, frames)
        return Chosen(best, "cue", _longest(own[best.name]), acts, frozenset(own))
    if earlier and words and _only_continues(words, cues):
        before = _cues_by_frame(words_of(earlier[-1]), frames)
        if before:
            best = _most_cued(before, frames)
            return Chosen(best, "goes_on", _longest(before[best.name]), acts)
    if _asks(message, cues):
        return Chosen(frames[QUESTION], "question", acts=acts)
    return Chosen(frames[CONVERSATION], "nothing_asked", acts=acts)


_Found = set[tuple[str, ...]]


def _cues_by_frame(words: tuple[str, ...], frames: Frames) -> dict[str, _Found]:
    """Return the distinct cues in *words* of each frame that has any."""
    found = {
        frame.name: {words[start : start + length] for start, length in matches(words, frame.cues)}
        for frame in frames.by_name.values()
    }
    return {name: cues for name, cues in found.items() if cues}


def _most_cued(found: Mapping[str, _Found], frames: Frames) -> Frame:
    """Return the frame with the most cues, then the higher rank, then the first name."""
    return frames[min(found, key=lambda name: (-len(found[name]), -frames[name].rank, name))]


def _longest(cues: _Found) -> str:
    longest: tuple[str, ...] = max(cues, key=lambda phrase: (len(phrase), phrase))
    return " ".join(longest)


def _without_small_talk(words: tuple[str, ...], cues: Cues) -> tuple[str, ...]:
    """Return *words* without politeness and filler."""
    covered = {at + place for at, length in matches(words, cues.small_talk) for place in range(length)}
    return tuple(word for at, word in enumerate(words) if at not in covered and word not in word_set(cues.filler))


def _only_continues(words: tuple[str, ...], cues: Cues) -> bool:
    """Say whether a message has no content of its own: besides politeness, question words and words to go on ("tell me
    more") it names nothing, or one thing as a continuation ("and RabbitMQ?")."""
    idle = (*cues.small_talk, *cues.polite_requests, *cues.filler, *cues.continues, *cues.question_words)
    idle += cues.follow_ups
    covered = {at + place for at, length in matches(words, idle) for place in range(length)}
    left = term_set(" ".join(word for at, word in enumerate(words) if at not in covered)) - ASKING
    begins_so = any(start == 0 for start, _ in matches(words, cues.follow_ups))
    return len(left) <= (FEW_TERMS if begins_so else 0)


def _asks(message: FoldedText, cues: Cues) -> bool:
    """Say whether *message* is a question, by its mark or by the first word of a sentence, ignoring politeness."""
    text, words, spans = message.text, message.words, message.spans
    if _QUESTION_MARK.search(text):
        return True
    breaks = [at for at in range(1, len(words)) if _SENTENCE_END.search(text, spans[at - 1][1], spans[at][0])]
    sentences = (words[start:end] for start, end in pairwise([0, *breaks, len(words)]))
    said = (_without_small_talk(sentence, cues) for sentence in sentences)
    return any(any(start == 0 for start, _ in matches(words, cues.question_words)) for words in said if words)


# Complexity of a message

LONG_WORDS = 120
MANY_CLAUSES = 10
MANY_QUESTIONS = 3
MANY_PARTICULARS = 8
SMALLEST, LARGEST = 0.5, 1.5

_WORD = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(
    r"[,;:\n、，；]|\b(?:and|or|but|because|if|when|while|although|unless|und|oder|aber|weil|wenn|falls|obwohl"
    r"|et|ou|mais|parce|si|quand|y|o|pero|porque|cuando|aunque)\b",
    re.IGNORECASE,
)
_PARTICULAR = re.compile(r"\d+(?:[.,:]\d+)*|(?<=[a-z,;] )[A-Z]\w+|`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”")


def complexity(text: str) -> float:
    """Return the complexity of a message by its form alone, from 0 to 1:

    complexity = .35 length + .25 clauses + .20 questions + .20 particulars, each part between 0 and 1:

    - length: words / `LONG_WORDS`;
    - clauses: commas, semicolons, colons, line ends and joining words / `MANY_CLAUSES`;
    - questions: question marks beyond the first / `MANY_QUESTIONS`;
    - particulars: numbers, capitalised names inside sentences, code and quotes / `MANY_PARTICULARS`.

    The weights are our choice. A further word never lowers the result.
    """
    text = text[:LONGEST_CONSIDERED_CHARACTERS]
    return (
        0.35 * _part(_count(_WORD, text), LONG_WORDS)
        + 0.25 * _part(_count(_CLAUSE, text), MANY_CLAUSES)
        + 0.20 * _part(_count(_QUESTION_MARK, text) - 1, MANY_QUESTIONS)
        + 0.20 * _part(_count(_PARTICULAR, text), MANY_PARTICULARS)
    )


def scale(text: str) -> float:
    """Return the factor on the flexible budgets: .5 for "who?", 1.0 for a message of some 40 words with a few clauses,
    1.5 for a page."""
    return SMALLEST + (LARGEST - SMALLEST) * complexity(text)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _part(count: int, many: int) -> float:
    return min(max(count, 0) / many, 1.0)
