"""People mark replies: which turn is meant, who may, what is kept of it, and what it says of records.

A mark is a reaction to a message of the reply (👍, 👎), a command, or a call over HTTP. The turn of a message is found
among the stored replies of the last seven days; one that is marked is known for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, InboundMessage, Role, Scope
from grounding.memory.karma import Exchange, Karma, MarkBusy, Marked, MarkStore, Opinion, Sign
from grounding.memory.karma import karma as karma_karma
from grounding.memory.records import Change, KeepsRecords, NoSuchRecord, Outcome, Provenance, RecordRefused, State, Type
from grounding.pipeline import seen_in
from grounding.prompt_input import Tokens, audience_of, clip
from grounding.transcript import Entry, EntryRole, Transcript
from promptpolicy.sigils import Holder, Sigils
from runtime.access import Access
from runtime.delivery import Outbox
from runtime.turns import Manifest, Manifests, RecordsOfTurn, UnknownTurn

# ---- mark effects ----
#
# What a mark says of records: those that the reply used, and the censors that acted in it.
#
# A good reply confirms the facts that it used, and counts as a success of the procedures that it followed; a bad one
# counts as a failure of these, and says of censors that acted that they should not have. A decision that waits for its
# outcome, and that the reply used, is reviewed by what most people say of the reply; one that waits for none is not,
# nor
# one that somebody reviewed by hand. Of other records a mark says nothing: that a reply was liked does not tell that a
# task is done, and that it was not tells not which of its facts is wrong. What a person takes back, or says
# otherwise, is
# taken off again.


Fields = Mapping[str, Any]
_SAYS: Mapping[tuple[Type, Sign], tuple[Fields, Fields]] = {
    (Type.FACT, "good"): ({"confirm": True}, {"take_back": "confirm"}),
    (Type.PROCEDURE, "good"): ({"outcome": "success"}, {"take_back": "success"}),
    (Type.PROCEDURE, "bad"): ({"outcome": "failure"}, {"take_back": "failure"}),
    (Type.CENSOR, "bad"): ({"false_positive": True}, {"take_back": "false_positive"}),
}
"""What a mark changes in a record of that type, and what undoes it."""
_OUTCOMES: Mapping[Sign, Outcome] = {"good": "success", "bad": "failure"}
_log = structlog.get_logger()


class RemembersChanges(KeepsRecords, Protocol):
    """Records, and what became of each."""

    async def history(self, scope: Scope, record_id: str) -> Sequence[Change]:
        """The newest changes of a record, the newest first. Raises `NoSuchRecord`."""


class MarkEffects:
    """Lets records have it. *records* is what keeps them."""

    def __init__(self, records: RemembersChanges) -> None:
        self._records = records

    async def become(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """Somebody's mark of a turn became *now*; *scope* is that of those whose records the turn was shown, *key*
        names the change. Where the store is away that is lost, and told; never raises."""
        if was == now:
            return
        for record_id in (*of.used, *of.acted):
            await _attempted(record_id, partial(self._one, scope, record_id, by, was, now, f"{key}:{record_id}"))

    async def review(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """What most people say of a turn became *now*. As `become`."""
        if was == now:
            return
        for record_id in of.used:
            await _attempted(record_id, partial(self._reviewed, scope, record_id, by, now, f"{key}:{record_id}"))

    async def _one(
        self, scope: Scope, record_id: str, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        record = await self._records.get(scope, record_id)
        undone = _SAYS.get((record.type, was)) if was else None
        done = _SAYS.get((record.type, now)) if now else None
        if undone is not None:
            await self._records.change(scope, record_id, undone[1], by, f"{key}:undo")
        if done is not None:
            await self._records.change(scope, record_id, done[0], by, f"{key}:do")

    async def _reviewed(self, scope: Scope, record_id: str, by: Provenance, now: Sign | None, key: str) -> None:
        record = await self._records.get(scope, record_id)
        if record.type is not Type.DECISION:
            return
        if record.state is State.REVIEWED:
            changes = await self._records.history(scope, record_id)
            review = next((one for one in changes if one.to_state == State.REVIEWED), None)
            if review is None or review.turn_id != by.turn_id:
                return  # somebody said by hand, or of another reply, what came of it
            await self._records.change(scope, record_id, {"take_back": record.outcome}, by, f"{key}:undo")
        elif record.state is not State.PENDING:
            return
        if now is not None:
            await self._records.change(scope, record_id, {"outcome": _OUTCOMES[now]}, by, f"{key}:do")


async def _attempted(record_id: str, step: Callable[[], Awaitable[None]]) -> None:
    """*step*, which is lost, and told, where it fails."""
    try:
        await step()
    except NoSuchRecord:
        return
    except RecordRefused as error:  # it is superseded by now, or retired: nothing can come of it
        _log.info("records.unmarked", record_id=record_id, why=str(error))
    except (AgentRuntimeError, TimeoutError) as error:
        _log.warning("records.uncounted", why=str(error) or "timeout", records=1)


# ---- marking ----


ASKED_TOKENS, ANSWERED_TOKENS = 40, 80
"""What of the two sides of an exchange is kept: with these two fit into the 300 tokens of a block, and more where they
are shorter."""
_SIDE_CHARACTERS = 4000
"""Beyond that no side has words that could be kept."""
Step = Callable[[Opinion], Opinion]


@dataclass(frozen=True, slots=True)
class By:
    """Who marks, as what, and by which means (for events). ``is_vouched_for``: that it is they is not only said by a
    program."""

    user: str
    role: Role
    means: str
    is_vouched_for: bool = True


class Marking:
    """The marks of all workspaces. Raises `connectors.message.StoreUnavailable`,
    `grounding.memory.karma.store.MarkBusy`, and where a turn is named `runtime.turns.manifest.UnknownTurn`."""

    def __init__(
        self,
        store: MarkStore,
        karma: Karma,
        *,
        transcript: Transcript,
        manifests: Manifests,
        outbox: Outbox,
        access: Access,
        effects: MarkEffects,
        sigils: Sigils,
        tokens: Tokens,
        today: Callable[[], str] = lambda: datetime.now(UTC).date().isoformat(),
    ) -> None:
        self._store = store
        self._karma = karma
        self._transcript = transcript
        self._manifests = manifests
        self._outbox = outbox
        self._access = access
        self._effects = effects
        self._sigils = sigils
        self._tokens = tokens
        self._today = today

    async def reacted(self, message: InboundMessage, key: ConversationKey) -> str:
        """Let a reaction mark the reply that it is on; why it does not, in a word, or nothing. Nobody is told."""
        given = karma_karma.sign_of(message.reaction) if message.reaction else None
        gone = [sign for emoji in message.unreacted if (sign := karma_karma.sign_of(emoji)) is not None]
        if given is None and not gone:
            return "no_mark"
        role = await self._access.role_here(message, key.workspace_id)
        user = message.author.user(message.connector)
        by = By(user, role or Role.VIEWER, "reaction", is_vouched_for=message.is_vouched_for)
        if role is None or not self.may(by, key):
            return "not_allowed"
        turn_id = await self.turn_of(key, message.message_id)
        if not turn_id:
            return "unknown_reply"
        moment = message.sent_at.timestamp() if message.sent_at else 0.0

        def step(opinion: Opinion) -> Opinion:
            for sign in gone:
                opinion = karma_karma.remove_sign(opinion, sign, moment=moment)
            return opinion if given is None else karma_karma.said(opinion, given, moment=moment, by_admin=_is_admin(by))

        try:
            await self._change(key.scope, turn_id, by, step, is_new=given is not None, message_id=message.message_id)
        except UnknownTurn:  # it was forgotten
            return "unknown_reply"
        except MarkBusy:
            return "busy"
        return ""

    def may(self, by: By, key: ConversationKey) -> bool:
        """Whether *by* may mark what is said in *key*: whether they hold `grounding.memory.karma.karma.SCOPE`."""
        held = self._sigils.held_by([Holder(by.user, by.role)], key.context_id, vouched=by.is_vouched_for)
        return held.allows(karma_karma.SCOPE)

    async def commanded(self, key: ConversationKey, turn_id: str, by: By, sign: Sign | None, command: str) -> Marked:
        """Let a command mark a turn of *key*; None takes back what its giver said."""
        step = partial(karma_karma.commanded, sign=sign, command=command, by_admin=_is_admin(by))
        return await self._change(key.scope, turn_id, by, step, is_new=sign is not None)

    async def put(self, scope: Scope, turn_id: str, by: By, sign: Sign | None) -> Marked:
        """Let the mark of *by* be *sign*, or none, however often that is asked."""
        step = partial(karma_karma.put, sign=sign, by_admin=_is_admin(by))
        return await self._change(scope, turn_id, by, step, is_new=sign is not None)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """The turn whose reply the platform's message *message_id* is, or is a part of; empty where it is none's."""
        return await self._outbox.turn_of(key, message_id) or await self._store.turn_of(key, message_id)

    async def of_turn(self, scope: Scope, turn_id: str) -> Marked | None:
        """What people said of a turn."""
        return await self._store.get(scope, turn_id)

    async def all(self, scope: Scope) -> Sequence[Marked]:
        """What is marked in a workspace, the newest first."""
        _, found = await self._store.all(scope)
        return sorted((one for one in found if one.is_marked), key=lambda one: one.turn_id, reverse=True)

    async def unsay(self, scope: Scope, turn_ids: Collection[str]) -> None:
        """Take off again what the marks of turns said of records. To be asked while the turns are still known: later
        nobody knows which records they used."""
        for turn_id in turn_ids:
            marked = await self._store.get(scope, turn_id)
            if marked is not None and marked.is_marked:
                with suppress(UnknownTurn):
                    blank = Marked(turn_id=turn_id, conversation=marked.conversation)
                    await self._tell_records(scope, None, "", marked, blank)

    async def forget(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        """Take away the marks and traces of turns, with what they said of records; how many there were."""
        await self.unsay(scope, turn_ids)
        count = await self._store.forget(scope, turn_ids)
        self._karma.changed(scope)
        return count

    async def forget_conversation(self, key: ConversationKey) -> None:
        """Take away all marks and traces of a conversation, and what stood in its session."""
        await self._store.forget_conversation(key)
        self._karma.changed(key.scope)

    async def amended(self, key: ConversationKey, message_id: str) -> None:
        """A message was edited or deleted: an exchange that was asked by it is no example any more."""
        if turn_id := await self._store.turn_of(key, message_id):
            await self.forget(key.scope, [turn_id])

    async def _change(
        self, scope: Scope, turn_id: str, by: By, step: Step, *, is_new: bool, message_id: str = ""
    ) -> Marked:
        known = await self._store.get(scope, turn_id)
        manifest, exchange = None, known.exchange if known else None
        if known is None or (is_new and exchange is None):
            manifest = await self._manifests.get(scope, turn_id)
            exchange = await self._exchange(manifest)
        blank = Marked(turn_id=turn_id, conversation=_key_of(manifest).encoded if manifest else "")
        seen: list[Marked] = []

        def changed(before: Marked | None) -> Marked | None:
            if before is None and known is not None:
                raise UnknownTurn(f"turn {turn_id!r} was forgotten just now")
            one = before or blank
            opinion = step(one.opinion_of(by.user))
            seen[:] = [one, one]
            if opinion == one.opinion_of(by.user):
                return before
            opinion = opinion.model_copy(update={"is_claimed": not by.is_vouched_for})
            seen[1] = one.with_exchange(exchange, message_id, self._today()).with_opinion(opinion)
            return seen[1]

        after = await self._store.change(scope, turn_id, changed) or blank
        self._karma.changed(scope)
        if manifest is not None:
            await self._undo_if_forgotten(scope, turn_id)
        mark = seen[1].opinion_of(by.user).mark
        if mark != seen[0].opinion_of(by.user).mark:
            _log.info("turn.marked", turn_id=turn_id, mark=mark or "none", role=by.role.value, by=by.means)
            await self._tell_records(scope, manifest, by.user, *seen)
        return after

    async def _undo_if_forgotten(self, scope: Scope, turn_id: str) -> None:
        """Of a turn that was being forgotten while it was marked nothing stays. Raises
        `runtime.turns.manifest.UnknownTurn`."""
        try:
            await self._manifests.get(scope, turn_id)
        except UnknownTurn:
            await self.forget(scope, [turn_id])
            raise

    async def _tell_records(
        self, scope: Scope, manifest: Manifest | None, author: str, before: Marked, after: Marked
    ) -> None:
        """The marks of a turn, which were those of *before*, are now those of *after*, by what *author* did."""
        turn_id = before.turn_id
        of = await self._manifests.records_of(scope, turn_id)
        if not of.used and not of.acted:
            return
        context = (manifest or await self._manifests.get(scope, turn_id)).context
        key = ConversationKey(context.workspace_id, context.connector, context.external_id)
        seen = seen_in(key, audience_of(context))
        by = Provenance(author=author, context_id=key.context_id, turn_id=turn_id, origin="person")
        number = before.changes if after.changes == 0 else after.changes
        word = "mark" if after.changes else "forgotten"
        for voice in sorted({*before.voices, *after.voices}):
            was, now = before.voices.get(voice), after.voices.get(voice)
            told = of
            if of.acted and was != now and "bad" in (was, now):
                said = await self._reported(scope, voice, turn_id)
                told = replace(of, acted=tuple(one for one in of.acted if one not in said))
            await self._effects.become(seen, told, by, was, now, f"{word}:{turn_id}:{voice}:{number}")
        await self._effects.review(seen, of, by, before.verdict, after.verdict, f"{word}:{turn_id}:{number}")

    async def _reported(self, scope: Scope, voice: str, besides: str) -> frozenset[str]:
        """The censors that acted in what else *voice* called bad: nobody says twice of a censor that it acts wrongly,
        or whoever it stops could retire it alone."""
        _, kept = await self._store.all(scope)
        turns = [one.turn_id for one in kept if one.turn_id != besides and one.voices.get(voice) == "bad"]
        found = await asyncio.gather(*(self._manifests.records_of(scope, one) for one in turns))
        return frozenset(censor for one in found for censor in one.acted)

    async def _exchange(self, manifest: Manifest) -> Exchange | None:
        """The trace of a turn; None where its reply is no answer (an apology), or is not recorded."""
        context, key = manifest.context, _key_of(manifest)
        if manifest.outcome.get("kind") == "apology" or manifest.outcome.get("error_code"):
            return None
        entries = await self._transcript.of_turn(key, manifest.turn_id)
        asked = [one for one in entries if one.role is EntryRole.INBOUND]
        answered = [one for one in entries if one.role is EntryRole.OUTBOUND]
        if not asked or not answered:
            return None
        texts = await asyncio.to_thread(
            lambda: (_side(asked, self._tokens, ASKED_TOKENS), _side(answered, self._tokens, ANSWERED_TOKENS))
        )
        if not all(texts):
            return None
        # What was said before and came of others' words, an answer may have repeated ("and shorter, please").
        foreign = {one.foreign for one in (*answered, *asked)} | {one.foreign for one in context.tail}
        return Exchange(
            asked=texts[0],
            answered=texts[1],
            audience=audience_of(context) or "",
            foreign="retrieved" if "retrieved" in foreign else "others" if "others" in foreign else "",
            asked_in=tuple(one.message_id for one in asked if one.message_id),
        )


def _key_of(manifest: Manifest) -> ConversationKey:
    context = manifest.context
    return ConversationKey(context.workspace_id, context.connector, context.external_id)


def _side(entries: Sequence[Entry], tokens: Tokens, max_tokens: int) -> str:
    """What was said, in the exchange's own words, on one line, cut where a sentence ends if one does."""
    said = " ".join(" ".join(one.text[:_SIDE_CHARACTERS].split()) for one in entries)
    return clip(said, tokens, max_tokens)


def _is_admin(by: By) -> bool:
    return by.role is Role.ADMIN
