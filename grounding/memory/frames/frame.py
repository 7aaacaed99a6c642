"""The data types of frames. `grounding.memory.frames.shipped` has those that ship, FRAMES.toml a workspace's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grounding.memory.records.record import Type

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
