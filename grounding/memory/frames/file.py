"""Read and check ``FRAMES.toml``, a workspace's changes to the frames. Pure.

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
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.message import AgentRuntimeError
from grounding.cues.file import phrase_problem
from grounding.memory.frames.frame import Frame, Frames
from grounding.memory.frames.shipped import SHIPPED
from grounding.memory.records.record import Type

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
