"""All commands, in the order in which people are shown them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from config.settings import Settings
from connectors.connector import Health
from connectors.message import ConversationKey, Scope
from grounding.documents.runs import Status as IndexStatus
from grounding.memory.contexts import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.memory.records.port import KeepsRecords
from grounding.sessions.store import Sessions
from grounding.transcript.log import Transcript
from promptpolicy.publishing import Publisher
from runtime.access import Access
from runtime.budgets import Budgets
from runtime.commands.command import Command
from runtime.commands.global_context import GlobalContext
from runtime.commands.help import Help
from runtime.commands.marks import Marks
from runtime.commands.memory import Memory
from runtime.commands.people import People
from runtime.commands.prompt import Prompts
from runtime.commands.records import RecordWords
from runtime.commands.registry import Commands
from runtime.commands.session import Session
from runtime.commands.settled import SettledHere
from runtime.commands.status import Status
from runtime.commands.turns import TurnFacts
from runtime.forgetting import Forgetting
from runtime.llm import Model
from runtime.marking import Marking
from runtime.places import Places
from runtime.turns import Manifests
from runtime.usage import Usage

NAMES = (
    "help",
    "new",
    "stop",
    "explain",
    "good",
    "bad",
    "unmark",
    "memory",
    "context",
    "forget",
    "model",
    "usage",
    "status",
    "answer",
    "queue",
    "sources",
    "prompt",
    "docs",
    "pair",
    "role",
    "start",
)
"""The words of all commands, in the order in which they are shown."""


def build_commands(
    settings: Settings,
    *,
    transcript: Transcript,
    contexts: ContextDocuments,
    global_contexts: GlobalContexts,
    sessions: Sessions,
    records: KeepsRecords,
    manifests: Manifests,
    usage: Usage,
    budgets: Budgets,
    access: Access,
    publisher: Publisher,
    model: Model,
    places: Places,
    forgetting: Forgetting,
    marking: Marking,
    stop: Callable[[ConversationKey], Awaitable[bool]],
    end_turn: Callable[[ConversationKey], Awaitable[None]],
    stores: Callable[[], Awaitable[Mapping[str, Health]]],
    connectors: Callable[[], Mapping[str, Health]],
    index: Callable[[Scope], Awaitable[IndexStatus]],
    further: Sequence[Command] = (),
) -> Commands:
    """The commands of one process. A further one: its module, its line here, and its word in the order."""
    made: list[Command] = list(further)

    def all_commands() -> list[Command]:
        return made

    for part in (
        Help(all_commands),
        Session(transcript, global_contexts, sessions, stop),
        TurnFacts(transcript, manifests, usage, budgets, marking),
        Marks(transcript, manifests, marking),
        Memory(contexts, RecordWords(records, forgetting.records_to_come), forgetting, end_turn),
        GlobalContext(global_contexts),
        SettledHere(settings, places, model),
        Status(model, stores, connectors, index),
        Prompts(publisher),
        People(access),
    ):
        made += part.commands()
    made.sort(key=lambda command: NAMES.index(command.name))
    return Commands(made, settings.llm_timeout_seconds)
