"""Formatters: text for prompts that comes from elsewhere than this package, as blocks of its own or in the place of
another's. What a distribution says of one in code is checked when the process starts.

An `ArtifactInjector` adds a block, a `PromptTemplate` says in another form what a block says. Who calls them, and when,
is for `runtime.formatters`; their text becomes part of the turn's input, so that a stored turn does without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grounding.prompt_input import BOUNDARY, PLACES, Volatility, may_follow

MAX_BUDGET_TOKENS = 20_000
_NAME = re.compile(r"[a-z][a-z0-9_]{1,31}")
_LAST = ("query", "hint")
_FIGURES = ("user", "qmd", "total", "tools")
"""``tokens_<name>`` of these is told of every prompt beside that of its blocks, and is no block's."""
RENDERED = ("summary", "retrieved", "hint")
"""Blocks that may be said in another form. What must hold is not among them, nor what was said and is told apart by
where it stands."""


@dataclass(frozen=True, slots=True)
class Request:
    """For what a text is wanted. ``query`` is what people just said: empty for text that outlasts a turn; so is
    ``context_id`` for text that outlasts a session."""

    workspace_id: str
    context_id: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactInjector:
    """Adds the block *name* behind the block *after*, in its message.

    ``volatility`` says how long the text stays: ``STATIC`` as long as the process, one for a workspace; ``SESSION``
    as long as the session; ``TURN`` is made for each message, and may only stand where all else is. ``text`` is called
    in a thread of its own, and may take as long as the setting FORMATTER_TIMEOUT_SECONDS says. It gives the same text
    for the same request as long as what it speaks of is the same; none where there is nothing to say.
    """

    name: str
    after: str
    volatility: Volatility
    budget_tokens: int
    text: Callable[[Request], str]


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Says what the block *block* (see `RENDERED`) says in another form, within that block's own budget. ``render`` is
    given its text without the lines around it, and is called as an injector's ``text``. Labels such as
    ``[refunds.md › Windows]`` have to stay, or nothing is cited."""

    name: str
    block: str
    render: Callable[[Request, str], str]


Formatter = ArtifactInjector | PromptTemplate


def problem_of(formatter: Any) -> str:
    """What is wrong with *formatter*; empty where it can be used."""
    if not isinstance(formatter, ArtifactInjector | PromptTemplate):
        return f"expected an ArtifactInjector or a PromptTemplate, got {type(formatter).__name__}"
    name: Any = formatter.name  # its type says what it should be; somebody else's code may be otherwise
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"{name!r} is no name: use 2 to 32 of a-z, 0-9 and _, a letter first"
    if name in PLACES:
        return f"the name {name!r} is taken by a block that there is"
    if name in _FIGURES:
        return f"the name {name!r} is taken by a figure of prompts"
    return _wrong_template(formatter) if isinstance(formatter, PromptTemplate) else _wrong_injector(formatter)


def _wrong_template(template: Any) -> str:
    if template.block not in RENDERED:
        return f"{template.block!r} is no block that is rendered: expected one of {', '.join(RENDERED)}"
    return "" if callable(template.render) else "render is not callable"


def _wrong_injector(injector: Any) -> str:
    place = PLACES.get(injector.after) if isinstance(injector.after, str) else None
    if place is None or place.name in _LAST:
        places = ", ".join(name for name in PLACES if name not in _LAST)
        return f"there is no place after {injector.after!r}: expected one of {places}"
    if not isinstance(injector.volatility, Volatility) or injector.volatility is Volatility.APPENDED:
        return f"the volatility {injector.volatility!r} is none that a formatter can have: STATIC, SESSION or TURN"
    if not may_follow(place, injector.volatility):
        return (
            f"what changes with every turn stands behind {BOUNDARY.name!r} or later, not behind {place.name!r}: "
            "everything that follows it would be computed anew each time"
        )
    budget = injector.budget_tokens
    if not isinstance(budget, int) or isinstance(budget, bool) or not 0 < budget <= MAX_BUDGET_TOKENS:
        return f"budget_tokens is {budget!r}: expected 1 to {MAX_BUDGET_TOKENS}"
    return "" if callable(injector.text) else "text is not callable"
