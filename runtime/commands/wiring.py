"""Builds all commands, in the order in which people are shown them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from config.settings import Settings
from connectors.connector import Health
from grounding.memory.context_document import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.memory.records import Records
from grounding.prompt import Sessions
from grounding.transcript import Transcript
from promptpolicy.publishing import Publisher
from runtime.access import Access
from runtime.attachments import Files
from runtime.background import Forgetting, Marking
from runtime.billing import Budgets, UsageCounters
from runtime.commands.documents import docs_command
from runtime.commands.global_context import GlobalContext
from runtime.commands.memory import Memory, RecordCommands
from runtime.commands.people import People
from runtime.commands.prompt import Prompts
from runtime.commands.registry import Command, Commands
from runtime.commands.session import Help, Session, Status
from runtime.commands.settings import PlaceSettings
from runtime.commands.turns import Marks, TurnFacts
from runtime.llm import Model
from runtime.search import Knowledge
from runtime.turns import Cancellations, Manifests
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
    records: Records,
    manifests: Manifests,
    usage: UsageCounters,
    budgets: Budgets,
    access: Access,
    publisher: Publisher,
    model: Model,
    places: Places,
    forgetting: Forgetting,
    marking: Marking,
    cancellations: Cancellations,
    knowledge: Knowledge,
    files: Files,
    stores: Callable[[], Awaitable[Mapping[str, Health]]],
    connectors: Callable[[], Mapping[str, Health]],
) -> Commands:
    """Build the commands of one process. A new command needs a module, a line here and its word in `NAMES`."""
    commands: list[Command] = [docs_command(knowledge.shelf, knowledge, files, settings.document_max_bytes)]
    for part in (
        Help(commands),
        Session(transcript, global_contexts, sessions, cancellations.stop),
        TurnFacts(transcript, manifests, usage, budgets, marking),
        Marks(transcript, manifests, marking),
        Memory(contexts, RecordCommands(records, forgetting.skip_extraction), forgetting, cancellations.end_turn),
        GlobalContext(global_contexts),
        PlaceSettings(settings, places, model),
        Status(model, stores, connectors, knowledge.status),
        Prompts(publisher),
        People(access),
    ):
        commands += part.commands()
    commands.sort(key=lambda command: NAMES.index(command.name))
    return Commands(commands, settings.llm_timeout_seconds)
