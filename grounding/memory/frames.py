"""Choose the frame of a message by its cues. Pure."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.message import AgentRuntimeError
from grounding.memory.records import Type
from grounding.strategy import ENGLISH, Cues, matches, phrase_problem, phrases, word_set, words_of

# ---- frame ----
#
# The data types of frames. `grounding.memory.frames` has those that ship, FRAMES.toml a workspace's own.


CONVERSATION = "conversation"
"""The frame of a message that asks for nothing in particular. It has no block."""
QUESTION = "question"
"""The frame of a question without a cue."""
LOADED = (Type.DECISION, Type.FACT, Type.PROCEDURE, Type.EPISODE, Type.ITEM)
"""The types that share the block of records, in their order there. Censors have a block of their own."""
UNNAMED_PRIORITY = 0.5
"""The priority of a type that a frame does not mention."""


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


# ---- shipped ----
#
# The frames that ship, with English, German, French and Spanish cues. FRAMES.toml adds those of a workspace.


_DECISION, _FACT, _PROCEDURE = Type.DECISION, Type.FACT, Type.PROCEDURE
_EPISODE, _ITEM = Type.EPISODE, Type.ITEM

_FRAMES = (
    Frame(
        CONVERSATION,
        "Talking: nothing in particular is asked for.",
        priorities={_FACT: 0.8, _EPISODE: 0.8, _ITEM: 0.6, _DECISION: 0.4, _PROCEDURE: 0.2},
        shape={_DECISION: 0.5, _FACT: 0.5, _PROCEDURE: 0.25, _EPISODE: 0.75, _ITEM: 0.5},
    ),
    Frame(
        QUESTION,
        "A question: answer it from what is known, and say what is not.",
        ("What is known about this?", "How sure is it, and how old?"),
        {_FACT: 1.0, _DECISION: 0.7, _PROCEDURE: 0.5, _EPISODE: 0.5, _ITEM: 0.5},
        {_FACT: 1.25, _DECISION: 0.75, _PROCEDURE: 0.75},
    ),
    Frame(
        "task",
        "Something is to be done: follow what has worked, and keep track of what is left.",
        ("How was this done before?", "What is done, what is open, and by when?", "What could go wrong?"),
        {_PROCEDURE: 1.0, _ITEM: 0.9, _FACT: 0.6, _DECISION: 0.6, _EPISODE: 0.4},
        {_PROCEDURE: 1.25, _ITEM: 1.5, _DECISION: 0.75},
        phrases("""
            remind me, to do, todo, todos, to-do, task, tasks, deadline, schedule, set up, how do i, how do we
            how to, step by step, steps, checklist, deploy, install, migrate, release, prepare, plan the, next steps
            organise, organize, draft the, book a, order the, fill in
            erinnere mich, aufgabe, aufgaben, frist, fällig, termin, termine, wie mache ich, wie geht, schritte
            schritt für schritt, checkliste, einrichten, installieren, veröffentlichen, vorbereiten, nächste schritte
            rappelle-moi, tâche, tâches, échéance, comment faire, étapes, étape par étape, installer, déployer
            préparer, prochaines étapes
            recuérdame, tarea, tareas, plazo, cómo hago, cómo se hace, pasos, paso a paso, instalar, desplegar
            preparar, próximos pasos
        """),
        rank=1,
    ),
    Frame(
        "creative",
        "Something new is to be made: offer several different ideas before refining one.",
        ("Who is it for, and in what tone?", "What has been tried, and what was liked?"),
        {_FACT: 0.8, _EPISODE: 0.8, _DECISION: 0.4, _PROCEDURE: 0.4, _ITEM: 0.3},
        {_DECISION: 0.5, _PROCEDURE: 0.5, _EPISODE: 1.25},
        phrases("""
            brainstorm, brainstorming, ideas for, idea for, come up with, imagine, invent, slogan, slogans, tagline
            story, poem, write a poem, write a story, name for, names for, creative, headline, headlines, lyrics
            ideen für, idee für, denk dir, erfinde, gedicht, geschichte, namen für, kreativ, überschrift
            idées pour, idée pour, invente, poème, histoire, noms pour, créatif, créative
            ideas para, inventa, poema, cuento, nombres para, creativo, creativa, lluvia de ideas
        """),
        rank=2,
    ),
    Frame(
        "decision",
        "A choice is to be made: weigh the alternatives against what was decided before and why.",
        (
            "What are we optimising for?",
            "What did we decide last time, and what came of it?",
            "What are the constraints, and which alternatives are there?",
        ),
        {_DECISION: 1.0, _PROCEDURE: 0.8, _FACT: 0.6, _EPISODE: 0.4, _ITEM: 0.3},
        {_DECISION: 1.5, _PROCEDURE: 1.0, _EPISODE: 0.75, _ITEM: 0.5},
        phrases("""
            should we, should i, shall we, decide, deciding, decision, decisions, choose, choosing, which option
            which one should, better to, or should, pros and cons, trade-off, trade-offs, tradeoff, tradeoffs
            alternatives, alternative to, instead of, compare, versus, vs, prefer, recommend, recommendation, worth it
            worth using, would it be better, evaluate, go with, switch to, opt for
            sollen wir, sollten wir, soll ich, sollte ich, entscheiden, entscheidung, entscheidungen, wählen
            welche option, besser, vor- und nachteile, alternativen, statt, vergleiche, vergleichen, empfiehlst
            empfehlung, lohnt sich
            devrions-nous, devrait-on, dois-je, décider, décision, décisions, choisir, quelle option, avantages
            inconvénients, comparer, au lieu de, recommandes, vaut-il mieux
            deberíamos, debería, decidir, decisión, decisiones, elegir, qué opción, ventajas, desventajas, comparar
            en lugar de, recomiendas, conviene
        """),
        rank=3,
    ),
    Frame(
        "debugging",
        "Something does not work: find the cause before changing anything.",
        (
            "What exactly happens, and since when?",
            "What was changed last?",
            "Has this happened before, and what was it then?",
        ),
        {_EPISODE: 1.0, _PROCEDURE: 0.9, _FACT: 0.7, _DECISION: 0.5, _ITEM: 0.3},
        {_EPISODE: 1.5, _PROCEDURE: 1.25, _DECISION: 0.75, _ITEM: 0.5},
        phrases("""
            bug, bugs, error, errors, exception, exceptions, stack trace, stacktrace, traceback, crash, crashes, crashed
            crashing, broken, breaks, fail, fails, failed, failing, failure, does not work, doesn't work, not working
            isn't working, stopped working, won't start, debug, debugging, hangs, timeout, timeouts, times out
            segfault, regression, what is wrong, what's wrong, went wrong, root cause, investigate, outage
            fehler, fehlermeldung, absturz, abgestürzt, stürzt ab, kaputt, funktioniert nicht, geht nicht mehr
            geht nicht, klappt nicht, fehlgeschlagen, schlägt fehl, hängt, ursache, ausfall
            erreur, erreurs, plantage, plante, cassé, cassée, ne marche pas, ne fonctionne pas, marche plus, échoue
            panne, bogue
            errores, fallo, fallos, falla, se cuelga, no funciona, dejó de funcionar, roto, rota, avería, depurar
        """),
        rank=4,
    ),
)

ACTING = phrases("""
    go ahead, do it, let's do it, let's go with, we'll go with, let's do that, do that, proceed, ship it, make it so
    as decided, as we decided, implement it, roll it out, execute, carry it out, deploy it, merge it
    mach das, leg los, los geht's, machen wir so, so machen wir, wie beschlossen, wie entschieden, setz es um
    vas-y, allons-y, faisons ça, fais-le, comme décidé, procède
    hazlo, adelante, hagámoslo, como decidimos, procede
""")
"""Cues that tell the bot to go ahead with a decision."""

SHIPPED = Frames({frame.name: frame for frame in _FRAMES}, ACTING)
"""In the order in which they are displayed."""


# ---- choosing ----


FrameReason = Literal["cue", "question", "goes_on", "nothing_asked"]
FEW_WORDS = 4
"""A message of at most this many words besides politeness continues the one before, unless a cue says otherwise."""
LONGEST_CONSIDERED_CHARACTERS = 20_000
_SENTENCE_END = re.compile(r"[.!\n]+")
_QUESTION_MARK = re.compile(r"[?？؟]")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The frame of a message, the reason, and the cue found. ``acts``: the message says to go ahead with a decision."""

    frame: Frame
    reason: FrameReason
    cue: str = ""
    acts: bool = False


def choose(text: str, frames: Frames = SHIPPED, earlier: Sequence[str] = (), cues: Cues = ENGLISH) -> Chosen:
    """Choose the frame for *text*, the user's own words. *earlier* are the messages just before, oldest first.

    The frame with the most distinct cues wins, then the higher rank, then the first name. Without a cue a question gets
    the question frame; a few words ("and the other one?") continue in the frame of the message before; all else is
    conversation. Small talk has no cues and changes nothing. Deterministic.
    """
    text = unicodedata.normalize("NFKC", text[:LONGEST_CONSIDERED_CHARACTERS])
    words = words_of(text)
    acts = any(True for _ in matches(words, frames.acting))
    seen = _best_by_cues(words, frames)
    if seen is not None:
        return Chosen(seen[0], "cue", seen[1], acts)
    if earlier and len(_without_small_talk(words, cues)) <= FEW_WORDS and words:
        before = _best_by_cues(words_of(earlier[-1][:LONGEST_CONSIDERED_CHARACTERS]), frames)
        if before is not None:
            return Chosen(before[0], "goes_on", before[1], acts)
    if _asks(text, cues):
        return Chosen(frames[QUESTION], "question", acts=acts)
    return Chosen(frames[CONVERSATION], "nothing_asked", acts=acts)


def _best_by_cues(words: tuple[str, ...], frames: Frames) -> tuple[Frame, str] | None:
    """Return the frame with the most distinct cues in *words*, and its longest cue."""
    best: tuple[int, int, str] | None = None
    found: dict[str, str] = {}
    for frame in frames.by_name.values():
        phrases = {words[start : start + length] for start, length in matches(words, frame.cues)}
        if not phrases:
            continue
        longest: tuple[str, ...] = max(phrases, key=lambda phrase: (len(phrase), phrase))
        found[frame.name] = " ".join(longest)
        rank = (-len(phrases), -frame.rank, frame.name)
        best = rank if best is None else min(best, rank)
    return None if best is None else (frames[best[2]], found[best[2]])


def _without_small_talk(words: tuple[str, ...], cues: Cues) -> tuple[str, ...]:
    """Return *words* without politeness and filler."""
    covered = {at + place for at, length in matches(words, cues.small_talk) for place in range(length)}
    return tuple(word for at, word in enumerate(words) if at not in covered and word not in word_set(cues.filler))


def _asks(text: str, cues: Cues) -> bool:
    """Say whether *text* is a question, by its mark or by the first word of a sentence, ignoring politeness."""
    if _QUESTION_MARK.search(text):
        return True
    said = (_without_small_talk(words_of(sentence), cues) for sentence in _SENTENCE_END.split(text))
    return any(any(start == 0 for start, _ in matches(words, cues.question_words)) for words in said if words)


# ---- complexity ----
#
# Estimate the demands of a message from its form alone. Pure.
#
# complexity = .35 length + .25 clauses + .20 questions + .20 particulars, each part between 0 and 1:
#
# - length: words / `LONG_WORDS`;
# - clauses: commas, semicolons, colons, line ends and joining words / `MANY_CLAUSES`;
# - questions: question marks beyond the first / `MANY_QUESTIONS`;
# - particulars: numbers, capitalised names inside sentences, code and quotes / `MANY_PARTICULARS`.
#
# The flexible budgets are multiplied by `SMALLEST` + (`LARGEST` - `SMALLEST`) · complexity: .5 for "who?", 1.0 for a
# message of some 40 words with a few clauses, 1.5 for a page. The weights are our choice. Only the message decides,
# and a
# further word never makes a budget smaller.


LONG_WORDS = 120
MANY_CLAUSES = 10
MANY_QUESTIONS = 3
MANY_PARTICULARS = 8
SMALLEST, LARGEST = 0.5, 1.5
CONSIDERED_CHARACTERS = 20_000

_WORD = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(
    r"[,;:\n、，；]|\b(?:and|or|but|because|if|when|while|although|unless|und|oder|aber|weil|wenn|falls|obwohl"
    r"|et|ou|mais|parce|si|quand|y|o|pero|porque|cuando|aunque)\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"[?？؟]")
_PARTICULAR = re.compile(r"\d+(?:[.,:]\d+)*|(?<=[a-z,;] )[A-Z]\w+|`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”")


def complexity(text: str) -> float:
    """Return the complexity, 0 to 1."""
    text = text[:CONSIDERED_CHARACTERS]
    return (
        0.35 * _part(_count(_WORD, text), LONG_WORDS)
        + 0.25 * _part(_count(_CLAUSE, text), MANY_CLAUSES)
        + 0.20 * _part(_count(_QUESTION, text) - 1, MANY_QUESTIONS)
        + 0.20 * _part(_count(_PARTICULAR, text), MANY_PARTICULARS)
    )


def scale(text: str) -> float:
    """Return the factor on the flexible budgets."""
    return SMALLEST + (LARGEST - SMALLEST) * complexity(text)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _part(count: int, many: int) -> float:
    return min(max(count, 0) / many, 1.0)


# ---- file ----
#
# Read and check ``FRAMES.toml``, a workspace's changes to the frames. Pure.
#
# ```toml
# [frames.incident]                         # a new frame, or changes to one that ships
# description = "A service is down: restore it first, explain later."
# questions = ["Who is affected?", "What was deployed last?"]
# cues = ["pager", "sev1"]                  # added to the frame's cues
# remove = ["outage"]                       # removed from them
# priorities = { episode = 1.0, procedure = 0.9 }
# shape = { episode = 1.5 }
# rank = 5
#
# [acting]
# add = ["make the change"]
# remove = ["execute"]
# ```


MAX_FRAMES = 32
MAX_PROBLEMS = 10
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_Phrases = Annotated[tuple[str, ...], Field(max_length=500)]
_Sentence = Annotated[str, Field(min_length=1, max_length=200)]
_Weights = dict[str, Annotated[float, Field(ge=0.0, le=4.0)]]


class InvalidFrames(AgentRuntimeError):
    """The file of frames cannot be used. The text names every problem and what would be valid."""

    user_text = "These frames cannot be used."


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Changes(_Strict):
    description: str | None = Field(default=None, max_length=400)
    questions: tuple[_Sentence, ...] | None = Field(default=None, max_length=8)
    cues: _Phrases = ()
    remove: _Phrases = ()
    priorities: _Weights = {}
    shape: _Weights = {}
    rank: int | None = Field(default=None, ge=0, le=1000)


class _Acting(_Strict):
    add: _Phrases = ()
    remove: _Phrases = ()


class _File(_Strict):
    frames: dict[str, _Changes] = Field(default={}, max_length=MAX_FRAMES)
    acting: _Acting = _Acting()


def parse(text: str) -> _File:
    """Parse *text*. Raises `InvalidFrames` with all problems."""
    try:
        given = _File.model_validate(tomllib.loads(text))
    except RecursionError:
        raise InvalidFrames("no TOML that can be read: brackets in brackets, too deep") from None
    except ValidationError as error:
        raise _invalid([f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors()]) from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise InvalidFrames(f"no TOML: {error}") from error
    problems = [f"{name!r} is no name of a frame: use a-z, 0-9, - and _" for name in given.frames if not _is_name(name)]
    for name, one in given.frames.items():
        problems += _unknown_types(f"{name}.priorities", one.priorities) + _unknown_types(f"{name}.shape", one.shape)
        problems += [f"{name}.priorities: {value} is more than 1" for value in one.priorities.values() if value > 1]
        problems += [f"{name}.cues: {problem}" for phrase in one.cues if (problem := phrase_problem(phrase))]
    problems += [f"acting.add: {problem}" for phrase in given.acting.add if (problem := phrase_problem(phrase))]
    if problems:
        raise _invalid(problems)
    return given


def _invalid(problems: list[str]) -> InvalidFrames:
    shown = problems[:MAX_PROBLEMS]
    more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
    return InvalidFrames("; ".join(shown) + more)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _unknown_types(where: str, given: Mapping[str, float]) -> list[str]:
    return [f"{where}: {name!r} is no type of record: use {', '.join(Type)}" for name in given if name not in set(Type)]


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
    for given in map(parse, files):
        by_name = dict(frames.by_name)
        for name, changes in given.frames.items():
            by_name[name] = _changed(by_name.get(name, Frame(name)), changes)
        frames = Frames(by_name, _phrases(frames.acting, given.acting.add, given.acting.remove))
    return frames


def _changed(frame: Frame, changes: _Changes) -> Frame:
    return replace(
        frame,
        description=frame.description if changes.description is None else changes.description,
        questions=frame.questions if changes.questions is None else changes.questions,
        priorities={**frame.priorities, **_by_type(changes.priorities)},
        shape={**frame.shape, **_by_type(changes.shape)},
        cues=_phrases(frame.cues, changes.cues, changes.remove),
        rank=frame.rank if changes.rank is None else changes.rank,
    )


def _by_type(given: Mapping[str, float]) -> dict[Type, float]:
    return {Type(name): value for name, value in given.items()}


def _phrases(held: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...]) -> tuple[str, ...]:
    gone = {phrase.strip().lower() for phrase in remove}
    more = (phrase.strip().lower() for phrase in add)
    return tuple(dict.fromkeys(phrase for phrase in (*held, *more) if phrase not in gone))


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
