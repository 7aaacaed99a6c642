"""Formatters: plug-ins that add text to prompts. This module describes and checks them.

An `ArtifactInjector` adds a block, a `PromptTemplate` renders a block in another form. `runtime.formatters` loads and
calls them; `problem_of` is the check at the start of the process. Their text becomes part of the turn's input, so that
a stored turn rebuilds its prompt without them.
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
"""Names in the event about a prompt (``tokens_<name>``) that are not names of blocks."""
RENDERED = ("summary", "retrieved", "hint")
"""Blocks that a template may render. Rules are not among them, nor messages, whose position shows who wrote them."""


@dataclass(frozen=True, slots=True)
class Request:
    """The turn that a text is for. ``query`` is the user's message, empty for text that outlasts a turn; ``context_id``
    is empty for text that outlasts a session."""

    workspace_id: str
    context_id: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactInjector:
    """Adds the block *name* behind the block *after*, in its message.

    ``volatility`` says how long the text stays: ``STATIC`` as long as the process, one for each workspace; ``SESSION``
    as long as the session; ``TURN`` text is made for each message and may only stand behind the tail. ``text`` is
    called in its own thread for at most FORMATTER_TIMEOUT_SECONDS. It returns the same text for the same request until
    its subject changes; an empty text adds no block.
    """

    name: str
    after: str
    volatility: Volatility
    budget_tokens: int
    text: Callable[[Request], str]


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Renders the block *block* (one of `RENDERED`) in another form, within that block's own budget.

    ``render`` gets the block's text without head and foot, and is called like an injector's ``text``. It must keep
    labels such as ``[refunds.md › Windows]``, or nothing can be cited.
    """

    name: str
    block: str
    render: Callable[[Request, str], str]


Formatter = ArtifactInjector | PromptTemplate


def problem_of(formatter: Any) -> str:
    """Return the problem of *formatter*; empty if it can be used."""
    if not isinstance(formatter, ArtifactInjector | PromptTemplate):
        return f"expected an ArtifactInjector or a PromptTemplate, got {type(formatter).__name__}"
    name: Any = formatter.name  # a plug-in may break its type
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
