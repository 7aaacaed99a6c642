"""Conversations to measure prompts with: made up, the same every time, or read from a folder of long chats.

Three of ten turns ask for the documents. A folder holds ``corpus.jsonl``: lines of
``{"text": "user: …" or "assistant: …", "metadata": {"workspace": the chat}}`` in the order in which they were said.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

OF_TEN = 3
"""Of ten turns so many ask for the documents."""
ANSWER_SENTENCES = 9
DOCUMENT_SENTENCES = 40
LATER_MESSAGES = 60
"""Of a chat of a folder, so many messages behind the turns that are played are its documents."""

_PLACES = ("Alder Quay", "Birch Lock", "Cedar Mole", "Dune Head", "Elm Ferry", "Fern Basin", "Gull Rock", "Heron Weir")
_THINGS = (
    "crane",
    "gate",
    "pump",
    "beacon",
    "winch",
    "buoy",
    "slipway",
    "dredger",
    "pontoon",
    "hoist",
    "valve",
    "mast",
)
_STATES = ("is inspected", "was repainted", "runs warm", "stands idle", "needs a new bearing", "was moved by a metre")
_TIMES = ("on Monday", "after the storm", "at low water", "in the night shift", "since the thaw", "twice a week")
_REASONS = (
    "because the current is stronger than the builders thought",
    "so that the ferries can keep to their hours",
    "as the harbour master asked for in the spring",
    "which saves about a third of the fuel",
    "although nobody has measured it yet",
    "until the spare part comes from the yard",
)


@dataclass(frozen=True)
class Exchange:
    """One turn: what is said, and what is answered."""

    asked: str
    answered: str
    wants_documents: bool


@dataclass(frozen=True)
class Chat:
    name: str
    turns: tuple[Exchange, ...]


@dataclass(frozen=True)
class Scene:
    """Conversations of one workspace, and its documents by name."""

    chats: tuple[Chat, ...]
    documents: dict[str, str]


def _sentence(chance: random.Random) -> str:
    place, thing, state = chance.choice(_PLACES), chance.choice(_THINGS), chance.choice(_STATES)
    number = chance.randint(2, 98)
    return f"The {thing} number {number} of {place} {state} {chance.choice(_TIMES)}, {chance.choice(_REASONS)}."


def _sentences(chance: random.Random, count: int) -> str:
    return " ".join(_sentence(chance) for _ in range(count))


def made_up(chats: int, turns: int, seed: int = 7) -> Scene:
    """Conversations about a harbour. An answer takes about 250 tokens, a message 50."""
    chance = random.Random(seed)
    documents = {
        f"{place.lower().replace(' ', '-')}.md": f"# {place}\n\n"
        + "\n\n".join(
            f"## The {thing} of {place}\n\n{_sentences(chance, DOCUMENT_SENTENCES // 4)}" for thing in _THINGS
        )
        for place in _PLACES
    }
    return Scene(tuple(_made_up_chat(number, turns, chance) for number in range(chats)), documents)


def _wants_documents(turn: int, chat: int) -> bool:
    return (OF_TEN * turn + chat) % 10 < OF_TEN


def _made_up_chat(chat: int, turns: int, chance: random.Random) -> Chat:
    said = []
    for number in range(turns):
        place, thing = chance.choice(_PLACES), chance.choice(_THINGS)
        wants = _wants_documents(number, chat)
        asks = f"What do the docs say about the {thing} of {place}?" if wants else f"Is the {thing} of {place} well?"
        answer = "\n".join(_sentence(chance) for _ in range(ANSWER_SENTENCES))
        said.append(Exchange(f"{_sentence(chance)} {asks}", answer, wants))
    return Chat(f"chat-{chat}", tuple(said))


def read(folder: Path, chats: int, turns: int) -> Scene:
    """The first *turns* of the first *chats* of *folder*; what was said after them are the documents."""
    found: list[Chat] = []
    documents: dict[str, str] = {}
    for chat, (name, messages) in enumerate(islice(_messages(folder), chats)):
        pairs: list[Exchange] = []
        asked = ""
        for place, (role, text) in enumerate(messages):
            if role == "user":
                asked = text
            elif asked:
                wants = _wants_documents(len(pairs), chat)
                told = f"{asked} What do the docs say about that?" if wants else asked
                pairs.append(Exchange(told, text, wants))
                asked = ""
            if len(pairs) == turns:
                for number, (_, later) in enumerate(messages[place + 1 : place + 1 + LATER_MESSAGES]):
                    documents[f"{name}/{number:03}.md"] = later
                break
        found.append(Chat(name, tuple(pairs)))
    return Scene(tuple(found), documents)


def _messages(folder: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each chat's messages: role and text."""
    name, messages = "", list[tuple[str, str]]()
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            chat = one["metadata"]["workspace"]
            if chat != name and messages:
                yield name, messages
                messages = []
            name = chat
            role, _, text = one["text"].partition(": ")
            messages.append((role, text))
    if messages:
        yield name, messages
