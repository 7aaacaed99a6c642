"""``memory`` and ``forget``: what the bot noted about a conversation and keeps as records, and having it forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connectors.message import ConversationKey, Role, Scope, person_in
from grounding.memory.context_document import SECTIONS, ContextDocuments, bodies, parse, section_named
from grounding.memory.global_context import MARK, UNTRUSTED, By, Editor, GlobalContexts, Line, Waiting
from grounding.memory.records import HIDDEN, KeepsRecords, Provenance, Record, State, Type, in_words
from runtime.background import Forgetting
from runtime.commands.registry import Command, CommandRefused, Invocation, code, items, plain

# ---- records ----
#
# What people may do with the records that are kept: ``memory list``, ``show``, ``forget`` and the like.


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


# ---- memory ----


NOTHING_NOTED = "I have not noted anything about this conversation yet."
EXPLAINED = (
    "`/forget last` deletes the last question and its answer from everything that I keep.\n\n"
    "`/forget all` deletes everything that was said here, and what I noted about it (`/memory`).\n\n"
    "Records that came from it are deleted, too: decisions, facts, tasks and the like. "
    "`/memory forget ID` deletes a single record.\n\n"
    "The messages that this platform shows, and the documents of the workspace, stay. "
    "This cannot be undone."
)
LISTED = "I also keep records: `/memory list` shows them."
FORGOT_LAST = "I have forgotten the last question and its answer."
FORGOT_ALL = "I have forgotten everything that was said here."
NOTHING_TO_FORGET = "There is nothing to forget here."
ADMINS_ONLY = "In a group only admins can use this. In a direct message you can."


class Memory:
    """The context document, records, and forgetting. *end_turn* ends an answer that is being written and waits until it
    is recorded: it is forgotten, too."""

    def __init__(
        self,
        contexts: ContextDocuments,
        records: RecordWords,
        forgetting: Forgetting,
        end_turn: Callable[[ConversationKey], Awaitable[None]],
    ) -> None:
        self._contexts = contexts
        self._records = records
        self._forgetting = forgetting
        self._end_turn = end_turn

    def commands(self) -> list[Command]:
        names = ", ".join(code(title.lower()) for title in SECTIONS)
        return [
            Command(
                "memory",
                "show my notes on this conversation, and the records",
                self.memory,
                "[section|list|show ID|…]",
                details=f"Sections: {names}.\n\n{DETAILS}",
            ),
            Command("forget", "make me forget what was said", self.forget, "[last|all]", details=EXPLAINED),
        ]

    async def memory(self, invocation: Invocation) -> str:
        if invocation.rest.partition(" ")[0].lower() in RecordWords.WORDS:
            return await self._records.run(invocation)
        noted = await self._noted(invocation)
        if invocation.rest or not await self._records.has_any(invocation):
            return noted
        return f"{noted}\n\n{LISTED}"

    async def _noted(self, invocation: Invocation) -> str:
        title = _section(invocation.rest) if invocation.rest else ""
        document = await self._contexts.latest(invocation.key)
        noted = bodies(document.text) if document else {}
        # Programs may keep a text that has none of the sections.
        loose = [part.body for part in parse(document.text) if not part.title] if document else []
        if not noted and not loose:
            return NOTHING_NOTED
        if not title:
            return "\n\n".join([*loose, *(f"**{title}**\n\n{body}" for title, body in noted.items())])
        return f"**{title}**\n\n{noted[title]}" if title in noted else f"I have noted nothing under {title}."

    async def forget(self, invocation: Invocation) -> str:
        what = invocation.rest.lower()
        if what not in ("last", "all"):
            return EXPLAINED
        if not invocation.message.direct and invocation.role is not Role.ADMIN:
            raise CommandRefused(ADMINS_ONLY)
        audience = invocation.message.audience
        if what == "last":
            forgot = await self._forgetting.last(invocation.key, invocation.message.message_id, audience)
            return FORGOT_LAST if forgot else NOTHING_TO_FORGET
        await self._end_turn(invocation.key)
        await self._forgetting.everything(invocation.key, invocation.message.message_id, audience)
        return FORGOT_ALL


def _section(wanted: str) -> str:
    """The section whose title *wanted* is, or begins. Raises `CommandRefused`."""
    found = section_named(wanted)
    if found is None:
        raise CommandRefused(f"The sections are {', '.join(code(title.lower()) for title in SECTIONS)}.")
    return found


# ---- global context ----
#
# ``context``: the lines that the bot always knows, for people to see and change.


EMPTY = (
    "There are no lines here yet. `/context add TEXT` adds one: a lasting preference, habit, rule or fact. "
    "Do not add single tasks, one-time events or things that soon change."
)
GLOBAL_CONTEXT_DETAILS = (
    "`/context` lists the lines that I always know. `/context add TEXT` adds one, `/context replace 3 TEXT` changes "
    "line 3, `/context delete 3` deletes it. What you add in a direct message is yours and shown nowhere else. "
    "A line from a private place is shown in that place only; a line from a public channel, in the whole workspace. "
    "`/context share 3` shares a line with the workspace. `/context waiting` lists what I noted from documents or "
    "other people's words. I use it only after `/context approve 1`; `deny 1` rejects it. You decide about your own "
    "lines, admins about all others. "
    "`/context history` lists the newest edits. `/context forget`, in a direct message, deletes all your lines."
)
FORGOT = "I have deleted all your own lines, and their history."
_HINT = f"Write {code('/context add TEXT')}, {code('/context replace 3 TEXT')} or {code('/context delete 3')}."
_GLOBAL_CONTEXT_DIRECT_ONLY = "You can delete your own lines only in a direct message. Please send the command there."
_ADMINS = "Only admins can decide about lines of a group or of the whole workspace."
_SHOWN_EDITS = 10


class GlobalContext:
    """What a person may do with the lines in view where they say it."""

    def __init__(self, lines: GlobalContexts) -> None:
        self._lines = lines

    def commands(self) -> list[Command]:
        return [
            Command(
                "context",
                "show and edit the lines that I always know",
                self.run,
                "[add|replace|delete|waiting|…]",
                details=GLOBAL_CONTEXT_DETAILS,
            )
        ]

    async def run(self, invocation: Invocation) -> str:
        word, _, rest = invocation.rest.partition(" ")
        match word.lower():
            case "":
                return await self._show(invocation)
            case "history":
                return await self._history(invocation)
            case "waiting":
                return await self._waiting(invocation)
            case "add" | "replace" | "delete" as action:
                return await self._edit(invocation, action, rest.strip())
            case "approve" | "deny" as decision:
                return await self._decide(invocation, decision, rest.strip())
            case "share":
                return await self._share(invocation, rest.strip())
            case "forget":
                return await self._forget(invocation)
            case _:
                raise CommandRefused(f"{_HINT}\n\n{GLOBAL_CONTEXT_DETAILS}")

    async def _show(self, invocation: Invocation) -> str:
        lines = await self._lines.open(_editor(invocation))
        said = "\n".join(_shown(line) for line in lines if line.content) or EMPTY
        waits = [one for scope in _scopes(invocation) for one in await self._lines.waiting(scope)]
        return f"{said}\n\nWaiting for approval: {len(waits)} ({code('/context waiting')})." if waits else said

    async def _history(self, invocation: Invocation) -> str:
        found = [one for scope in _scopes(invocation) for one in await self._lines.history(scope, _SHOWN_EDITS)]
        newest = sorted(found, key=lambda one: one.at, reverse=True)[:_SHOWN_EDITS]
        return (
            items(
                f"{one.at[:16].replace('T', ' ')} UTC, {code(one.by)}: {one.action} {plain(one.after or one.before)}"
                for one in newest
            )
            or "There are no edits here yet."
        )

    async def _waiting(self, invocation: Invocation) -> str:
        found = [one for scope in _scopes(invocation) for one in await self._lines.waiting(scope)]
        return items(map(_waits, found)) or "No edit waits for approval."

    async def _edit(self, invocation: Invocation, action: str, rest: str) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"Only members can change lines. Your role here is {invocation.role.value}.")
        editor, by = _editor(invocation), By(invocation.user, key=invocation.idempotency_key)
        if action == "add":
            edited = await self._lines.append(editor, rest, by)
            return f"Added as line {edited.number}."
        number, _, content = rest.partition(" ")
        if not (number.isascii() and number.isdecimal() and len(number) <= 9):
            raise CommandRefused(_HINT)
        if action == "replace":
            await self._lines.replace(editor, int(number), content, by)
            return f"Line {int(number)} is changed."
        await self._lines.delete(editor, int(number), by)
        return f"Line {int(number)} is deleted. The other lines keep their numbers for now."

    async def _share(self, invocation: Invocation, number: str) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"Only members can share lines. Your role here is {invocation.role.value}.")
        if not (number.isascii() and number.isdecimal() and len(number) <= 9):
            raise CommandRefused(f"Write {code('/context share 3')}, with the number of a line.")
        content = await self._lines.share(_editor(invocation), int(number), By(invocation.user))
        return f"The whole workspace can see this line now: {plain(content)}"

    async def _decide(self, invocation: Invocation, decision: str, id_: str) -> str:
        scope = _scopes(invocation)[-1]
        if id_.startswith("w"):  # of the workspace, said in a direct message
            scope, id_ = _scopes(invocation)[0], id_.removeprefix("w")
        is_own = invocation.message.direct and scope.audience is not None
        if not is_own and invocation.role is not Role.ADMIN:
            raise CommandRefused(_ADMINS)
        act = self._lines.approve if decision == "approve" else self._lines.deny
        await act(scope, id_, invocation.user)
        return "Approved. I use it from now on." if decision == "approve" else "Rejected. I do not use it."

    async def _forget(self, invocation: Invocation) -> str:
        if not invocation.message.direct:
            raise CommandRefused(_GLOBAL_CONTEXT_DIRECT_ONLY)
        await self._lines.forget_person(invocation.seen)
        return FORGOT


def _editor(invocation: Invocation) -> Editor:
    """Each person has numbers of their own in a place: those of the list that they were shown last."""
    return Editor(invocation.seen, "person", invocation.user)


def _scopes(invocation: Invocation) -> list[Scope]:
    """The workspace, and where the place is private its audience."""
    scope = invocation.seen
    workspace = Scope(scope.workspace_id, scope.context_id)
    return [workspace] if scope.audience is None else [workspace, scope]


def _shown(line: Line) -> str:
    whose = {"workspace": "", "user": " (yours)", "place": " (this place only)"}[line.owner]
    return f"{code(f'{line.number}--')} {plain(line.content)}{whose}{MARK if line.origin in UNTRUSTED else ''}"


def _waits(one: Waiting) -> str:
    id_ = f"w{one.id}" if one.owner == "workspace" else one.id
    was = f", instead of {plain(one.before)}" if one.action == "replace" else ""
    return (
        f"{code(id_)} {one.action}: {plain(one.content or one.before)}{was} (from {one.origin}, for {code(one.author)})"
    )
