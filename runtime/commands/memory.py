"""``memory`` and ``forget``: show the notes on a conversation, show and change records, and delete both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connectors.message import ConversationKey, Role, person_of_audience
from grounding.memory.context_document import SECTIONS, ContextDocuments, Problem, bodies, parse, section_named
from grounding.memory.records import HIDDEN, Provenance, Record, Records, State, Type, in_words
from grounding.memory.selection import rules_for
from runtime.background import Forgetting
from runtime.commands.registry import Command, CommandRefused, Invocation, bullet_list, code, escape_markdown

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
RULES = (
    "**What you asked me to keep to**\n\n{rules}\n\n`/memory change ID WORDS` changes one of these, "
    "`/memory forget ID` deletes it."
)
FORGOT_LAST = "I have forgotten the last question and its answer."
FORGOT_ALL = "I have forgotten everything that was said here."
NOTHING_TO_FORGET = "There is nothing to forget here."
ADMINS_ONLY = "In a group only admins can use this. In a direct message you can."
DETAILS = (
    "`/memory list` lists records: in a direct message yours, in a private place those of the place, "
    "for admins also those of the workspace. "
    "`/memory list fact` lists one kind, `/memory list retired` the retired ones. "
    "`/memory show ID` shows one in full, and where it came from. "
    "`/memory confirm ID` confirms it. `/memory outcome ID success` (`partial`, `failure`) sets its outcome. "
    "`/memory verbatim ID` keeps it word for word. `/memory false-positive ID` reports a mistake of a censor. "
    "`/memory share ID` shares a record of this place, or of yours, with the whole workspace. "
    "`/memory change ID WORDS` gives it other words. "
    "`/memory retire ID` takes it out of use, `/memory forget ID` deletes it for good. `/memory forget all`, in a "
    "direct message, deletes all your records."
)
FORGOT_MINE = "I have deleted all your own records."
_ADMINS_LIST = "In a public place only admins can list records. Write to me in a direct message to see your own."
_DIRECT_ONLY = "You can delete your own records only in a direct message. Please send the command there."
_NOTHING = "There are no such records."
_SHOWN = 20
_MOST_RULES = 200
_RETIRED = "retired"
"""The word for records that are out of use, of any type: they are still stored, and a person may want them deleted."""
_CHANGES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "confirm": ({"confirm": True}, "Confirmed"),
    "verbatim": ({"verbatim": True}, "Kept word for word"),
    "false-positive": ({"false_positive": True}, "Noted as a mistake of the censor"),
    "retire": ({"state": State.INACTIVE}, "Retired"),
}
"""By word: the fields that it changes, and the beginning of the reply. These words need only an id."""
_FOR_MEMBERS = frozenset({"confirm", "outcome", "false-positive"})
"""The words that members may use on the workspace's records; the others are for admins. Own records allow all words."""
_OUTCOMES = ("success", "partial", "failure", "pending")


class Memory:
    """The context document, records, and forgetting. *end_turn* stops the answer that is being written and waits until
    it is stored, so that it is deleted, too."""

    def __init__(
        self,
        contexts: ContextDocuments,
        records: RecordCommands,
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
        if invocation.rest.partition(" ")[0].lower() in RecordCommands.WORDS:
            return await self._records.run(invocation)
        notes = await self._notes(invocation)
        if invocation.rest:
            return notes
        rules = await self._records.rules(invocation)
        listed = LISTED if await self._records.has_any(invocation) else ""
        return "\n\n".join(part for part in (notes, rules, listed) if part)

    async def _notes(self, invocation: Invocation) -> str:
        title = _section(invocation.rest) if invocation.rest else ""
        document = await self._contexts.latest(invocation.key)
        sections = bodies(document.text) if document else {}
        # A program may store a text without these sections.
        untitled = [part.body for part in parse(document.text) if not part.title] if document else []
        if not sections and not untitled:
            return NOTHING_NOTED
        if not title:
            shown = [*untitled, *(f"**{title}**\n\n{body}" for title, body in sections.items())]
            if document and (problem := document.lasting_problem):
                shown.append(_warning(problem, invocation.role))
            return "\n\n".join(shown)
        return f"**{title}**\n\n{sections[title]}" if title in sections else f"I have noted nothing under {title}."

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


def _warning(problem: Problem, role: Role) -> str:
    """Return why the context document is not refreshed, or not shown whole, and for admins what to do."""
    text = problem.notice if role is Role.ADMIN else f"{problem.text}. Please tell an administrator."
    return f"⚠ {escape_markdown(text)}"


def _section(wanted: str) -> str:
    """Return the section whose title is *wanted*, or begins with it. Raises `CommandRefused`."""
    found = section_named(wanted)
    if found is None:
        raise CommandRefused(f"The sections are {', '.join(code(title.lower()) for title in SECTIONS)}.")
    return found


class RecordCommands:
    """The words after ``memory`` that show or change records."""

    WORDS = frozenset({"list", "show", "forget", "outcome", "share", "change", *_CHANGES})

    def __init__(self, records: Records, forget_those_to_come: Callable[[ConversationKey], Awaitable[None]]) -> None:
        """*forget_those_to_come* keeps the extraction from making records of a conversation's messages so far."""
        self._records = records
        self._forget_those_to_come = forget_those_to_come

    async def has_any(self, invocation: Invocation) -> bool:
        """Return whether `list` shows this person anything."""
        return bool(await self._listed(invocation, (), 1)) if _may_list(invocation) else False

    async def rules(self, invocation: Invocation) -> str:
        """Return the standing rules that concern this person here, the newest first; empty if there are none."""
        records = await self._records.list(invocation.seen, (Type.RULE,), limit=_MOST_RULES)
        rules = rules_for(invocation.user, records)
        return RULES.format(rules=bullet_list(_line(record) for record in rules[:_SHOWN])) if rules else ""

    async def run(self, invocation: Invocation) -> str:
        """Run the command, which begins with one of `WORDS`. Raises `CommandRefused` and `RecordRefused`."""
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
            return _full_text(record)
        if word == "share":
            return await self._share(invocation, record)
        _check(invocation, record, word)
        if word == "forget":
            await self._records.erase(invocation.seen, record.id, _by(invocation))
            return f"I have deleted {code(record.id)}."
        fields, result = _CHANGES[word] if word in _CHANGES else _wanted(word, more)
        changed = await self._records.change(
            invocation.seen, record.id, fields, _by(invocation), invocation.idempotency_key
        )
        return f"{result}: {_line(changed)}"

    async def _list(self, invocation: Invocation, kind: str) -> str:
        types = [type_ for type_ in Type if kind and kind in (type_.value, f"{type_.value}s", f"{type_.value[:-1]}ies")]
        if kind and not types and kind != _RETIRED:
            raise CommandRefused(
                f"The kinds are {', '.join(code(type_.value) for type_ in Type)}, and {code(_RETIRED)}."
            )
        if not _may_list(invocation):
            raise CommandRefused(_ADMINS_LIST)
        found = await self._listed(invocation, types, _SHOWN + 1, HIDDEN if kind == _RETIRED else ())
        if not found:
            return _NOTHING
        more = "" if len(found) <= _SHOWN else f"\n\nThese are the newest {_SHOWN}; name a kind to see others."
        return bullet_list(_line(record, invocation) for record in found[:_SHOWN]) + more

    async def _listed(
        self, invocation: Invocation, types: Sequence[Type], limit: int, states: Collection[State] = ()
    ) -> list[Record]:
        """Return the records of this place or person and then, for admins, the workspace's, each the newest first."""
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
    """Raise `CommandRefused` if the author may not use *word* on *record*."""
    if invocation.message.direct and record.audience:
        return
    if word in _FOR_MEMBERS and invocation.role.covers(Role.MEMBER):
        return
    is_own_rule = record.type is Type.RULE and record.provenance.author == invocation.user
    if is_own_rule and invocation.message.is_vouched_for:
        return
    if invocation.role is not Role.ADMIN:
        raise CommandRefused(f"{code(record.id)} is not yours alone. Only admins can do that.")


def _wanted(word: str, words: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields that *word*, "change" or "outcome", changes with *words*, and the beginning of the reply."""
    if word == "change":
        if not words.strip():
            raise CommandRefused("Give the new words: `/memory change ID WORDS`.")
        return {"text": words}, "Changed"
    outcome = words.strip().lower()
    if outcome not in _OUTCOMES:
        raise CommandRefused(f"Give the outcome: {', '.join(map(code, _OUTCOMES))}.")
    return {"outcome": outcome}, "Outcome noted"


def _line(record: Record, invocation: Invocation | None = None) -> str:
    owner = ""
    if invocation is not None and record.audience:
        owner = " (yours)" if person_of_audience(record.audience) else " (this place only)"
    return f"{code(record.id)} {record.type}, {record.state}: {escape_markdown(record.micro)}{owner}"


def _full_text(record: Record) -> str:
    source = record.provenance
    origin = {
        "person": "said by",
        "tool": "kept by me for",
        "extraction": "found in what was said by",
        "retrieved": "kept by me, unverified, while I was shown documents, for",
        "others": "kept by me, unverified, among others' words, for",
    }[source.origin]
    facts = [
        f"{record.type}, {record.state}, {record.created_at[:10]}",
        f"{origin} {code(source.author or 'somebody')}{f' in {code(source.context_id)}' if source.context_id else ''}",
        f"outcome: {record.outcome}" if record.outcome else "",
        f"due {in_words(record.due)}" if record.due else "",
        f"confirmed {record.confirmations} times" if record.confirmations else "",
        f"in place of {code(record.supersedes)}" if record.supersedes else "",
        f"superseded by {code(record.superseded_by)}" if record.superseded_by else "",
        "kept word for word" if record.verbatim else "",
    ]
    return f"{escape_markdown(record.text)}\n\n{bullet_list(fact for fact in facts if fact)}"


def _by(invocation: Invocation) -> Provenance:
    return Provenance(author=invocation.user, context_id=invocation.key.context_id, origin="person")
