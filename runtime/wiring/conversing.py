"""What people meet: the door for their messages, the commands, and the connectors kept running."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from config.settings import Settings
from connectors.connector import Health
from grounding.tokens import Tokens
from promptpolicy.sigils import Sigils
from runtime.attachments.files import Files
from runtime.chat_page import ChatPage
from runtime.commands.docs import docs_command
from runtime.commands.registry import Commands
from runtime.commands.wiring import build_commands
from runtime.forgetting import Forgetting
from runtime.gateway import Gateway
from runtime.knowledge import Knowledge
from runtime.mark_effects import MarkEffects
from runtime.marking import Marking
from runtime.shows import Shows
from runtime.supervisor import Supervisor
from runtime.wiring.answering import Answering
from runtime.wiring.entrance import Entrance
from runtime.wiring.kept import Kept


@dataclass(frozen=True)
class Conversing:
    """The parts between the platforms and the mailbox."""

    commands: Commands
    supervisor: Supervisor
    gateway: Gateway
    marking: Marking


def wire_conversing(
    settings: Settings,
    kept: Kept,
    entrance: Entrance,
    knowledge: Knowledge,
    answering: Answering,
    files: Files,
    shows: Shows,
    stores: Callable[[], Awaitable[dict[str, Health]]],
    tokens: Tokens,
) -> Conversing:
    """*stores* says how the stores are."""
    marking = Marking(
        kept.marks,
        answering.karma,
        transcript=kept.transcript,
        manifests=kept.manifests,
        outbox=kept.outbox,
        access=entrance.access,
        effects=MarkEffects(answering.records),
        sigils=Sigils.from_settings(settings),
        tokens=tokens,
    )

    def connectors() -> dict[str, Health]:
        return {name: supervisor.health(connector) for name, connector in entrance.connectors.items()}

    forgetting = _forgetting(kept, answering, marking)
    entrance.web.backend = ChatPage(
        kept.store.client,
        workspaces=kept.workspaces,
        conversation_list=kept.conversation_list,
        transcript=kept.transcript,
        outbox=kept.outbox,
        files=kept.files,
        marking=marking,
        manifests=kept.manifests,
        forgetting=forgetting,
        stops=answering.stops,
        knowledge=knowledge,
    )
    commands = _commands(settings, kept, entrance, knowledge, answering, files, stores, connectors, marking, forgetting)
    supervisor = Supervisor(entrance.connectors.values(), kept.turns, commands.hints())
    gateway = Gateway(
        settings,
        workspaces=kept.workspaces,
        access=entrance.access,
        limit=kept.limit,
        mailboxes=kept.mailboxes,
        outbox=kept.outbox,
        transcript=kept.transcript,
        commands=commands,
        places=kept.places,
        connectors=entrance.connectors,
        shows=shows,
        hub=kept.hub,
        marking=marking,
        dead_letters=kept.dead_letters,
    )
    return Conversing(commands, supervisor, gateway, marking)


def _commands(
    settings: Settings,
    kept: Kept,
    entrance: Entrance,
    knowledge: Knowledge,
    answering: Answering,
    files: Files,
    stores: Callable[[], Awaitable[dict[str, Health]]],
    connectors: Callable[[], dict[str, Health]],
    marking: Marking,
    forgetting: Forgetting,
) -> Commands:
    return build_commands(
        settings,
        transcript=kept.transcript,
        contexts=kept.contexts,
        global_contexts=kept.global_contexts,
        sessions=kept.sessions,
        records=answering.records,
        manifests=kept.manifests,
        usage=kept.usage,
        budgets=answering.budgets,
        access=entrance.access,
        publisher=kept.publisher,
        model=answering.model,
        places=kept.places,
        forgetting=forgetting,
        marking=marking,
        stop=answering.stops.stop,
        end_turn=answering.stops.end_turn,
        stores=stores,
        connectors=connectors,
        index=knowledge.status,
        further=(docs_command(knowledge.shelf, knowledge, files, settings.document_max_bytes),),
    )


def _forgetting(kept: Kept, answering: Answering, marking: Marking) -> Forgetting:
    return Forgetting(
        kept.store.client,
        transcript=kept.transcript,
        copy=kept.copy,
        contexts=kept.contexts,
        context_copy=kept.context_copy,
        sessions=kept.sessions,
        manifests=kept.manifests,
        outbox=kept.outbox,
        files=kept.files,
        conversation_list=kept.conversation_list,
        dead_letters=kept.dead_letters,
        records=answering.records,
        extraction_marks=kept.extraction_marks,
        marking=marking,
        jobs=answering.jobs,
    )
