"""What a frame is. Data: those that ship stand in `grounding.memory.frames.shipped`, a workspace's in FRAMES.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grounding.memory.records.record import Type

CONVERSATION = "conversation"
"""The frame of a message that asks for nothing in particular: it has no block of its own."""
QUESTION = "question"
"""The frame of a question without a cue."""
LOADED = (Type.DECISION, Type.FACT, Type.PROCEDURE, Type.EPISODE, Type.ITEM)
"""The types that share the block of records, in the order in which they stand there; censors have their own."""
UNNAMED_PRIORITY = 0.5
"""Of a type that a frame says nothing about."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How a kind of message is gone about.

    ``priorities`` (0 to 1 per type) weigh in a record's score; ``shape`` is a factor on a type's budget (1 where it
    says nothing). ``cues`` are words and phrases in lower case, matched as whole words without accents, in all
    languages at once. Of two frames whose cues are seen the one with the larger ``rank`` is chosen.
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
    """The frames that hold, by name, and the cues by which somebody says to go ahead with what was decided."""

    by_name: Mapping[str, Frame]
    acting: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Frame:
        return self.by_name[name]
