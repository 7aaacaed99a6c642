"""What people may do with the records that are kept: ``memory list``, ``show``, ``forget`` and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connectors.message import ConversationKey, Role, person_in
from grounding.memory.records.detail import in_words
from grounding.memory.records.port import KeepsRecords
from grounding.memory.records.record import HIDDEN, Provenance, Record, State, Type
from runtime.commands.command import CommandRefused, Invocation
from runtime.commands.wording import code, items, plain

DETAILS = (
    "`/memory list` lists records: in a direct message yours, in a private place those of the place, "
    "for admins also those of the workspace. "
    "`/memory list fact` lists one kind, `/memory list retired` the retired ones. "
    "`/memory show ID` shows one in full, and where it came from. "
    "`/memory confirm ID` confirms it. `/memory outcome ID success` (`partial`, `failure`) sets its outcome. "
    "`/memory verbatim ID` keeps it word for word. `/memory false-positive ID` reports a mistake of a censor. "
    "`/memory share ID` shares a record of this place, or of yours, with the whole workspace. "
    "`/memory retire ID` takes it out of use, `/memory forget ID` deletes it for good. `/memory forget all`, in a "
    "direct message, deletes all your records."
)
FORGOT_MINE = "I have deleted all your own records."
_ADMINS_LIST = "In a public place only admins can list records. Write to me in a direct message to see your own."
_DIRECT_ONLY = "You can delete your own records only in a direct message. Please send the command there."
_NOTHING = "There are no such records."
_SHOWN = 20
_PUT_AWAY = "retired"
"""The word for what is out of use, whatever its type: it is still kept, and who it is about may want it gone."""
_SAYS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "confirm": ({"confirm": True}, "Confirmed"),
    "verbatim": ({"verbatim": True}, "Kept word for word"),
    "false-positive": ({"false_positive": True}, "Noted as a mistake of the censor"),
    "retire": ({"state": State.INACTIVE}, "Retired"),
}
"""What is changed by a word that needs nothing but an id, and what is said of it."""
_FOR_MEMBERS = frozenset({"confirm", "outcome", "false-positive"})
"""What members may say of records of the workspace; the rest is for admins. Of their own people may say all."""
_OUTCOMES = ("success", "partial", "failure", "pending")


class RecordWords:
    """The words after ``memory`` that are about records."""

    WORDS = frozenset({"list", "show", "forget", "outcome", "share", *_SAYS})

    def __init__(
        self, records: KeepsRecords, forget_those_to_come: Callable[[ConversationKey], Awaitable[None]]
    ) -> None:
        """*forget_those_to_come* lets no record come of what was said in a conversation until now."""
        self._records = records
        self._forget_those_to_come = forget_those_to_come

    async def has_any(self, invocation: Invocation) -> bool:
        """Whether `run` would list anything for who asks."""
        return bool(await self._listed(invocation, (), 1)) if _may_list(invocation) else False

    async def run(self, invocation: Invocation) -> str:
        """What came of the words, the first of which is one of `WORDS`. Raises `CommandRefused` and `RecordRefused`."""
        word, _, rest = invocation.rest.partition(" ")
        word, argument = word.lower(), rest.strip()
        if word == "list":
            return await self._list(invocation, argument.lower())
        if word == "forget" and argument.lower() == "all":
            return await self._forget_mine(invocation)
        record_id, _, more = argument.partition(" ")
        if not record_id:
            raise CommandRefused(DETAILS)
        record = await self._records.get(invocation.seen, record_id.strip("`[]"))
        if word == "show":
            return _whole(record)
        if word == "share":
            return await self._share(invocation, record)
        _check(invocation, record, word)
        if word == "forget":
            await self._records.erase(invocation.seen, record.id, _by(invocation))
            return f"I have deleted {code(record.id)}."
        fields, said = _SAYS[word] if word in _SAYS else _outcome(more)
        changed = await self._records.change(
            invocation.seen, record.id, fields, _by(invocation), invocation.idempotency_key
        )
        return f"{said}: {_line(changed)}"

    async def _list(self, invocation: Invocation, kind: str) -> str:
        types = [one for one in Type if kind and kind in (one.value, f"{one.value}s", f"{one.value[:-1]}ies")]
        if kind and not types and kind != _PUT_AWAY:
            raise CommandRefused(f"The kinds are {', '.join(code(one.value) for one in Type)}, and {code(_PUT_AWAY)}.")
        if not _may_list(invocation):
            raise CommandRefused(_ADMINS_LIST)
        found = await self._listed(invocation, types, _SHOWN + 1, HIDDEN if kind == _PUT_AWAY else ())
        if not found:
            return _NOTHING
        more = "" if len(found) <= _SHOWN else f"\n\nThese are the newest {_SHOWN}; name a kind to see others."
        return items(_line(one, invocation) for one in found[:_SHOWN]) + more

    async def _listed(
        self, invocation: Invocation, types: Sequence[Type], limit: int, states: Collection[State] = ()
    ) -> list[Record]:
        """What is kept for this place or person alone, and then, for admins, the workspace's, each the newest first."""
        scope, found = invocation.seen, list[Record]()
        if scope.audience is not None:
            found += await self._records.list(scope, types, states, limit, own=True)
        if invocation.role is Role.ADMIN and len(found) < limit:
            found += await self._records.list(replace(scope, audience=None), types, states, limit - len(found))
        return found

    async def _share(self, invocation: Invocation, record: Record) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"Only members can share records. Your role here is {invocation.role.value}.")
        if not record.audience:
            return f"The whole workspace can already see {code(record.id)}."
        shared = await self._records.share(invocation.seen, record.id, _by(invocation))
        return f"The whole workspace can see this record now: {_line(shared)}"

    async def _forget_mine(self, invocation: Invocation) -> str:
        if not invocation.message.direct:
            raise CommandRefused(_DIRECT_ONLY)
        await self._forget_those_to_come(invocation.key)
        await self._records.forget(invocation.seen)
        return FORGOT_MINE


def _may_list(invocation: Invocation) -> bool:
    return invocation.message.audience is not None or invocation.role is Role.ADMIN


def _check(invocation: Invocation, record: Record, word: str) -> None:
    """Raises `CommandRefused` where *word* is not for whoever gave it to say of *record*."""
    if invocation.message.direct and record.audience:
        return
    if word in _FOR_MEMBERS and invocation.role.covers(Role.MEMBER):
        return
    if invocation.role is not Role.ADMIN:
        raise CommandRefused(f"{code(record.id)} is not yours alone. Only admins can do that.")


def _outcome(words: str) -> tuple[Mapping[str, Any], str]:
    outcome = words.strip().lower()
    if outcome not in _OUTCOMES:
        raise CommandRefused(f"Give the outcome: {', '.join(code(one) for one in _OUTCOMES)}.")
    return {"outcome": outcome}, "Outcome noted"


def _line(record: Record, invocation: Invocation | None = None) -> str:
    whose = f" ({shown_audience(record.audience)})" if invocation is not None and record.audience else ""
    return f"{code(record.id)} {record.type}, {record.state}: {plain(record.micro)}{whose}"


def shown_audience(audience: str) -> str:
    """Who may see what belongs to *audience*, as people in it read it."""
    return "yours" if person_in(audience) else "this place only" if audience else "the whole workspace"


def _whole(record: Record) -> str:
    of = record.provenance
    came = {
        "person": "said by",
        "tool": "kept by me for",
        "extraction": "found in what was said by",
        "retrieved": "kept by me, unverified, while I was shown documents, for",
        "others": "kept by me, unverified, among others' words, for",
    }[of.origin]
    told = [
        f"{record.type}, {record.state}, {record.created_at[:10]}",
        f"{came} {code(of.author or 'somebody')}{f' in {code(of.context_id)}' if of.context_id else ''}",
        f"outcome: {record.outcome}" if record.outcome else "",
        f"due {in_words(record.due)}" if record.due else "",
        f"confirmed {record.confirmations} times" if record.confirmations else "",
        f"in place of {code(record.supersedes)}" if record.supersedes else "",
        f"superseded by {code(record.superseded_by)}" if record.superseded_by else "",
        "kept word for word" if record.verbatim else "",
    ]
    return f"{plain(record.text)}\n\n{items(one for one in told if one)}"


def _by(invocation: Invocation) -> Provenance:
    return Provenance(author=invocation.user, context_id=invocation.key.context_id, origin="person")
