"""What takes work out of the mailboxes, and what one of several processes does for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from config.settings import Settings
from grounding.documents.deeper import Deeper
from grounding.memory.records.records import Records
from grounding.memory.records.store import RecordStore
from runtime.changeover import DAY_SECONDS, Changeover
from runtime.commands.runner import CommandTurns
from runtime.deepening import Deepening
from runtime.jobs import Jobs
from runtime.knowledge import Knowledge
from runtime.leadership import Leadership
from runtime.rebuilding import Rebuilding
from runtime.record_keeping import RecordKeeping
from runtime.turns import Answers, Lane, MaterialFollowing, Worker
from runtime.wiring.answering import Answering
from runtime.wiring.conversing import Conversing
from runtime.wiring.kept import Kept


def wire_workers(settings: Settings, kept: Kept, answering: Answering, conversing: Conversing) -> Mapping[Lane, Worker]:
    """One worker for what is to be answered, one for commands."""
    answers: dict[Lane, Answers] = {
        Lane.TURNS: answering.turns,
        Lane.COMMANDS: CommandTurns(conversing.commands, kept.outbox),
    }
    alone = settings.redis_url is None
    return {
        lane: Worker(
            settings,
            kept.mailboxes[lane],
            answers[lane],
            kept.hub,
            kept.dead_letters.of(lane),
            lane=lane,
            alone=alone,
        )
        for lane in Lane
    }


def wire_duties(
    settings: Settings,
    kept: Kept,
    jobs: Jobs | None,
    knowledge: Knowledge | None,
    records: Records,
    deep: Deeper | None,
) -> Leadership:
    """What follows turns and the Markdown copies, and what *records* need as time passes, where *jobs* are given;
    following the disk, and filling an index that is new, until it takes the place of the former, where *knowledge*
    is, by *deep* also with deeper vectors."""

    async def duties() -> None:
        async with asyncio.TaskGroup() as group:
            if jobs is not None:
                group.create_task(kept.copy.run(), name="chat logs")
                group.create_task(jobs.run(), name="jobs")
                keeping = RecordKeeping(records, RecordStore(kept.store.client), kept.workspaces)
                group.create_task(keeping.run(), name="records")
            if knowledge is not None:
                group.create_task(in_step(knowledge), name="index")

    async def in_step(knowledge: Knowledge) -> None:
        material = MaterialFollowing(knowledge.material, knowledge, kept.workspaces, kept.hub)
        rebuilding = Rebuilding(
            settings.data_dir, knowledge, kept.transcript, kept.contexts, kept.copy, kept.workspaces
        )
        keep = settings.index_keep_former_days * DAY_SECONDS
        changeover = Changeover(knowledge, rebuilding, kept.workspaces, keep)
        async with asyncio.TaskGroup() as group:
            group.create_task(knowledge.follow(), name="follow")
            group.create_task(material.run(), name="material")
            group.create_task(rebuilding.fill_new_index(), name="remembered turns")
            group.create_task(changeover.run(), name="change-over")
            if deep is not None:
                shared = settings.redis_url is not None
                deepening = Deepening(knowledge, deep, kept.workspaces, knowledge.material, shared=shared)
                group.create_task(deepening.run(), name="deeper vectors")

    return Leadership(kept.store.client, kept.hub.name, duties)
