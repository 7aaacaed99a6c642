"""All commands, in the order in which people are shown them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from config.settings import Settings
from connectors.connector import Health
from connectors.message import ConversationKey, Scope
from grounding.documents import Status as IndexStatus
from grounding.memory.context_document import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.memory.records import KeepsRecords
from grounding.prompt import Sessions
from grounding.transcript import Transcript
from promptpolicy.publishing import Publisher
from runtime.access import Access
from runtime.background import Forgetting, Marking
from runtime.billing import Budgets, Usage
from runtime.commands.memory import GlobalContext, Memory, RecordWords
from runtime.commands.people import People
from runtime.commands.prompt import Prompts
from runtime.commands.registry import Command, Commands
from runtime.commands.session import Help, Session, Status
from runtime.commands.settings import SettledHere
from runtime.commands.turns import Marks, TurnFacts
from runtime.llm import Model
from runtime.turns import Manifests
from runtime.workspaces import Places

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
