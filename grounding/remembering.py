"""What of the typed records one turn is given, beside the other layers: the frame, records, censors, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connectors.message import ConversationKey, Scope
from grounding.budgets import Budgets
from grounding.cues.kinds import Cues
from grounding.history import last_turns
from grounding.layers import summary as summary_layer
from grounding.layers import tail as tail_layer
from grounding.memory.frames.choosing import Chosen, choose
from grounding.memory.frames.frame import Frames
from grounding.memory.selection.selecting import Looked, Selected, Selecting, Standing, There
from grounding.run_context import Calibration, Censor, FrameInput, SelectedRecord, Selection, SummaryInput, TailEntry
from grounding.strategy import search_text

SHORTEST_TOKEN_BYTES = 3
"""What of tail and summary is sure to be shown: so many bytes for each token of their budgets."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was chosen for a turn. ``selection`` is None where nothing was looked up."""

    frame: FrameInput | None = None
    records: tuple[SelectedRecord, ...] = ()
    selection: Selection | None = None
    calibration: Calibration | None = None


NOTHING = Remembered()


@dataclass(frozen=True, slots=True)
class Asked:
    """A message, and in which frame it was asked."""

    text: str
    chosen: Chosen
    earlier: tuple[str, ...]

    @property
    def frame(self) -> FrameInput:
        frame = self.chosen.frame
        return FrameInput(
            name=frame.name,
            description=frame.description,
            questions=frame.questions,
            reason=self.chosen.reason,
            cue=self.chosen.cue,
        )


@dataclass(frozen=True, slots=True)
class Remembering:
    """The records of all workspaces, as turns ask for them. The steps are apart, so that looking goes on beside the
    other layers, and choosing knows what they brought."""

    selecting: Selecting

    async def standing(self, key: ConversationKey, audience: str | None) -> Standing:
        """What holds without being searched for. Raises `connectors.message.StoreUnavailable`."""
        return await self.selecting.standing(seen_in(key, audience))

    def last_censors(self, key: ConversationKey, audience: str | None) -> tuple[Censor, ...] | None:
        """Those that were in force a moment ago; None where nobody has looked yet."""
        return self.selecting.last_standing(seen_in(key, audience))

    async def there(self, key: ConversationKey, audience: str | None, *, continues: bool) -> There:
        """What can be read before it is known what is asked. Raises `connectors.message.StoreUnavailable`."""
        return await self.selecting.there(seen_in(key, audience), key, continues=continues)

    async def look(
        self, key: ConversationKey, audience: str | None, asked: Asked, cues: Cues, there: There, standing: Standing
    ) -> Looked:
        """What there is for a message. Raises what searches raise."""
        query = search_text(asked.text, cues) if there.count else ""  # nothing is searched where there is no record
        return await self.selecting.look(
            seen_in(key, audience), query, asked.chosen, asked.earlier, there, standing.pinned
        )

    async def chosen(
        self, key: ConversationKey, turn_id: str, asked: Asked, looked: Looked, shown: Sequence[str]
    ) -> Remembered:
        """The records out of *looked*; without a *turn_id* nothing is kept for the next message. Raises
        `connectors.message.StoreUnavailable`."""
        selected: Selected = await self.selecting.selected(looked, asked.text, asked.chosen, shown)
        if selected.keep is not None and turn_id:
            await self.selecting.keep(key, selected.keep)
        return Remembered(asked.frame, selected.records, selected.selection, looked.calibration)


def asked_in(text: str, earlier: tuple[str, ...], frames: Frames, cues: Cues) -> Asked:
    """*text* in its frame, after what people asked *earlier*. Pure."""
    return Asked(text, choose(text, frames, earlier, cues), earlier)


def shown_besides(tail: Sequence[TailEntry], summary: SummaryInput | None, budgets: Budgets) -> list[str]:
    """What the prompt is sure to show of *tail* and *summary*. Pure."""
    room = min(budgets.tail_bytes, budgets.tail_tokens * SHORTEST_TOKEN_BYTES)
    said = last_turns(tail, budgets.history_turns)
    shown = list(tail_layer.section(said, budgets.tail_lines, room).pieces)
    if summary is not None:
        section, left = summary_layer.section(summary.text), budgets.summary_tokens * SHORTEST_TOKEN_BYTES
        for index in section.keep or range(len(section.pieces)):
            left -= len(section.pieces[index].encode("utf-8", "surrogatepass"))
            if left < 0:
                break
            shown.append(section.pieces[index])
    return shown


def seen_in(key: ConversationKey, audience: str | None) -> Scope:
    """Whose records are seen where a conversation's *audience* reads: the workspace's, and theirs."""
    return Scope(key.workspace_id, audience=audience)
