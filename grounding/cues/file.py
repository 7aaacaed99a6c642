"""What a workspace changes about the cues: ``CUES.toml``, read and checked. Pure.

```toml
languages = ["german"]            # cue sets that ship, beside English
[add]
documents = ["price book", "netlist"]
[remove]
documents = ["policy"]
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from connectors.message import AgentRuntimeError
from grounding.cues.english import ENGLISH
from grounding.cues.kinds import KINDS, Cues
from grounding.cues.languages import LANGUAGES, spoken
from grounding.cues.words import words_of

MAX_PHRASES = 2000
"""Of one file. Matching looks at the phrases that begin with a word of the message, so that more would cost memory."""
MAX_PHRASE_CHARACTERS = 100
MAX_PROBLEMS = 10
_PARTS = ("add", "remove")


class InvalidCues(AgentRuntimeError):
    """A file of cues that cannot be used; the text names everything that is wrong with it and what would do."""

    user_text = "These cues cannot be used."


@dataclass(frozen=True, slots=True)
class Changes:
    """What one file says."""

    languages: tuple[str, ...] = ()
    add: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remove: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse(text: str) -> Changes:
    """What *text* says. Raises `InvalidCues` with all that is wrong."""
    try:
        given = tomllib.loads(text)
    except RecursionError:
        raise InvalidCues("no TOML that can be read: brackets in brackets, too deep") from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise InvalidCues(f'no TOML, such as add.documents = ["price book"]: {error}') from error
    problems = [f"{key!r} is unknown: use languages, [add] and [remove]" for key in given if key not in _KEYS]
    languages = _languages(given.get("languages", []), problems)
    parts = {part: _phrases(part, given.get(part, {}), problems) for part in _PARTS}
    if sum(len(phrases) for kinds in parts.values() for phrases in kinds.values()) > MAX_PHRASES:
        problems.append(f"more than {MAX_PHRASES} phrases")
    if problems:
        shown = problems[:MAX_PROBLEMS]
        more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
        raise InvalidCues("; ".join(shown) + more)
    return Changes(languages, **parts)


_KEYS = ("languages", *_PARTS)


def _languages(given: object, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(given, list):
        problems.append('languages must be a list, such as ["german"]')
        return ()
    known = [one for one in given if isinstance(one, str) and one in LANGUAGES]
    unknown = [one for one in given if one not in known]
    problems.extend(f"language {one!r} does not ship: use {', '.join(LANGUAGES)}" for one in unknown)
    return tuple(known)


def _phrases(part: str, given: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, dict):
        problems.append(f"{part} must be a table: [{part}]")
        return {}
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, phrases in given.items():
        if kind not in KINDS:
            problems.append(f"{part}.{kind} is no kind of cue: use {', '.join(KINDS)}")
        elif not isinstance(phrases, list):
            problems.append(f'{part}.{kind} must be a list of phrases, such as ["price book"]')
        else:
            kinds[kind] = tuple(str(one).strip().lower() for one in phrases)
            problems.extend(f"{part}.{kind}: {problem}" for one in phrases if (problem := phrase_problem(one)))
    return kinds


def phrase_problem(phrase: object) -> str:
    """What is wrong with *phrase* as a cue; empty where nothing is."""
    if not isinstance(phrase, str):
        return f"{phrase!r} is no text"
    if len(phrase) > MAX_PHRASE_CHARACTERS:
        return f"{phrase[:40]!r}… has more than {MAX_PHRASE_CHARACTERS} characters"
    words = words_of(phrase)
    if not words:
        return f"{phrase!r} holds no word"
    if len("".join(words)) == 1 and len(phrase.strip()) > 1:
        return f"{phrase!r} would be seen in every {words[0]!r}: signs are not compared"
    return ""


def problem_in(text: str) -> str:
    """What is wrong with *text* as a file of cues; empty where nothing is."""
    try:
        parse(text)
    except InvalidCues as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def cues_of(files: tuple[str, ...]) -> Cues:
    """The cues where *files* hold, the least specific first: languages add up, then each file adds and removes.

    The same files give the same object. Raises `InvalidCues`.
    """
    changes = [parse(text) for text in files]
    cues = spoken(dict.fromkeys(language for one in changes for language in one.languages)) if changes else ENGLISH
    for one in changes:
        cues = cues.extended(**one.add).without(**one.remove)
    return cues


def as_table(cues: Cues, kinds: Iterable[str] = KINDS) -> dict[str, list[str]]:
    """*cues* by kind, for showing."""
    return {kind: list(getattr(cues, kind)) for kind in kinds}
