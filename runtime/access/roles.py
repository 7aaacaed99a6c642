"""Decides who may talk to the bot, and in which role.

Keys (owner ``access``): under a workspace's tag ``roles``, a hash of person to role, ``names``, of person to the name
that an admin gave, and ``own_names``, to the name that the person's messages had last. Under ``{access}``: ``asked``,
how often a person was told that they may not talk; ``told``, for a pairing request and a shared place the message whose
author was told there; and ``direct``, a hash of admin to the conversation in which they hear of pairing requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import structlog

from config.settings import Settings
from connectors.message import (
    CALLER_PREFIX,
    ConversationKey,
    InboundKind,
    InboundMessage,
    Role,
    Scope,
    encode_id,
    redis_key,
)
from promptpolicy.sigils import Holder, Sigils
from runtime.access.api_tokens import MAX_NAME_CHARACTERS, ApiToken, ApiTokens, check_token_name, is_person
from runtime.access.pairing import CODE_SECONDS, Pairing, PairingRequest, count_within, person_field
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


MAX_NOTICES = 8
"""How often one person is told within `NOTICE_SECONDS` that they may not talk."""
NOTICE_SECONDS = 600
WAIT_HERE = "I have asked an admin to let you in. An admin sees what you wrote and decides."
"""What a stranger is told if others read along: never the code."""
ASK_HERE = "Ask whoever runs me to run `./agent-runtime access list`. An admin sees what you wrote and decides."
"""The same, if no admin can be told."""

MAX_OWN_NAMES = 10_000
"""Names that a process remembers to have stored; then it begins anew."""

_FORMAT = 1
_NOTHING = {
    "pairing": "Nothing lets {user} in. ACCESS_POLICY is pairing: whoever writes to the bot waits for an admin.",
    "allowlist": "Nothing lets {user} in. ACCESS_POLICY is allowlist, and ACCESS_ALLOWLIST does not name them.",
    "open": "Nothing lets {user} in: no link or token with this id is valid here.",
}
# Replace a role if nobody else has changed it meanwhile.
_SWAP = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
_DIRECT = redis_key("access", "{access}", "direct")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a message may be answered.

    ``why`` is one word for events, empty if the message is allowed. ``notice`` is what to tell the person, if not
    empty. ``request`` is the stranger's pairing request.
    """

    allowed: bool
    role: Role = Role.VIEWER
    why: str = ""
    notice: str = ""
    request: PairingRequest | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """A person's role; ``user`` is ``connector:user_id``. ``workspace_id`` None: in all workspaces, by the settings.

    ``name`` is the one that an admin gave, else the one under which they were let in, else their own; nobody has
    checked the latter (``is_self_named``). ``given_by`` and ``given_at`` say who gave the role and when; empty and None
    for a role by the settings or of an earlier version.
    """

    user: str
    name: str
    role: Role
    workspace_id: str | None
    given_by: str = ""
    given_at: datetime | None = None
    is_self_named: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a person may do something, or the absence of one (``role`` None), in a sentence.

    ``decides``: it is the one by which the person's role, or their sigil, is what it is.
    """

    text: str
    role: Role | None
    source: Literal["settings", "role", "token", "sigil"]
    decides: bool = False


class Access:
    """Roles and pairing. All methods raise `connectors.message.StoreUnavailable`.

    *tokens* are revoked with the roles of their owners; *clock* gives seconds since the epoch.
    """

    def __init__(
        self, redis: Redis, settings: Settings, tokens: ApiTokens, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._tokens = tokens
        self._clock = clock
        self._sigils = Sigils.from_settings(settings)
        self._own_names: dict[tuple[str, str], str] = {}
        """The names that this process stored last, by workspace and person."""
        self._policy = settings.access_policy
        self._admins = frozenset(settings.access_admins)
        self._allowlist = frozenset(settings.access_allowlist)
        self._pairing = Pairing(redis, clock=clock)
        self.decided = asyncio.Event()
        """Set when a request was approved or denied in this process."""

    # Deciding on a message

    async def authorise(self, message: InboundMessage, workspace_id: str) -> Decision:
        """Decide whether *message* may be answered in *workspace_id*, and in which role its author speaks.

        Call this once for each message: it counts notices, and a refusal is the event ``access.refused``. A message
        with a ``caller_role`` comes from an authenticated caller and is always allowed; see `role_here`.
        """
        role = await self.role_here(message, workspace_id)
        user = message.author.user(message.connector)
        if role is not None:
            if message.caller_role is None and message.author.name:
                await self._note_own_name(user, message.author.name, workspace_id)
            return Decision(True, role)
        request = None
        if self._policy == "pairing" and _is_said_to_us(message):
            request = await self._pairing.ask(user, message.author.name, workspace_id, message)
        if message.direct:
            notice = await self._direct_notice(user, request)
        else:
            notice = await self._public_notice(user, request, message)
        why = "unpaired" if self._policy == "pairing" else "not_on_allowlist"
        log.info(
            "access.refused",
            why=why,
            workspace_id=workspace_id,
            context_id=f"{message.connector}:{message.external_id}",
            connector=message.connector,
            user=user,
        )
        return Decision(False, why=why, notice=notice, request=request)

    async def role_here(self, message: InboundMessage, workspace_id: str) -> Role | None:
        """Return the role in which the author of *message* speaks; None for a stranger.

        The role of a message from an authenticated caller is the author's, but never more than the caller's; if the
        message names no author, it is the caller's.
        """
        user = message.author.user(message.connector)
        if message.caller_role is None:
            role = await self.role_of(user, workspace_id)
            return Role.MEMBER if role is None and self._policy == "open" else role
        if message.is_caller or message.author.id.startswith(CALLER_PREFIX):
            return message.caller_role
        role = await self.role_of(user, workspace_id) or Role.MEMBER
        return role if message.caller_role.covers(role) else message.caller_role

    async def role_of(self, user: str, workspace_id: str) -> Role | None:
        """Return the role of *user* (``connector:user_id``) by the settings or by approval; None for a stranger."""
        if user in self._admins:
            return Role.ADMIN
        stored = await self._redis.hget(_roles_key(workspace_id), person_field(user))
        if stored is not None:
            return Role(unpack(stored, _FORMAT, "a role")["role"])
        return Role.MEMBER if user in self._allowlist else None

    async def may_talk(self, user: str, workspace_id: str) -> bool:
        """Return whether *user* (``connector:user_id``) would be answered there."""
        return self._policy == "open" or await self.role_of(user, workspace_id) is not None

    def is_admin_everywhere(self, message: InboundMessage) -> bool:
        """Return whether the settings make the author an admin of all workspaces.

        The author of an authenticated caller's message never is one: a token's holder may name anyone.
        """
        return message.caller_role is None and message.author.user(message.connector) in self._admins

    async def _direct_notice(self, user: str, request: PairingRequest | None) -> str:
        if self._policy == "pairing" and (request is None or request.state != "waiting"):
            return ""
        if await count_within(self._redis, _asked_key(user), NOTICE_SECONDS) > MAX_NOTICES:
            return ""
        if request is None:
            return f"I only talk to people on my list, and you ({user}) are not on it. An admin can add you."
        sentence = (
            "I have asked the admins of this bot to let you in"
            if await self.admins_to_tell(request.workspace_id)
            else "Whoever runs this bot has to let you in"
        )
        return (
            f"We have not met yet (you are `{user}`). {sentence}. An admin sees what you wrote and decides; then I "
            f"will answer it. Your pairing code is {request.code}. "
            f"If you know an admin, give it to them: they can tell me `/pair approve {request.code}`, or run "
            f"`./agent-runtime access approve {request.code}`. It is valid for {CODE_SECONDS // 3600} hours."
        )

    async def _public_notice(self, user: str, request: PairingRequest | None, message: InboundMessage) -> str:
        """Return a notice that others may read: for the first message of a request in each place, however often it
        comes."""
        if request is None or request.state != "waiting" or message.kind is InboundKind.EDIT:
            return ""
        key, value = _told_key(request, message), encode_id(f"{message.external_id} {message.message_id}")
        if not await self._redis.set(key, value, nx=True, ex=CODE_SECONDS) and await self._redis.get(key) != value:
            return ""
        if await count_within(self._redis, _asked_key(user), NOTICE_SECONDS) > MAX_NOTICES:
            return ""
        return WAIT_HERE if await self.admins_to_tell(request.workspace_id) else ASK_HERE

    async def _note_own_name(self, user: str, name: str, workspace_id: str) -> None:
        """Store a name that is not stored yet, as far as this process knows: no reading for each message."""
        if self._own_names.get((workspace_id, user)) == name:
            return
        if len(self._own_names) >= MAX_OWN_NAMES:
            self._own_names.clear()
        self._own_names[workspace_id, user] = name
        await self._redis.hset(_own_names_key(workspace_id), person_field(user), _named(user, name))

    # Pairing requests

    async def approve(
        self,
        code: str,
        workspace_id: str | None = None,
        role: Role = Role.MEMBER,
        *,
        by: str = "",
        by_name: str = "",
    ) -> Person:
        """Give the person of the pairing *code* a *role*; with *workspace_id*, only a code for that workspace counts.

        *by* is the admin's id for the event ``access.changed``, *by_name* the name that people know. The gateway then
        tells the person (`unsettled`). Raises `UnknownCode`, `AlreadyDecided` and `TooManyAttempts`.
        """
        request = await self._pairing.decide(code, workspace_id, "approved", by_name or by, role)
        person = await self._store_role(request.user, request.name, role, request.workspace_id, by or by_name)
        self.decided.set()
        _log_change("approved", request.workspace_id, user=request.user, role=role.value, by=by)
        return person

    async def deny(
        self, code: str, workspace_id: str | None = None, *, by: str = "", by_name: str = ""
    ) -> PairingRequest:
        """Reject the request of the pairing *code*, and return it. Parameters and errors as for `approve`."""
        request = await self._pairing.decide(code, workspace_id, "denied", by_name or by)
        self.decided.set()
        _log_change("denied", request.workspace_id, user=request.user, by=by)
        return request

    async def pending(self) -> list[PairingRequest]:
        """Return the requests that wait for a decision, the oldest first."""
        return await self._pairing.pending()

    async def unsettled(self) -> list[PairingRequest]:
        """Return decided requests whose people are not told yet.

        Approved people have their role then, even if the process that approved them stopped before it stored it.
        """
        requests = await self._pairing.unsettled()
        for request in requests:
            if request.state == "approved" and await self.role_of(request.user, request.workspace_id) is None:
                await self._store_role(request.user, request.name, request.role, request.workspace_id, request.by)
        return requests

    async def settled(self, request: PairingRequest) -> None:
        """Store that the person of *request* was told and their messages are accepted."""
        await self._pairing.settled(request)

    async def withdraw(self, message: InboundMessage, workspace_id: str) -> None:
        """Drop a deleted message from the pairing request that holds it."""
        if self._policy == "pairing":
            await self._pairing.withdraw(workspace_id, message)

    async def note_direct(self, message: InboundMessage, key: ConversationKey) -> bool:
        """Store the direct conversation in which an admin, the author of *message*, hears of pairing requests.

        Returns True the first time: no one has told this admin of the requests that wait.
        """
        field = person_field(message.author.user(message.connector))
        return await self._redis.hset(_DIRECT, field, key.encoded) == 1

    async def admins_to_tell(self, workspace_id: str) -> list[ConversationKey]:
        """Return the direct conversations of the admins of *workspace_id*."""
        admins = [person.user for person in await self.people(workspace_id) if person.role is Role.ADMIN]
        if not admins:
            return []
        stored = await self._redis.hmget(_DIRECT, [person_field(user) for user in admins])
        return [ConversationKey.decode(str(key)) for key in stored if key is not None]

    # People

    async def people(self, workspace_id: str) -> list[Person]:
        """Return everybody with a role in *workspace_id*, by user. The settings win for admins only."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in (_roles_key(workspace_id), _names_key(workspace_id), _own_names_key(workspace_id)):
                pipe.hgetall(key)
            roles, names, own_names = await pipe.execute()
        people = {user: Person(user, "", Role.MEMBER, None) for user in self._allowlist}
        for stored in roles.values():
            values = unpack(stored, _FORMAT, "a role")
            at = values.get("given_at")
            people[values["user"]] = Person(
                values["user"],
                values["name"],
                Role(values["role"]),
                workspace_id,
                values.get("given_by", ""),
                None if at is None else datetime.fromtimestamp(at, UTC),
            )
        for user in self._admins:
            known = people.get(user)
            people[user] = Person(user, known.name if known else "", Role.ADMIN, None)
        for stored in own_names.values():
            values = unpack(stored, _FORMAT, "a name")
            if (known := people.get(values["user"])) and not known.name:
                people[known.user] = replace(known, name=values["name"], is_self_named=True)
        for stored in names.values():
            values = unpack(stored, _FORMAT, "a name")
            if known := people.get(values["user"]):
                people[known.user] = replace(known, name=values["name"], is_self_named=False)
        return [people[user] for user in sorted(people)]

    async def set_role(
        self, user: str, role: Role | None, workspace_id: str, *, name: str = "", by: str = ""
    ) -> list[ApiToken]:
        """Give *user* (``connector:user_id``) *role* in *workspace_id*, or with None take it away.

        Returns the tokens of theirs that are revoked with it, because they allow more than the person may now. *name*
        is the name to know them by. Raises `ValueError` if *user* does not have that form, and `InvalidTokenName`.
        """
        _check_person(user)
        if name:
            await self.set_name(user, name, workspace_id)
        field = person_field(user)
        if role is None:
            await self._redis.hdel(_roles_key(workspace_id), field)
            await self._redis.hdel(_names_key(workspace_id), field)
            await self._redis.hdel(_own_names_key(workspace_id), field)
            self._own_names.pop((workspace_id, user), None)
        else:
            stored = await self._redis.hget(_roles_key(workspace_id), field)
            known_name = "" if stored is None else unpack(stored, _FORMAT, "a role")["name"]
            await self._store_role(user, known_name, role, workspace_id, by)
            await self._pairing.approve_user(user, workspace_id, by)  # a waiting person is told, and answered
            self.decided.set()
        _log_change("role", workspace_id, user=user, role=role.value if role else "none", by=by)
        left = await self.role_of(user, workspace_id) or (Role.MEMBER if self._policy == "open" else None)
        return await self._tokens.revoke_beyond(user, left, workspace_id, by=by)

    async def set_name(self, user: str, name: str, workspace_id: str) -> None:
        """Know *user* by *name* in *workspace_id*; an empty name takes the given one away.

        It is kept until their role is taken away. Raises `ValueError` as `set_role`, and `InvalidTokenName`.
        """
        _check_person(user)
        if name := check_token_name(name):
            await self._redis.hset(_names_key(workspace_id), person_field(user), _named(user, name))
        else:
            await self._redis.hdel(_names_key(workspace_id), person_field(user))

    async def account_of(self, name: str, workspace_id: str) -> str:
        """Return the id of the one person of *workspace_id* whom admins know by *name*; else *name* itself.

        A name that people gave themselves does not count: it may be another person's. Raises `ValueError` if several
        people have that name.
        """
        named = await self._names_of_people(workspace_id)
        found = sorted(user for user, known in named.items() if known.casefold() == name.strip().casefold())
        if len(found) > 1:
            raise ValueError(f"several people are called {name!r}: {', '.join(found)}; give the id")
        return found[0] if found else name.strip()

    async def _names_of_people(self, workspace_id: str) -> dict[str, str]:
        """Return the names of people that an admin has seen, by their id."""
        names = {one.user: one.name for one in await self.people(workspace_id) if one.name and not one.is_self_named}
        links = await self._tokens.of_workspace(workspace_id)
        return names | {link.user: link.name for link in links if link.person and link.name}

    async def forget_person(self, user: str, workspace_id: str, *, by: str = "") -> list[ApiToken]:
        """Delete what is stored about a person: role, names, request, and their id in the roles that they gave.

        Returns the tokens that were revoked with it.
        """
        revoked = await self.set_role(user, None, workspace_id, by=by)
        await self._pairing.forget_person(user, workspace_id)
        await self._redis.hdel(_DIRECT, person_field(user))
        for field, stored in (await self._redis.hgetall(_roles_key(workspace_id))).items():
            values = unpack(stored, _FORMAT, "a role")
            if values.get("given_by") == user:
                without = pack(_FORMAT, **{**values, "given_by": ""})
                await self._redis.eval(_SWAP, 1, _roles_key(workspace_id), str(field), stored, without)
        return revoked

    async def _store_role(self, user: str, name: str, role: Role, workspace_id: str, by: str) -> Person:
        at = self._clock()
        fields = {"user": user, "name": name, "role": role.value, "given_by": by, "given_at": at}
        await self._redis.hset(_roles_key(workspace_id), person_field(user), pack(_FORMAT, **fields))
        return Person(user, name, role, workspace_id, by, datetime.fromtimestamp(at, UTC))

    # What a person may do, and why

    async def standing(self, user: str, workspace_id: str, context_id: str = "") -> list[Rule]:
        """Return the rules about *user* in *workspace_id*, those that decide first; at last that of their sigil in a
        context.

        *user* is ``connector:user_id``, or the id of a `Caller`. There is always one rule that decides on the role; if
        nothing lets the person in, its role is None.
        """
        rules = [*await self._rules_of_roles(user, workspace_id), *await self._rules_of_tokens(user, workspace_id)]
        role = next((rule.role for rule in rules if rule.decides), None)
        if role is None:
            rules.insert(0, Rule(_NOTHING[self._policy].format(user=user), None, "settings", decides=True))
            return rules
        binding, sigil = self._sigils.binding_of(Holder(user, role), context_id)
        allows = ", ".join(sigil.scopes) or "nothing"
        text = f"The sigil {sigil.name} is bound to {binding}: for {user}, the model may use {allows}."
        return [*sorted(rules, key=lambda rule: not rule.decides), Rule(text, role, "sigil", decides=True)]

    async def _rules_of_roles(self, user: str, workspace_id: str) -> list[Rule]:
        """Return what the settings and the stored role say of a person, the stronger first."""
        rules = []
        if user in self._admins:
            text = f"ACCESS_ADMINS in the settings names {user}: an admin in every workspace."
            rules.append(Rule(text, Role.ADMIN, "settings"))
        stored = await self._redis.hget(_roles_key(workspace_id), person_field(user))
        if stored is not None:
            values = unpack(stored, _FORMAT, "a role")
            role = Role(values["role"])
            by, at = values.get("given_by", ""), values.get("given_at")
            names = await self._names_of_people(workspace_id)
            giver = f"{names[by]} ({by})" if by in names else by or "Somebody"
            day = f" on {datetime.fromtimestamp(at, UTC).date().isoformat()}" if at is not None else ""
            text = f"{giver} gave {user} the role {role} in the workspace {workspace_id}{day}."
            rules.append(Rule(text, role, "role"))
        if user in self._allowlist:
            text = f"ACCESS_ALLOWLIST in the settings names {user}: a member in every workspace."
            rules.append(Rule(text, Role.MEMBER, "settings"))
        if self._policy == "open" and not user.startswith((CALLER_PREFIX, "web:")):
            text = "ACCESS_POLICY in the settings is open: everybody who writes is a member."
            rules.append(Rule(text, Role.MEMBER, "settings"))
        return [replace(rule, decides=number == 0) for number, rule in enumerate(rules)]

    async def _rules_of_tokens(self, user: str, workspace_id: str) -> list[Rule]:
        """Return what a caller's own token, a person's link and the tokens that belong to a person allow."""
        if user == CALLER_PREFIX + "admin":
            text = "The admin token (ADMIN_TOKEN, or DATA_DIR/admin-token): an admin in every workspace."
            return [Rule(text, Role.ADMIN, "token", decides=True)]
        rules = []
        for token in await self._tokens.of_workspace(workspace_id):
            is_own = user in (CALLER_PREFIX + token.id, token.user if token.person else None)
            if not is_own and token.owner != user:
                continue
            what = "link" if token.person else "token"
            name = f" {token.name!r}" if token.name else ""
            whose = "" if token.person else f", which belongs to {token.owner_text}"
            text = f"The {what}{name} ({token.id}){whose}: its holder is {_article(token.role)} in {workspace_id}."
            rules.append(Rule(text, token.role, "token", decides=is_own))
        return rules

    async def forget_workspace(self, workspace_id: str) -> None:
        """Delete the roles and names in, and the pairing requests to, a workspace that is deleted."""
        await self._redis.delete(_roles_key(workspace_id), _names_key(workspace_id), _own_names_key(workspace_id))
        await self._pairing.forget_workspace(workspace_id)


def _log_change(action: str, workspace_id: str, **fields: str) -> None:
    log.info("access.changed", action=action, workspace_id=workspace_id, **fields)


def _roles_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "roles")


def _names_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "names")


def _own_names_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "own_names")


def _named(user: str, name: str) -> str:
    return pack(_FORMAT, user=user, name=name[:MAX_NAME_CHARACTERS])


def _check_person(user: str) -> None:
    if not is_person(user):
        raise ValueError(f"{user!r} is not a person's id: write connector:user_id, for example telegram:42")


def _article(role: Role) -> str:
    return f"an {role}" if role is Role.ADMIN else f"a {role}"


def _asked_key(user: str) -> str:
    return redis_key("access", "{access}", "asked", person_field(user))


def _told_key(request: PairingRequest, message: InboundMessage) -> str:
    place = encode_id(message.place or message.external_id)
    return redis_key("access", "{access}", "told", request.id, place)


def _is_said_to_us(message: InboundMessage) -> bool:
    """Return whether *message* was said to the bot itself, not only in a thread or place where it answers all."""
    is_addressed = message.addressed and not message.by_thread_only
    return message.direct or is_addressed or message.kind is InboundKind.COMMAND
