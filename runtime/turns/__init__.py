"""Turns: durable mailboxes, the workers that empty them, and one turn from the question to the stored reply.

Start with `Turns.answer`: one turn, read top to bottom. `Mailbox` stores messages, `Worker` takes turns from it,
`PromptBuilder` builds prompts and `Manifests` stores what went into each turn.
"""

from runtime.turns.batch import AmendResult, Batch, Envelope, Lane, MailboxFull
from runtime.turns.cancel import Cancellations, notify_deleted, notify_interrupted
from runtime.turns.censors import RecordAccounting, record_rows
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.dead_letters import DeadLetters, Letter, UnknownLetter
from runtime.turns.mailbox import Mailbox
from runtime.turns.manifest import (
    REASONS,
    SAME,
    STRATEGIES,
    Manifest,
    Manifests,
    RecordsOfTurn,
    UnknownTurn,
    block_rows,
    compare_manifests,
    prefix_row,
)
from runtime.turns.material import MaterialChooser, MaterialIndexer, Materials
from runtime.turns.prompt import NO_DRAFTS, PromptBuilder, cues_in, frames_in
from runtime.turns.replies import STOPPED_TEXT
from runtime.turns.tools import Tooling
from runtime.turns.turn import EXTRACT_RECORDS, Turns
from runtime.turns.turn_state import BuiltPrompt, Question, lowest_role
from runtime.turns.worker import Answers, Worker, notify_worker

__all__ = [
    "EXTRACT_RECORDS",
    "NO_DRAFTS",
    "REASONS",
    "SAME",
    "STOPPED_TEXT",
    "STRATEGIES",
    "AmendResult",
    "Answers",
    "Batch",
    "BuiltPrompt",
    "Cancellations",
    "Checkpoints",
    "DeadLetters",
    "Envelope",
    "Lane",
    "Letter",
    "Mailbox",
    "MailboxFull",
    "Manifest",
    "Manifests",
    "MaterialChooser",
    "MaterialIndexer",
    "Materials",
    "PromptBuilder",
    "Question",
    "RecordAccounting",
    "RecordsOfTurn",
    "Tooling",
    "Turns",
    "UnknownLetter",
    "UnknownTurn",
    "Worker",
    "block_rows",
    "compare_manifests",
    "cues_in",
    "frames_in",
    "lowest_role",
    "notify_deleted",
    "notify_interrupted",
    "notify_worker",
    "prefix_row",
    "record_rows",
]
