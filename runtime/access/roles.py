"""Decides who may talk to the bot, and in which role.

Keys (owner ``access``): ``roles`` under a workspace's tag, a hash of person to role; under ``{access}``: ``asked``, how
often a person was told that they may not talk; ``told``, for a pairing request and a shared place the message whose
author was told there; and ``direct``, a hash of admin to the conversation in which they hear of pairing requests.
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

_FORMAT = 1
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
    """A person's role; ``user`` is ``connector:user_id``. ``workspace_id`` None: in all workspaces, by the settings."""

    user: str
    name: str
    role: Role
    workspace_id: str | None


class Access:
    """Roles and pairing. All methods raise `connectors.message.StoreUnavailable`.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
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
        if role is not None:
            return Decision(True, role)
        user = message.author.user(message.connector)
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
        person = Person(request.user, request.name, role, request.workspace_id)
        await self._store_role(person)
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
                await self._store_role(Person(request.user, request.name, request.role, request.workspace_id))
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
        people = {user: Person(user, "", Role.MEMBER, None) for user in self._allowlist}
        for stored in (await self._redis.hgetall(_roles_key(workspace_id))).values():
            values = unpack(stored, _FORMAT, "a role")
            people[values["user"]] = Person(values["user"], values["name"], Role(values["role"]), workspace_id)
        people |= {user: Person(user, "", Role.ADMIN, None) for user in self._admins}
        return [people[user] for user in sorted(people)]

    async def set_role(self, user: str, role: Role | None, workspace_id: str, *, by: str = "") -> None:
        """Give *user* (``connector:user_id``) *role* in *workspace_id*, or with None take it away.

        Raises `ValueError` if *user* does not have that form.
        """
        connector, colon, user_id = user.partition(":")
        if not (connector and colon and user_id) or user_id.startswith(CALLER_PREFIX):
            raise ValueError(f"{user!r} is not a person's id: write connector:user_id, for example telegram:42")
        if role is None:
            await self._redis.hdel(_roles_key(workspace_id), person_field(user))
        else:
            stored = await self._redis.hget(_roles_key(workspace_id), person_field(user))
            name = "" if stored is None else unpack(stored, _FORMAT, "a role")["name"]
            await self._store_role(Person(user, name, role, workspace_id))
            await self._pairing.approve_user(user, workspace_id, by)  # a waiting person is told, and answered
            self.decided.set()
        _log_change("role", workspace_id, user=user, role=role.value if role else "none", by=by)

    async def _store_role(self, person: Person) -> None:
        assert person.workspace_id is not None
        stored = pack(_FORMAT, user=person.user, name=person.name, role=person.role.value)
        await self._redis.hset(_roles_key(person.workspace_id), person_field(person.user), stored)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Delete the roles in, and the pairing requests to, a workspace that is deleted."""
        await self._redis.delete(_roles_key(workspace_id))
        await self._pairing.forget_workspace(workspace_id)


def _log_change(action: str, workspace_id: str, **fields: str) -> None:
    log.info("access.changed", action=action, workspace_id=workspace_id, **fields)


def _roles_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "roles")


def _asked_key(user: str) -> str:
    return redis_key("access", "{access}", "asked", person_field(user))


def _told_key(request: PairingRequest, message: InboundMessage) -> str:
    place = encode_id(message.place or message.external_id)
    return redis_key("access", "{access}", "told", request.id, place)


def _is_said_to_us(message: InboundMessage) -> bool:
    """Return whether *message* was said to the bot itself, not only in a thread or place where it answers all."""
    is_addressed = message.addressed and not message.by_thread_only
    return message.direct or is_addressed or message.kind is InboundKind.COMMAND
