"""Lets people mark replies as good or bad, and applies the marks to the records that a reply used.

A mark is a reaction to a message of the reply (👍, 👎), a command, or a call over HTTP. The turn of a message is looked
up among the stored replies of the last seven days; a marked turn is known for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, InboundMessage, Role, Scope
from grounding.memory.karma import (
    SCOPE,
    Exchange,
    MarkBusy,
    Marked,
    MarkStore,
    Opinion,
    Sign,
    add_sign,
    remove_sign,
    set_by_command,
    set_sign,
    sign_of,
)
from grounding.memory.records import NoSuchRecord, Outcome, Provenance, RecordRefused, Records, State, Type
from grounding.pipeline import records_scope
from grounding.prompt_input import Tokens, audience_of, clip
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from promptpolicy.sigils import Holder, Sigils
from runtime.access import Access
from runtime.delivery import Outbox
from runtime.turns import Manifest, Manifests, RecordsOfTurn, UnknownTurn

_log = structlog.get_logger()


ASKED_TOKENS, ANSWERED_TOKENS = 40, 80
"""The length of the stored question and answer: with these, two exchanges fit into the 300 tokens of a block."""
_SIDE_CHARACTERS = 4000
"""Text beyond this cannot be among the first tokens, so it is not counted."""
Step = Callable[[Opinion], Opinion]
Fields = Mapping[str, Any]
_CHANGES: Mapping[tuple[Type, Sign], tuple[Fields, Fields]] = {
    (Type.FACT, "good"): ({"confirm": True}, {"take_back": "confirm"}),
    (Type.PROCEDURE, "good"): ({"outcome": "success"}, {"take_back": "success"}),
    (Type.PROCEDURE, "bad"): ({"outcome": "failure"}, {"take_back": "failure"}),
    (Type.CENSOR, "bad"): ({"false_positive": True}, {"take_back": "false_positive"}),
}
"""The change of a record of that type by a mark, and the change that undoes it."""
_OUTCOMES: Mapping[Sign, Outcome] = {"good": "success", "bad": "failure"}


@dataclass(frozen=True, slots=True)
class Marker:
    """Who marks, in which role, and by which means (for events). ``is_vouched_for``: a platform or a login confirms
    the person; a program does not just claim it."""

    user: str
    role: Role
    means: str
    is_vouched_for: bool = True


class Marking:
    """The marks of all workspaces. They are applied to the records that a reply used, and to censors that acted in it.

    - A good reply confirms the facts that it used, and is a success of the procedures that it followed.
    - A bad reply is a failure of these procedures, and a false positive of the censors that acted.
    - A decision that waits for its outcome, and that the reply used, is reviewed by the majority of the marks; one that
      waits for none is not, nor one that a person reviewed by hand.
    - Other records are not changed: that people liked a reply does not mean that a task is done, and that they did not
      does not tell which of its facts is wrong.

    If a person removes or changes a mark, its effect is undone. If the store is away, the change of the records is lost
    and logged.

    Every method raises `connectors.message.StoreUnavailable` and `grounding.memory.karma.MarkBusy`; those that name a
    turn raise `runtime.turns.UnknownTurn`.
    """

    def __init__(
        self,
        store: MarkStore,
        *,
        transcript: Transcript,
        manifests: Manifests,
        outbox: Outbox,
        access: Access,
        records: Records,
        sigils: Sigils,
        tokens: Tokens,
        today: Callable[[], str] = lambda: datetime.now(UTC).date().isoformat(),
    ) -> None:
        self._store = store
        self._transcript = transcript
        self._manifests = manifests
        self._outbox = outbox
        self._access = access
        self._records = records
        self._sigils = sigils
        self._tokens = tokens
        self._today = today

    async def mark_by_reaction(self, message: InboundMessage, key: ConversationKey) -> str:
        """Mark the reply that a reaction is on. Return why that failed, in a word; empty if it succeeded."""
        added = sign_of(message.reaction) if message.reaction else None
        removed = [sign for emoji in message.unreacted if (sign := sign_of(emoji)) is not None]
        if added is None and not removed:
            return "no_mark"
        role = await self._access.role_here(message, key.workspace_id)
        user = message.author.user(message.connector)
        by = Marker(user, role or Role.VIEWER, "reaction", is_vouched_for=message.is_vouched_for)
        if role is None or not self.may(by, key):
            return "not_allowed"
        turn_id = await self.turn_of(key, message.message_id)
        if not turn_id:
            return "unknown_reply"
        moment = message.sent_at.timestamp() if message.sent_at else 0.0

        def step(opinion: Opinion) -> Opinion:
            for sign in removed:
                opinion = remove_sign(opinion, sign, moment=moment)
            return opinion if added is None else add_sign(opinion, added, moment=moment, by_admin=_is_admin(by))

        try:
            await self._change(key.scope, turn_id, by, step, is_new=added is not None, message_id=message.message_id)
        except UnknownTurn:  # it was forgotten
            return "unknown_reply"
        except MarkBusy:
            return "busy"
        return ""

    def may(self, by: Marker, key: ConversationKey) -> bool:
        """Return whether *by* may mark replies in *key*: whether they have `grounding.memory.karma.SCOPE`."""
        held = self._sigils.held_by([Holder(by.user, by.role)], key.context_id, vouched=by.is_vouched_for)
        return held.allows(SCOPE)

    async def mark_by_command(
        self, key: ConversationKey, turn_id: str, by: Marker, sign: Sign | None, command: str
    ) -> Marked:
        """Mark a turn of *key* by a command; a *sign* of None removes the person's mark."""
        step = partial(set_by_command, sign=sign, command=command, by_admin=_is_admin(by))
        return await self._change(key.scope, turn_id, by, step, is_new=sign is not None)

    async def put(self, scope: Scope, turn_id: str, by: Marker, sign: Sign | None) -> Marked:
        """Set the mark of *by* to *sign*, or to none. A repetition changes nothing."""
        step = partial(set_sign, sign=sign, by_admin=_is_admin(by))
        return await self._change(scope, turn_id, by, step, is_new=sign is not None)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """Return the turn whose reply includes the platform's message *message_id*; empty if there is none."""
        return await self._outbox.turn_of(key, message_id) or await self._store.turn_of(key, message_id)

    async def of_turn(self, scope: Scope, turn_id: str) -> Marked | None:
        """Return the marks of a turn."""
        return await self._store.get(scope, turn_id)

    async def all(self, scope: Scope) -> Sequence[Marked]:
        """Return the marked turns of a workspace, the newest first."""
        _, turns = await self._store.all(scope)
        return sorted((turn for turn in turns if turn.is_marked), key=lambda turn: turn.turn_id, reverse=True)

    async def unsay(self, scope: Scope, turn_ids: Collection[str]) -> None:
        """Undo what the marks of turns did to records. Call it while the turns are stored: they name their records."""
        for turn_id in turn_ids:
            marked = await self._store.get(scope, turn_id)
            if marked is not None and marked.is_marked:
                with suppress(UnknownTurn):
                    blank = Marked(turn_id=turn_id, conversation=marked.conversation)
                    await self._apply_to_records(scope, None, "", marked, blank)

    async def forget(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        """Delete the marks and exchanges of turns, and undo what they did to records. Return how many there were."""
        await self.unsay(scope, turn_ids)
        return await self._store.forget(scope, turn_ids)

    async def forget_conversation(self, key: ConversationKey) -> None:
        """Delete all marks and exchanges of a conversation, and what its session shows of them."""
        await self._store.forget_conversation(key)

    async def forget_message(self, key: ConversationKey, message_id: str) -> None:
        """Delete the exchange that began with a message, because the message was edited or deleted."""
        if turn_id := await self._store.turn_of(key, message_id):
            await self.forget(key.scope, [turn_id])

    async def _change(
        self, scope: Scope, turn_id: str, by: Marker, step: Step, *, is_new: bool, message_id: str = ""
    ) -> Marked:
        known = await self._store.get(scope, turn_id)
        manifest, exchange = None, known.exchange if known else None
        if known is None or (is_new and exchange is None):
            manifest = await self._manifests.get(scope, turn_id)
            exchange = await self._exchange(manifest)
        blank = Marked(turn_id=turn_id, conversation=_key_of(manifest).encoded if manifest else "")
        before_and_after: list[Marked] = []  # the last attempt counts: `change` may repeat

        def changed(before: Marked | None) -> Marked | None:
            if before is None and known is not None:
                raise UnknownTurn(f"turn {turn_id!r} was forgotten just now")
            old = before or blank
            opinion = step(old.opinion_of(by.user))
            before_and_after[:] = [old, old]
            if opinion == old.opinion_of(by.user):
                return before
            opinion = opinion.model_copy(update={"is_claimed": not by.is_vouched_for})
            new = old.with_exchange(exchange, message_id, self._today()).with_opinion(opinion)
            before_and_after[1] = new
            return new

        after = await self._store.change(scope, turn_id, changed) or blank
        if manifest is not None:
            await self._undo_if_forgotten(scope, turn_id)
        old, new = before_and_after
        mark = new.opinion_of(by.user).mark
        if mark != old.opinion_of(by.user).mark:
            _log.info("turn.marked", turn_id=turn_id, mark=mark or "none", role=by.role.value, by=by.means)
            await self._apply_to_records(scope, manifest, by.user, old, new)
        return after

    async def _undo_if_forgotten(self, scope: Scope, turn_id: str) -> None:
        """Delete the mark of a turn that was forgotten meanwhile. Then raises `runtime.turns.UnknownTurn`."""
        try:
            await self._manifests.get(scope, turn_id)
        except UnknownTurn:
            await self.forget(scope, [turn_id])
            raise

    async def _apply_to_records(
        self, scope: Scope, manifest: Manifest | None, author: str, before: Marked, after: Marked
    ) -> None:
        """Apply the change of a turn's marks from *before* to *after*, by *author*, to the records of the turn."""
        turn_id = before.turn_id
        records = await self._manifests.records_of(scope, turn_id)
        if not records.used and not records.acted:
            return
        context = (manifest or await self._manifests.get(scope, turn_id)).context
        key = ConversationKey(context.workspace_id, context.connector, context.external_id)
        seen = records_scope(key, audience_of(context))
        by = Provenance(author=author, context_id=key.context_id, turn_id=turn_id, origin="person")
        number = before.changes if after.changes == 0 else after.changes
        word = "mark" if after.changes else "forgotten"
        for voice in sorted({*before.voices, *after.voices}):
            was, now = before.voices.get(voice), after.voices.get(voice)
            counted = records
            if records.acted and was != now and "bad" in (was, now):
                reported = await self._reported(scope, voice, turn_id)
                counted = replace(records, acted=tuple(censor for censor in records.acted if censor not in reported))
            await self._mark_records(seen, counted, by, was, now, f"{word}:{turn_id}:{voice}:{number}")
        await self._review_decisions(seen, records, by, before.verdict, after.verdict, f"{word}:{turn_id}:{number}")

    async def _mark_records(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """Apply the change of one person's mark from *was* to *now*. Raises nothing.

        *scope* is that of the people to whose records the turn had access; *key* names the change.
        """
        if was == now:
            return
        for record_id in (*of.used, *of.acted):
            await _log_failure(
                record_id, partial(self._mark_record, scope, record_id, by, was, now, f"{key}:{record_id}")
            )

    async def _review_decisions(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """Apply the change of the majority's mark from *was* to *now*, as `_mark_records`."""
        if was == now:
            return
        for record_id in of.used:
            await _log_failure(
                record_id, partial(self._review_decision, scope, record_id, by, now, f"{key}:{record_id}")
            )

    async def _mark_record(
        self, scope: Scope, record_id: str, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        record = await self._records.get(scope, record_id)
        if was and (changes := _CHANGES.get((record.type, was))):
            await self._records.change(scope, record_id, changes[1], by, f"{key}:undo")
        if now and (changes := _CHANGES.get((record.type, now))):
            await self._records.change(scope, record_id, changes[0], by, f"{key}:do")

    async def _review_decision(self, scope: Scope, record_id: str, by: Provenance, now: Sign | None, key: str) -> None:
        record = await self._records.get(scope, record_id)
        if record.type is not Type.DECISION:
            return
        if record.state is State.REVIEWED:
            changes = await self._records.history(scope, record_id)
            review = next((change for change in changes if change.to_state == State.REVIEWED), None)
            if review is None or review.turn_id != by.turn_id:
                return  # it was reviewed by hand, or by the marks of another reply
            await self._records.change(scope, record_id, {"take_back": record.outcome}, by, f"{key}:undo")
        elif record.state is not State.PENDING:
            return
        if now is not None:
            await self._records.change(scope, record_id, {"outcome": _OUTCOMES[now]}, by, f"{key}:do")

    async def _reported(self, scope: Scope, voice: str, besides: str) -> frozenset[str]:
        """Return the censors of the other turns that *voice* called bad.

        One voice counts once against a censor: else a person whom it stops could retire it alone.
        """
        _, marked = await self._store.all(scope)
        turns = [turn.turn_id for turn in marked if turn.turn_id != besides and turn.voices.get(voice) == "bad"]
        records = await asyncio.gather(*(self._manifests.records_of(scope, turn_id) for turn_id in turns))
        return frozenset(censor for of_turn in records for censor in of_turn.acted)

    async def _exchange(self, manifest: Manifest) -> Exchange | None:
        """Return the exchange of a turn; None if its reply is no answer (an apology), or is not recorded."""
        context, key = manifest.context, _key_of(manifest)
        if manifest.outcome.get("kind") == "apology" or manifest.outcome.get("error_code"):
            return None
        entries = await self._transcript.of_turn(key, manifest.turn_id)
        asked = [entry for entry in entries if entry.role is EntryRole.INBOUND]
        answered = [entry for entry in entries if entry.role is EntryRole.OUTBOUND]
        if not asked or not answered:
            return None
        texts = await asyncio.to_thread(
            lambda: (_side(asked, self._tokens, ASKED_TOKENS), _side(answered, self._tokens, ANSWERED_TOKENS))
        )
        if not all(texts):
            return None
        # An answer may repeat others' words that came earlier in the conversation ("and shorter, please").
        foreign = {entry.foreign for entry in (*answered, *asked)} | {entry.foreign for entry in context.tail}
        return Exchange(
            asked=texts[0],
            answered=texts[1],
            audience=audience_of(context) or "",
            foreign="retrieved" if "retrieved" in foreign else "others" if "others" in foreign else "",
            asked_in=tuple(entry.message_id for entry in asked if entry.message_id),
        )


def _key_of(manifest: Manifest) -> ConversationKey:
    context = manifest.context
    return ConversationKey(context.workspace_id, context.connector, context.external_id)


def _side(entries: Sequence[TranscriptEntry], tokens: Tokens, max_tokens: int) -> str:
    """Return the text of *entries* on one line, cut at the end of a sentence if possible."""
    text = " ".join(" ".join(entry.text[:_SIDE_CHARACTERS].split()) for entry in entries)
    return clip(text, tokens, max_tokens)


def _is_admin(by: Marker) -> bool:
    return by.role is Role.ADMIN


async def _log_failure(record_id: str, step: Callable[[], Awaitable[None]]) -> None:
    try:
        await step()
    except NoSuchRecord:
        return
    except RecordRefused as error:  # it was superseded or retired meanwhile
        _log.info("records.unmarked", record_id=record_id, why=str(error))
    except (AgentRuntimeError, TimeoutError) as error:
        _log.warning("records.uncounted", why=str(error) or "timeout", records=1)
