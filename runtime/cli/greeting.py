"""The first screen of a chat."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

from config.settings import EXTRACTIVE
from runtime.cli.invocation import as_typed
from runtime.workspaces import SAMPLE

EXAMPLES = (
    "What is our password policy?",
    "Which document says who approves a refund of 3000 euros?",
    "What does the on-call runbook say about acknowledging a page?",
)
"""Questions that the sample workspace's documents answer."""

WIDEST = 100


@dataclass(frozen=True)
class Greeting:
    """What the first screen is about. ``documents`` is None where they cannot be searched; ``model`` is
    None for the bundled one; ``remote`` says that another process answers."""

    workspace: str
    documents: int | None
    model: str | None
    remote: bool


def greeting(about: Greeting, width: int | None = None) -> str:
    """The first screen, at most *width* characters wide (the terminal's, where it is None)."""
    wide = min(width or shutil.get_terminal_size().columns, WIDEST)
    paragraphs = [f"Agent Runtime. {_grounded(about)}", _answers(about)]
    if about.workspace == SAMPLE and about.documents:
        paragraphs.append("Try:\n" + "\n".join(f"  {question}" for question in EXAMPLES))
    paragraphs.append("The sources are below each answer. `agent-runtime explain` shows what the model was told.")
    paragraphs.append("/help lists the commands. /quit or Ctrl-D ends the chat.")
    return "\n".join(_wrapped(as_typed(paragraph), wide) for paragraph in paragraphs) + "\n"


def _grounded(about: Greeting) -> str:
    where = f"This chat is in the workspace {about.workspace!r}"
    if about.documents is None:
        return f"{where}. Its documents cannot be searched now: `agent-runtime doctor` says why."
    if about.documents == 0:
        return f"{where}. It has no documents yet: `agent-runtime index -w {about.workspace} PATH` adds some."
    noun = "document" if about.documents == 1 else "documents"
    return f"{where}. Answers use its {about.documents} {noun}."


def _answers(about: Greeting) -> str:
    if about.remote:
        return "The agent-runtime process that runs on this data folder answers."
    if about.model not in (None, EXTRACTIVE):
        return f"Model: {about.model}."
    return (
        "No language model is set, so answers are quotations from the documents. `agent-runtime setup` adds a language "
        "model."
    )


def _wrapped(paragraph: str, width: int) -> str:
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())), break_on_hyphens=False)
        for line in paragraph.split("\n")
    )
