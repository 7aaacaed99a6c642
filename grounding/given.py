"""What a turn is given: each layer as a function of the `Gathering`, which says what it needs, and what it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from grounding.asked import asked_before
from grounding.continuing import Documents, Going
from grounding.gathering import Gathering
from grounding.layers import retrieval
from grounding.memory.global_context_lines import UNTRUSTED
from grounding.memory.global_context_origin import model_in
from grounding.memory.karma.reading import NOTHING as UNMARKED
from grounding.memory.karma.reading import Looked as Marks
from grounding.memory.selection.selecting import Looked, Standing
from grounding.recalling import Recalling, is_looked_for
from grounding.remembering import NOTHING, Asked, Remembered, asked_in, shown_besides
from grounding.run_context import Censor, ContextLine, DegradedBlock, Passage, RecalledTurn, TailEntry
from grounding.sessions.shown import Shown
from grounding.strategy import Choice, search_text
from grounding.tail_entry import tail_entry
from grounding.transcript.entry import Reach

_log = structlog.get_logger()


async def choice(of: Gathering) -> Choice:
    """What the message needs: as the cues chose, or as is decided where they leave it open."""

    async def said() -> Sequence[TailEntry]:
        last = of.of(tail)
        return await asyncio.shield(last) or ()

    deciding = of.message.deciding
    if deciding is None:
        return of.message.first
    return await deciding(said)


async def session(of: Gathering) -> Shown | None:
    """What the conversation's last prompt showed."""
    return await of.bounded("session", lambda: of.sources.continuing.before(of.message.key))


async def global_context(of: Gathering) -> tuple[ContextLine, ...] | None:
    """What is always known, whatever else is wanted."""
    message = of.message
    model = model_in(message.key, message.audience)
    lines = await of.bounded(
        "global_context", lambda: of.sources.global_contexts.open(model, store=bool(message.turn_id))
    )
    if lines is None:
        return None
    return tuple(
        ContextLine(number=line.number, content=line.content, marked=line.origin in UNTRUSTED) for line in lines
    )


async def documents(of: Gathering) -> Documents | None:
    """The context documents: the newest, and the one that the last prompt showed."""
    before = of.of(session)
    return await of.bounded("summary", lambda: of.sources.continuing.documents(of.message.key, before))


async def tail(of: Gathering) -> tuple[TailEntry, ...] | None:
    """What was said last; the history that was given, where one was."""
    message = of.message
    if message.history is not None:
        return tuple(message.history)
    most = message.budgets.tail_lines + 1
    entries = await of.bounded(
        "tail", lambda: of.sources.transcript.tail(message.key, most, except_turn=message.turn_id)
    )
    return None if entries is None else tuple(tail_entry(entry) for entry in entries)


async def earlier(of: Gathering) -> tuple[str, ...]:
    """What people asked just before, as a search uses it."""
    last = await of.of(tail)
    return asked_before(last or (), of.message.cues)


async def going(of: Gathering) -> Going:
    """How the session goes on, as soon as it is known what there is."""
    continuing, message = of.sources.continuing, of.message
    before, lines, newest, said = of.of(session), of.of(global_context), of.of(documents), of.of(tail)
    if message.history is not None:
        return continuing.instead(await lines, message.history, message.budgets)
    there = await before, await lines, await newest, await said
    return continuing.go_on(*there, message.audience, message.budgets, message.today)


async def going_on_with_small_talk(of: Gathering) -> Going:
    """The same for a message that needs nothing."""
    before, lines = of.of(session), of.of(global_context)
    return of.sources.continuing.small_talk(await before, await lines, of.message.audience)


async def marks(of: Gathering) -> Marks:
    """What people marked as good: all that stands in the session, and how like it is to the message."""
    if of.sources.karma is None:
        return UNMARKED
    return await _marks(of, of.message.text, await of.of(earlier))


async def standing_marks(of: Gathering) -> Marks:
    """Of what people marked as good what stands in the session."""
    return await _marks(of, "", ())


async def _marks(of: Gathering, text: str, before: Sequence[str]) -> Marks:
    if of.sources.karma is None:
        return UNMARKED
    karma, message = of.sources.karma, of.message

    async def stood() -> Sequence[str] | None:
        shown = await asyncio.shield(of.of(session))
        return shown.karma_floor if shown else None

    found = await of.bounded("karma", lambda: karma.look(message.key, message.audience, text, before, stood=stood))
    return found or UNMARKED


async def standing(of: Gathering) -> Standing | None:
    """The records that hold without being searched for."""
    if of.sources.remembering is None:
        return None
    remembering = of.sources.remembering
    return await of.bounded("censors", lambda: remembering.standing(of.message.key, of.message.audience))


async def censors(of: Gathering) -> tuple[Censor, ...] | None:
    """What must not be said or done; while the store is away, what must not a moment ago, if that is known."""
    if of.sources.remembering is None:
        return ()
    holding = await of.of(standing)
    if holding is None:
        return of.sources.remembering.last_censors(of.message.key, of.message.audience)
    return holding.censors


async def looked(of: Gathering) -> tuple[Asked, Looked | None] | None:
    """The frame, and the records that there are for the message. What does not depend on the tail is read beside it;
    the search begins when it is there."""
    if of.sources.remembering is None:
        return None
    remembering, message = of.sources.remembering, of.message
    key, audience, continues = message.key, message.audience, message.history is None
    there = await of.bounded("records", lambda: remembering.there(key, audience, continues=continues))
    asked = asked_in(message.text, await of.of(earlier), message.frames, message.cues)
    if there is None:
        return asked, None
    known, holding = there, await of.of(standing)

    async def found() -> Looked:
        holds = await remembering.standing(key, audience) if holding is None else holding
        return await remembering.look(key, audience, asked, message.cues, known, holds)

    return asked, await of.bounded("records", found)


async def remembered(of: Gathering) -> Remembered:
    """What of the records is shown, once it is known what is shown besides."""
    settled, found = (await of.of(going)).settled, await of.of(looked)
    if of.sources.remembering is None or found is None:
        return NOTHING
    remembering, message, (asked, there) = of.sources.remembering, of.message, found
    if there is None:
        return Remembered(asked.frame)
    # Where there is no record nothing can be said twice.
    known, shown = there, [] if there.is_empty else shown_besides(settled.tail, settled.summary, message.budgets)
    chosen = await of.bounded("records", lambda: remembering.chosen(message.key, message.turn_id, asked, known, shown))
    return Remembered(asked.frame) if chosen is None else chosen


async def passages(of: Gathering) -> tuple[Passage, ...]:
    """What the documents say. The search begins when the tail is there; without one the message is searched for
    alone."""
    if not (await of.of(choice)).wants_documents:
        return ()
    message, before = of.message, await of.of(earlier)
    query, budgets = search_text(message.text, message.cues), message.budgets
    room = retrieval.room(budgets.retrieved_tokens)
    found = await of.bounded(
        "retrieved",
        lambda: of.sources.documents.passages(
            message.key.scope, query, budgets.top_k, budgets.excerpt_bytes, room, lost=of.degraded, earlier=before
        ),
    )
    return tuple(found or ())


async def reach(of: Gathering) -> Reach | None:
    """How much was said in all, where earlier turns may be looked for unasked; None where that is not known."""
    message = of.message
    if message.history is not None or not message.first.open:
        return None
    return await of.bounded("records", lambda: of.sources.transcript.reach(message.key), [])


async def recalled(of: Gathering) -> Sequence[RecalledTurn]:
    """Earlier turns, where they are asked for, or surely bear on the message; it says so where a look failed that
    nobody asked for, and nothing is missed for certain."""
    message = of.message
    if message.history is not None:
        return ()
    decided, settled = await of.of(choice), (await of.of(going)).settled
    recalling, unsure = Recalling(of.sources.turns), list[DegradedBlock]()
    key, text, found = message.key, message.text, None
    if decided.wants_history:
        before = await of.of(earlier)
        found = await of.bounded("records", lambda: recalling.asked_for(key, text, before, settled, of.degraded))
    elif is_looked_for(message.first, decided):
        said = await of.of(reach)
        turns = said.turns if said else 0
        found = await of.bounded("records", lambda: recalling.unasked(key, text, settled, turns), unsure)
    if unsure:
        _log.warning("recall.unsure", why=unsure[0].why, workspace_id=key.workspace_id)
    return found or ()
