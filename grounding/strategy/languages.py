"""The cue sets that ship (``cue_sets/*.toml``), and a workspace's changes to them (``CUES.toml``).

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
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError
from grounding.strategy.cues import KINDS, Cues, phrases, words_of

MAX_PHRASES = 2000
"""Per file."""
MAX_PHRASE_CHARACTERS = 100
MAX_PROBLEMS = 10
_PARTS = ("add", "remove")
_KEYS = ("languages", *_PARTS)


def _shipped(language: str) -> Cues:
    text = (Path(__file__).parent / "cue_sets" / f"{language}.toml").read_text(encoding="utf-8")
    return Cues(**{kind: phrases(value) for kind, value in tomllib.loads(text).items()})


LANGUAGES = {language: _shipped(language) for language in ("french", "german", "spanish")}
"""The cue sets that a workspace may choose beside English."""
_REQUESTS = ("courtesies", "asks_to_tell")
ENGLISH = _shipped("english").extended(
    **{kind: tuple(one for cues in LANGUAGES.values() for one in getattr(cues, kind)) for kind in _REQUESTS}
)
"""The cues of every workspace. Polite words before a question are known in all languages that ship."""


def joined_cues(languages: Iterable[str]) -> Cues:
    """Return the cues of English and *languages* together. Raises KeyError for a language that does not ship."""
    return reduce(Cues.joined, (LANGUAGES[language] for language in languages), ENGLISH)


class InvalidCues(AgentRuntimeError):
    """The file of cues cannot be used. The text names every problem and what would be valid."""

    user_text = "These cues cannot be used."


@dataclass(frozen=True, slots=True)
class Changes:
    """The contents of one file."""

    languages: tuple[str, ...] = ()
    add: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remove: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@lru_cache(maxsize=256)
def cues_of(files: tuple[str, ...]) -> Cues:
    """Return the cues with the changes of *files*, the least specific first: languages add up, then each file adds and
    removes.

    The same files give the same object. Raises `InvalidCues`.
    """
    changes = [parse(text) for text in files]
    cues = joined_cues(dict.fromkeys(language for one in changes for language in one.languages)) if changes else ENGLISH
    for one in changes:
        cues = cues.extended(**one.add).without(**one.remove)
    return cues


def parse(text: str) -> Changes:
    """Parse *text*. Raises `InvalidCues` with all problems."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InvalidCues("no TOML that can be read: brackets in brackets, too deep") from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise InvalidCues(f'no TOML, such as add.documents = ["price book"]: {error}') from error
    problems = [f"{key!r} is unknown: use languages, [add] and [remove]" for key in table if key not in _KEYS]
    languages = _languages(table.get("languages", []), problems)
    parts = {part: _phrases(part, table.get(part, {}), problems) for part in _PARTS}
    if sum(len(phrases) for kinds in parts.values() for phrases in kinds.values()) > MAX_PHRASES:
        problems.append(f"more than {MAX_PHRASES} phrases")
    if problems:
        shown = problems[:MAX_PROBLEMS]
        more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
        raise InvalidCues("; ".join(shown) + more)
    return Changes(languages, **parts)


def problem_in(text: str) -> str:
    """Return the problems of *text* as a file of cues; empty if there are none."""
    try:
        parse(text)
    except InvalidCues as error:
        return str(error)
    return ""


def phrase_problem(phrase: object) -> str:
    """Return the problem of *phrase* as a cue; empty if there is none."""
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


def as_table(cues: Cues, kinds: Iterable[str] = KINDS) -> dict[str, list[str]]:
    """Return *cues* by kind, for display."""
    return {kind: list(getattr(cues, kind)) for kind in kinds}


def _languages(value: object, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(value, list):
        problems.append('languages must be a list, such as ["german"]')
        return ()
    known = [one for one in value if isinstance(one, str) and one in LANGUAGES]
    unknown = [one for one in value if one not in known]
    problems.extend(f"language {one!r} does not ship: use {', '.join(LANGUAGES)}" for one in unknown)
    return tuple(known)


def _phrases(part: str, table: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        problems.append(f"{part} must be a table: [{part}]")
        return {}
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, texts in table.items():
        if kind not in KINDS:
            problems.append(f"{part}.{kind} is no kind of cue: use {', '.join(KINDS)}")
        elif not isinstance(texts, list):
            problems.append(f'{part}.{kind} must be a list of phrases, such as ["price book"]')
        else:
            kinds[kind] = tuple(str(one).strip().lower() for one in texts)
            problems.extend(f"{part}.{kind}: {problem}" for one in texts if (problem := phrase_problem(one)))
    return kinds
