"""Who may talk to the bot, and as what: people's roles, pairing, and the tokens of the HTTP face.

Keys (owner ``access``): ``roles`` under a workspace's tag, a hash of person to role; and under
``{access}``: ``pending`` (hash of workspace and person to the code they were given, hashed), ``asked``
(how often somebody was told something), ``attempts`` (wrong codes) and ``tokens`` (hash of a token's
SHA-256 to what it allows). No code and no token is ever stored as such.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.message import (
    CALLER_PREFIX,
    AgentRuntimeError,
    InboundMessage,
    Role,
    Scope,
    encode_id,
    redis_key,
)
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

CODE_SECONDS = 600
"""How long a pairing code can be approved."""
CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without the letters and digits that look like each other (0 O, 1 I L, U V)."""
CODE_LENGTH = 8
"""About 39 bits; guessing is bounded by `MAX_WRONG_CODES`."""
MAX_WRONG_CODES = 20
"""Wrong codes that are looked at within `CODE_SECONDS`; then none is, right or wrong."""
MAX_PENDING = 1000
"""Codes that wait at a time; whoever asks beyond that is told nothing until some expire."""
MAX_NOTICES = 8
"""How often one person is told within `CODE_SECONDS` that they may not talk."""

_FORMAT = 1
_TAG = "{access}"
_PENDING = redis_key("access", _TAG, "pending")
_ATTEMPTS = redis_key("access", _TAG, "attempts")
_TOKENS = redis_key("access", _TAG, "tokens")
_TOKEN_BYTES = 32

# Two approvals of one code, or an approval of a code that a newer one has just replaced: one wins.
_TAKE = (
    "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end return 0"
)
_COUNT = "local n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end return n"

log = structlog.get_logger()


class Unauthenticated(AgentRuntimeError):
    """The bearer token is missing or none of ours."""

    code = "unauthenticated"
    user_text = "A valid bearer token is needed."


class UnknownCode(AgentRuntimeError):
    """The pairing code is wrong, used, replaced by a newer one, or expired."""

    user_text = "That code is not valid (any more)."


class TooManyAttempts(AgentRuntimeError):
    """Too many wrong codes were tried: none is looked at until `CODE_SECONDS` after the first of them."""

    user_text = "Too many wrong codes; please try again later."


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a message may be answered.

    ``why`` is one word for events, empty where allowed. ``notice`` is what to tell the person, empty
    where nothing is to be said. ``ignored`` says that the message is none of ours to judge (a bot's).
    """

    allowed: bool
    role: Role = Role.VIEWER
    why: str = ""
    notice: str = ""
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a token. ``workspace_id`` is None for one that holds everywhere.

    ``id`` stands for the caller where no author is named; no person's id looks like it.
    """

    role: Role
    workspace_id: str | None
    id: str

    def may_enter(self, workspace_id: str) -> bool:
        """Whether the token is good for that workspace at all."""
        return self.workspace_id in (None, workspace_id)


@dataclass(frozen=True, slots=True)
class Person:
    """A person's role in a workspace; ``user`` is ``connector:user_id``. None: everywhere, by the settings."""

    user: str
    name: str
    role: Role
    workspace_id: str | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A person who was given a pairing code and waits for approval."""

    user: str
    name: str
    workspace_id: str
    expires_in_seconds: int


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What is known of a token after it was shown: ``id`` names it in lists and for `Access.revoke_token`."""

    id: str
    workspace_id: str
    role: Role


class Access:
    """Roles, pairing and tokens. Every method raises `StoreUnavailable` when Redis cannot be reached.

    *admin_token* is what `runtime.admin_token.admin_token` gives; *clock* gives seconds since the epoch.
    """

    def __init__(
        self, redis: Redis, settings: Settings, admin_token: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._policy = settings.access_policy
        self._admins = frozenset(settings.access_admins)
        self._allowlist = frozenset(settings.access_allowlist)
        self._admin_digest = _digest(admin_token)
        self._clock = clock

    # Messages.

    async def authorise(self, message: InboundMessage, workspace_id: str) -> Decision:
        """Whether *message* may be answered in *workspace_id*, and as what its author speaks.

        A message with a ``caller_role`` comes from an authenticated caller and is always allowed: its
        author has their own role, but never more than the caller's; where it names no author, the
        caller's. A refusal is the event ``access.refused``. Ask once for each message.
        """
        if message.caller_role is not None:
            return Decision(True, await self._bounded_role(message, message.caller_role, workspace_id))
        if message.author.is_bot:
            return Decision(False, why="bot", ignored=True)
        user = message.author.user(message.connector)
        role = await self.role_of(user, workspace_id)
        if role is None and self._policy == "open":
            role = Role.MEMBER
        if role is not None:
            return Decision(True, role)
        why = "unpaired" if self._policy == "pairing" else "not_on_allowlist"
        notice = await self._notice(message, user, workspace_id) if message.direct else ""
        log.info(
            "access.refused",
            why=why,
            workspace_id=workspace_id,
            context_id=f"{message.connector}:{message.external_id}",
            connector=message.connector,
            user=user,
        )
        return Decision(False, why=why, notice=notice)

    async def role_of(self, user: str, workspace_id: str) -> Role | None:
        """What *user* (``connector:user_id``) is there by settings or approval; None for a stranger."""
        if user in self._admins:
            return Role.ADMIN
        stored = await self._redis.hget(_roles_key(workspace_id), _person_field(user))
        if stored is not None:
            return Role(unpack(stored, _FORMAT, "a role")["role"])
        return Role.MEMBER if user in self._allowlist else None

    async def _bounded_role(self, message: InboundMessage, bound: Role, workspace_id: str) -> Role:
        if message.author.id.startswith(CALLER_PREFIX):
            return bound
        role = await self.role_of(message.author.user(message.connector), workspace_id) or Role.MEMBER
        return role if bound.covers(role) else bound

    async def _notice(self, message: InboundMessage, user: str, workspace_id: str) -> str:
        if await self._count(_asked_key(user), CODE_SECONDS) > MAX_NOTICES:
            return ""
        if self._policy == "allowlist":
            return f"I only talk to people on my list, and you ({user}) are not on it. An admin can add you."
        code = await self._issue_code(user, message.author.name, workspace_id)
        if not code:
            return ""
        return (
            f"We have not met yet. Your pairing code is {code}. Please give it to an admin of this bot, who can let "
            f"you in with: agent-runtime access approve {code} - it is good for {CODE_SECONDS // 60} minutes."
        )

    # Pairing.

    async def _issue_code(self, user: str, name: str, workspace_id: str) -> str:
        now = self._clock()
        if await self._redis.hlen(_PENDING) >= MAX_PENDING:
            await self._drop_expired()
            if await self._redis.hlen(_PENDING) >= MAX_PENDING:
                return ""
        code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))
        waiting = pack(
            _FORMAT,
            sha256=_digest(code).hex(),
            user=user,
            name=name,
            workspace_id=workspace_id,
            expires_at=now + CODE_SECONDS,
        )
        pipeline = self._redis.pipeline(transaction=True)
        # One field for each person and workspace: a new code takes the place of the one before.
        pipeline.hset(_PENDING, f"{workspace_id}/{_person_field(user)}", waiting)
        pipeline.expire(_PENDING, CODE_SECONDS)
        await pipeline.execute()
        return code

    async def approve(self, code: str) -> Person:
        """Make the person who was given *code* a member. Raises `UnknownCode` and `TooManyAttempts`."""
        waiting = await self._take(code)
        person = Person(waiting.user, waiting.name, Role.MEMBER, waiting.workspace_id)
        await self._store_role(person)
        return person

    async def deny(self, code: str) -> Pending:
        """Make *code* worthless; who had asked. Raises `UnknownCode` and `TooManyAttempts`."""
        return await self._take(code)

    async def pending(self) -> list[Pending]:
        """Who waits for approval, the oldest request first."""
        return sorted((who for _, _, _, who in await self._waiting()), key=lambda who: who.expires_in_seconds)

    async def _take(self, code: str) -> Pending:
        tried = await self._redis.get(_ATTEMPTS)
        if tried is not None and int(tried) >= MAX_WRONG_CODES:
            raise TooManyAttempts(
                f"more than {MAX_WRONG_CODES} wrong codes were tried; wait {CODE_SECONDS // 60} minutes"
            )
        digest = _digest(code.strip().upper()).hex()
        found = None
        for field, stored, stored_digest, who in await self._waiting():
            if hmac.compare_digest(digest, stored_digest):
                found = (field, stored, who)
        if found is not None and await self._redis.eval(_TAKE, 1, _PENDING, found[0], found[1]):
            return found[2]
        await self._count(_ATTEMPTS, CODE_SECONDS)
        raise UnknownCode("no such pairing code; it may have expired, been used, or been replaced by a newer one")

    async def _waiting(self) -> list[tuple[str, str, str, Pending]]:
        """(field, stored value, SHA-256 of the code, who) of each code that can still be approved."""
        now = self._clock()
        waiting = []
        for field, stored in (await self._redis.hgetall(_PENDING)).items():
            values = unpack(stored, _FORMAT, "a pairing request")
            left = math.ceil(values["expires_at"] - now)
            if left > 0:
                who = Pending(values["user"], values["name"], values["workspace_id"], left)
                waiting.append((str(field), str(stored), str(values["sha256"]), who))
        return waiting

    async def _drop_expired(self) -> None:
        alive = {field for field, _, _, _ in await self._waiting()}
        expired = [field for field in await self._redis.hkeys(_PENDING) if field not in alive]
        if expired:
            await self._redis.hdel(_PENDING, *expired)

    async def _count(self, key: str, seconds: int) -> int:
        return int(await self._redis.eval(_COUNT, 1, key, str(seconds)))

    # People.

    async def people(self, workspace_id: str) -> list[Person]:
        """Everybody with a role in *workspace_id*, by user: those of the settings, then the approved."""
        people = {user: Person(user, "", Role.MEMBER, None) for user in self._allowlist}
        for stored in (await self._redis.hgetall(_roles_key(workspace_id))).values():
            values = unpack(stored, _FORMAT, "a role")
            people[values["user"]] = Person(values["user"], values["name"], Role(values["role"]), workspace_id)
        people |= {user: Person(user, "", Role.ADMIN, None) for user in self._admins}
        return [people[user] for user in sorted(people)]

    async def set_role(self, user: str, role: Role | None, workspace_id: str) -> None:
        """Give *user* (``connector:user_id``) *role* in *workspace_id*, or with None take it away.

        Raises `ValueError` where *user* is not of that form.
        """
        connector, colon, rest = user.partition(":")
        if not (connector and colon and rest) or rest.startswith(CALLER_PREFIX):
            raise ValueError(f"{user!r} is no person: write connector:user_id, for example telegram:42")
        if role is None:
            await self._redis.hdel(_roles_key(workspace_id), _person_field(user))
        else:
            await self._store_role(Person(user, "", role, workspace_id))

    async def _store_role(self, person: Person) -> None:
        assert person.workspace_id is not None
        stored = pack(_FORMAT, user=person.user, name=person.name, role=person.role.value)
        await self._redis.hset(_roles_key(person.workspace_id), _person_field(person.user), stored)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Drop the roles in, the tokens for and the pairing requests to a workspace that is deleted."""
        await self._redis.delete(_roles_key(workspace_id))
        for token in await self.tokens(workspace_id):
            await self.revoke_token(token.id)
        for field, _, _, who in await self._waiting():
            if who.workspace_id == workspace_id:
                await self._redis.hdel(_PENDING, field)

    # Tokens.

    async def create_token(self, workspace_id: str, role: Role) -> str:
        """A new bearer token for one workspace and role: shown now and never again."""
        token = "art_" + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = _digest(token).hex()
        await self._redis.hset(_TOKENS, digest, pack(_FORMAT, workspace_id=workspace_id, role=role.value))
        return token

    async def tokens(self, workspace_id: str) -> list[ApiToken]:
        """The tokens for *workspace_id*, by id."""
        found = []
        for digest, stored in (await self._redis.hgetall(_TOKENS)).items():
            values = unpack(stored, _FORMAT, "a token")
            if values["workspace_id"] == workspace_id:
                found.append(ApiToken(_token_id(str(digest)), workspace_id, Role(values["role"])))
        return sorted(found, key=lambda token: token.id)

    async def revoke_token(self, token_id: str) -> bool:
        """Make the token worthless from now on; False if there was none of that id."""
        digests = [digest for digest in await self._redis.hkeys(_TOKENS) if _token_id(str(digest)) == token_id]
        return bool(digests) and bool(await self._redis.hdel(_TOKENS, *digests))

    async def authenticate(self, bearer: str) -> Caller:
        """Who holds *bearer* (the token alone). Raises `Unauthenticated`.

        The admin's token is compared without Redis. Others are found by their SHA-256, so that the
        time of the look-up tells nothing about a token.
        """
        digest = _digest(bearer)
        if hmac.compare_digest(digest, self._admin_digest):
            return Caller(Role.ADMIN, None, CALLER_PREFIX + "admin")
        stored = await self._redis.hget(_TOKENS, digest.hex())
        if stored is None:
            raise Unauthenticated("the bearer token is not valid")
        values = unpack(stored, _FORMAT, "a token")
        return Caller(Role(values["role"]), values["workspace_id"], CALLER_PREFIX + _token_id(digest.hex()))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token_id(digest: str) -> str:
    return digest[:12]


def _roles_key(workspace_id: str) -> str:
    return redis_key("access", Scope(workspace_id).tag, "roles")


def _asked_key(user: str) -> str:
    return redis_key("access", _TAG, "asked", _person_field(user))


def _person_field(user: str) -> str:
    connector, _, rest = user.partition(":")
    return f"{connector}:{encode_id(rest)}"
