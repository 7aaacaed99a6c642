"""Who may talk to the bot, and as what: people's roles.

Keys (owner ``access``): ``roles`` under a workspace's tag, a hash of person to role; under ``{access}`` ``asked``, how
often somebody was told that they may not talk, ``told``, by which message a stranger began to wait in a place where
others read along, and ``direct``, a hash of admin to the conversation in which they are told of strangers who ask to be
let in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from runtime.access.pairing import CODE_SECONDS, Pairing, Request, count_within, person_field
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


MAX_NOTICES = 8
"""How often one person is told within `NOTICE_SECONDS` that they may not talk."""
NOTICE_SECONDS = 600
WAIT_HERE = "I have asked an admin to let you in. An admin sees what you wrote and decides."
"""What a stranger is told where others read along: never the code."""
ASK_HERE = "Ask whoever runs me to run `./agent-runtime access list`. An admin sees what you wrote and decides."
"""Likewise where no admin can be told."""

_FORMAT = 1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a message may be answered.

    ``why`` is one word for events, empty where allowed. ``notice`` is what to tell the person, empty
    where nothing is to be said. ``request`` is what a stranger waits with.
    """

    allowed: bool
    role: Role = Role.VIEWER
    why: str = ""
    notice: str = ""
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """A person's role in a workspace; ``user`` is ``connector:user_id``. None: everywhere, by the settings."""

    user: str
    name: str
    role: Role
    workspace_id: str | None


class Access:
    """Roles and pairing. Every method raises `StoreUnavailable` when Redis cannot be reached.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._policy = settings.access_policy
        self._admins = frozenset(settings.access_admins)
        self._allowlist = frozenset(settings.access_allowlist)
        self._pairing = Pairing(redis, clock=clock)
        self._direct: dict[str, str] = {}
        """What this process last kept of where admins are told."""
        self.decided = asyncio.Event()
        """Set when a request was approved or denied here."""

    async def authorise(self, message: InboundMessage, workspace_id: str) -> Decision:
        """Whether *message* may be answered in *workspace_id*, and as what its author speaks.

        A message with a ``caller_role`` comes from an authenticated caller and is always allowed: its
        author has their own role, but never more than the caller's; where it names no author, the
        caller's. A refusal is the event ``access.refused``. Ask once for each message.
        """
        if message.caller_role is not None:
            return Decision(True, await self._bounded_role(message, message.caller_role, workspace_id))
        user = message.author.user(message.connector)
        role = await self.role_of(user, workspace_id)
        if role is None and self._policy == "open":
            role = Role.MEMBER
        if role is not None:
            return Decision(True, role)
        why = "unpaired" if self._policy == "pairing" else "not_on_allowlist"
        request = None
        if self._policy == "pairing" and _says_it_to_us(message):
            request = await self._pairing.ask(user, message.author.name, workspace_id, message)
        notice = (
            await self._notice(user, request) if message.direct else await self._notice_here(user, request, message)
        )
        log.info(
            "access.refused",
            why=why,
            workspace_id=workspace_id,
            context_id=f"{message.connector}:{message.external_id}",
            connector=message.connector,
            user=user,
        )
        return Decision(False, why=why, notice=notice, request=request)

    async def may_talk(self, user: str, workspace_id: str) -> bool:
        """Whether *user* (``connector:user_id``) would be answered there. Tells nobody, and is no event."""
        return self._policy == "open" or await self.role_of(user, workspace_id) is not None

    async def role_here(self, message: InboundMessage, workspace_id: str) -> Role | None:
        """As what the author of *message* speaks in *workspace_id*; None for strangers. Tells nobody, and is no event:
        for what people do beside talking."""
        if message.caller_role is not None:
            return await self._bounded_role(message, message.caller_role, workspace_id)
        role = await self.role_of(message.author.user(message.connector), workspace_id)
        return Role.MEMBER if role is None and self._policy == "open" else role

    def is_admin_everywhere(self, message: InboundMessage) -> bool:
        """Whether the author is an admin by the settings, and so in every workspace. Nobody is whose message only says
        who wrote it: a token's holder may name anyone."""
        return message.caller_role is None and message.author.user(message.connector) in self._admins

    async def role_of(self, user: str, workspace_id: str) -> Role | None:
        """What *user* (``connector:user_id``) is there by settings or approval; None for a stranger."""
        if user in self._admins:
            return Role.ADMIN
        role = await self._stored_role(user, workspace_id)
        return Role.MEMBER if role is None and user in self._allowlist else role

    async def _stored_role(self, user: str, workspace_id: str) -> Role | None:
        stored = await self._redis.hget(_roles_key(workspace_id), person_field(user))
        return None if stored is None else Role(unpack(stored, _FORMAT, "a role")["role"])

    async def _bounded_role(self, message: InboundMessage, bound: Role, workspace_id: str) -> Role:
        if message.is_caller or message.author.id.startswith(CALLER_PREFIX):
            return bound
        role = await self.role_of(message.author.user(message.connector), workspace_id) or Role.MEMBER
        return role if bound.covers(role) else bound

    async def _notice(self, user: str, request: Request | None) -> str:
        if self._policy == "pairing" and (request is None or request.state != "waiting"):
            return ""
        if await count_within(self._redis, _asked_key(user), NOTICE_SECONDS) > MAX_NOTICES:
            return ""
        if request is None:
            return f"I only talk to people on my list, and you ({user}) are not on it. An admin can add you."
        asked = (
            "I have asked the admins of this bot to let you in"
            if await self.admins_to_tell(request.workspace_id)
            else "Whoever runs this bot has to let you in"
        )
        return (
            f"We have not met yet (you are `{user}`). {asked}. An admin sees what you wrote and decides; then I will "
            f"answer it. Your pairing code is {request.code}. "
            f"If you know an admin, give it to them: they can tell me `/pair approve {request.code}`, or run "
            f"`./agent-runtime access approve {request.code}`. It is valid for {CODE_SECONDS // 3600} hours."
        )

    async def _notice_here(self, user: str, request: Request | None, message: InboundMessage) -> str:
        """What others may read: once for a request in each place, for the message that it was said to first."""
        if request is None or request.state != "waiting" or message.kind is InboundKind.EDIT:
            return ""
        told, said = _told_key(request, message), encode_id(f"{message.external_id} {message.message_id}")
        if not await self._redis.set(told, said, nx=True, ex=CODE_SECONDS) and await self._redis.get(told) != said:
            return ""
        if await count_within(self._redis, _asked_key(user), NOTICE_SECONDS) > MAX_NOTICES:
            return ""
        return WAIT_HERE if await self.admins_to_tell(request.workspace_id) else ASK_HERE

    async def approve(
        self,
        code: str,
        workspace_id: str | None = None,
        role: Role = Role.MEMBER,
        *,
        by: str = "",
        by_name: str = "",
    ) -> Person:
        """Give the person who was given *code* a *role*. With *workspace_id*, only a code for that workspace counts.

        *by* is who says so, for the event ``access.changed``, and *by_name* how people know them; likewise below. What
        follows is the gateway's: see `unsettled`. Raises `UnknownCode`, `AlreadyDecided` and `TooManyAttempts`.
        """
        request = await self._pairing.decide(code, workspace_id, "approved", by_name or by, role)
        person = Person(request.user, request.name, role, request.workspace_id)
        await self._store_role(person)
        self.decided.set()
        _tell_changed("approved", request.workspace_id, user=request.user, role=role.value, by=by)
        return person

    async def deny(self, code: str, workspace_id: str | None = None, *, by: str = "", by_name: str = "") -> Request:
        """Turn away whoever was given *code*; their request. *workspace_id* and errors as for `approve`."""
        request = await self._pairing.decide(code, workspace_id, "denied", by_name or by)
        self.decided.set()
        _tell_changed("denied", request.workspace_id, user=request.user, by=by)
        return request

    async def pending(self) -> list[Request]:
        """Who waits for approval, the oldest request first."""
        return await self._pairing.pending()

    async def unsettled(self) -> list[Request]:
        """Requests that were decided, of which people are to be told; who was let in has their role, whatever became
        of the process that was told so."""
        found = await self._pairing.unsettled()
        for one in found:
            if one.state == "approved" and await self.role_of(one.user, one.workspace_id) is None:
                await self._store_role(Person(one.user, one.name, one.role, one.workspace_id))
        return found

    async def settled(self, request: Request) -> None:
        """People were told of *request*, and what they asked is being answered."""
        await self._pairing.settled(request)

    async def withdraw(self, message: InboundMessage, workspace_id: str) -> None:
        """A message was deleted: where a stranger waits with it, it is kept no longer."""
        if self._policy == "pairing":
            await self._pairing.withdraw(workspace_id, message)

    async def note_direct(self, message: InboundMessage, key: ConversationKey) -> bool:
        """Remember where the author of *message*, an admin who speaks directly, is told of strangers. True the first
        time: nobody has told them of those who wait."""
        field = person_field(message.author.user(message.connector))
        if self._direct.get(field) == key.encoded:
            return False
        is_first = await self._redis.hset(_DIRECT, field, key.encoded) == 1
        self._direct[field] = key.encoded
        return is_first

    async def admins_to_tell(self, workspace_id: str) -> list[ConversationKey]:
        """The direct conversations of all admins of *workspace_id*, of those who have one."""
        admins = [one.user for one in await self.people(workspace_id) if one.role is Role.ADMIN]
        if not admins:
            return []
        stored = await self._redis.hmget(_DIRECT, [person_field(user) for user in admins])
        return [ConversationKey.decode(str(one)) for one in stored if one is not None]

    async def people(self, workspace_id: str) -> list[Person]:
        """Everybody with a role in *workspace_id*, by user: those of the settings, then the approved."""
        people = {user: Person(user, "", Role.MEMBER, None) for user in self._allowlist}
        for stored in (await self._redis.hgetall(_roles_key(workspace_id))).values():
            values = unpack(stored, _FORMAT, "a role")
            people[values["user"]] = Person(values["user"], values["name"], Role(values["role"]), workspace_id)
        people |= {user: Person(user, "", Role.ADMIN, None) for user in self._admins}
        return [people[user] for user in sorted(people)]

    async def set_role(self, user: str, role: Role | None, workspace_id: str, *, by: str = "") -> None:
        """Give *user* (``connector:user_id``) *role* in *workspace_id*, or with None take it away.

        Raises `ValueError` where *user* is not of that form.
        """
        connector, colon, rest = user.partition(":")
        if not (connector and colon and rest) or rest.startswith(CALLER_PREFIX):
            raise ValueError(f"{user!r} is not a person's id: write connector:user_id, for example telegram:42")
        if role is None:
            await self._redis.hdel(_roles_key(workspace_id), person_field(user))
        else:
            stored = await self._redis.hget(_roles_key(workspace_id), person_field(user))
            name = "" if stored is None else unpack(stored, _FORMAT, "a role")["name"]
            await self._store_role(Person(user, name, role, workspace_id))
            await self._pairing.decide_for(user, workspace_id, "approved", by)  # who waits is told, and answered
            self.decided.set()
        _tell_changed("role", workspace_id, user=user, role=role.value if role else "none", by=by)

    async def _store_role(self, person: Person) -> None:
        assert person.workspace_id is not None
        stored = pack(_FORMAT, user=person.user, name=person.name, role=person.role.value)
        await self._redis.hset(_roles_key(person.workspace_id), person_field(person.user), stored)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Drop the roles in, and the pairing requests to, a workspace that is deleted."""
        await self._redis.delete(_roles_key(workspace_id))
        await self._pairing.forget_workspace(workspace_id)


_DIRECT = redis_key("access", "{access}", "direct")


def _tell_changed(action: str, workspace_id: str, **fields: str) -> None:
    log.info("access.changed", action=action, workspace_id=workspace_id, **fields)


def _roles_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "roles")


def _asked_key(user: str) -> str:
    return redis_key("access", "{access}", "asked", person_field(user))


def _told_key(request: Request, message: InboundMessage) -> str:
    place = encode_id(message.place or message.external_id)
    return redis_key("access", "{access}", "told", request.id, place)


def _says_it_to_us(message: InboundMessage) -> bool:
    """Whether *message* was said to the bot, and not only where it answers everything."""
    called = message.addressed and not message.by_thread_only
    return message.direct or called or message.kind is InboundKind.COMMAND
