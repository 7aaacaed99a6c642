"""The bearer tokens of the HTTP API: the admin's, and those made for one workspace and role.

Keys (owner ``tokens``, tag ``{tokens}``): ``by_digest``, a hash of a token's SHA-256 to its fields; ``used``, a hash of
the SHA-256 to the time of the last use, in seconds since the epoch. No token itself is stored, but for the generated
admin token in ``DATA_DIR/admin-token``.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.message import CALLER_PREFIX, AgentRuntimeError, Role, redis_key
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


_FORMAT = 1
_TOKENS = redis_key("tokens", "{tokens}", "by_digest")
_USED = redis_key("tokens", "{tokens}", "used")
_TOKEN_BYTES = 32
ADMIN_NAME = "Admin"
"""The name of the administrator, who holds the admin token."""
ADMIN_TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file
_FILE_MODE = 0o600
MAX_NAME_CHARACTERS = 64
MAX_OWNER_CHARACTERS = 300
USED_SECONDS = 60
"""The time of the last use is stored at most this often."""

log = structlog.get_logger()


class Unauthenticated(AgentRuntimeError):
    """The bearer token is missing or not valid."""

    code = "unauthenticated"
    user_text = "A valid bearer token is needed."


class SecretUnreadable(AgentRuntimeError):
    """The file of a secret is empty, or no plain file; the text says what to do."""


class InvalidTokenName(AgentRuntimeError):
    """A token cannot have this name; the text says why."""


class AlreadyInvited(AgentRuntimeError):
    """A person of that name has a token for the chat page already; the text names it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token. ``workspace_id`` is None if the token is valid in all workspaces.

    ``id`` stands for the caller if a message names no author; no person's id looks like it. ``name`` is the token's.
    ``person`` is the id of the person whom the token signs in to the chat page, if it was made for one.
    """

    role: Role
    workspace_id: str | None
    id: str
    name: str = ""
    person: str = ""
    owner: str = ""
    """The person to whom the token belongs; a token that this caller makes belongs to them, too."""

    @property
    def signature(self) -> str:
        """The author of a change, as versions, lines and events name it."""
        return self.name or self.id

    @property
    def sees_all(self) -> bool:
        """Whether this is the administrator of the runtime, who may see what is private to people and places."""
        return self.workspace_id is None and self.role is Role.ADMIN

    def may_enter(self, workspace_id: str) -> bool:
        """Return whether the token is valid in that workspace."""
        return self.workspace_id in (None, workspace_id)


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token without its secret; ``id`` names it in lists and for `ApiTokens.revoke`."""

    id: str
    workspace_id: str
    role: Role
    name: str = ""
    created_at: datetime | None = None
    """None for a token of an earlier version."""
    last_used_at: datetime | None = None
    """To a minute; None if it was never used."""
    person: str = ""
    """The person for whom it was made; see `ApiTokens.invite`."""
    owner: str = ""
    """To whom it belongs: ``connector:user_id``, or the name of somebody without an id; empty if nobody knows."""

    @property
    def owner_text(self) -> str:
        """The owner for lists."""
        return self.owner or "nobody (made before tokens had owners)"

    @property
    def user(self) -> str:
        """The person on the chat page, as ``connector:user_id``."""
        return f"web:{self.person}"


class ApiTokens:
    """All tokens. Methods that need Redis raise `connectors.message.StoreUnavailable`.

    *admin_token* comes from `runtime.access.admin_token`; *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, admin_token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._use_stored_at: dict[str, float] = {}
        """The time at which this process last stored a use, by fingerprint."""
        self._admin_fingerprint = fingerprint(admin_token)

    async def create(
        self, workspace_id: str, role: Role, *, name: str = "", person: str = "", owner: str = "", by: str = ""
    ) -> str:
        """Make a bearer token for one workspace and role, and return it; it cannot be read again.

        *name* says what or whom it is for, *person* is the id of the person whom it signs in to the chat page. *owner*
        is to whom it belongs: ``connector:user_id`` or a name; if nobody is named, *by*, who makes it, or else the
        administrator. *by* is also for the event ``access.changed``, which names the token by its id. Raises
        `InvalidTokenName`.
        """
        name = check_token_name(name)
        owner = owner.strip()
        if not (is_person(owner) and owner.isprintable() and len(owner) <= MAX_OWNER_CHARACTERS):
            owner = check_token_name(owner)
        owner = f"web:{person}" if person else owner or by or ADMIN_NAME
        token = "art_" + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = fingerprint(token)
        fields = {"workspace_id": workspace_id, "role": role.value, "name": name, "created_at": self._clock()}
        await self._redis.hset(_TOKENS, digest, pack(_FORMAT, **fields, person=person, owner=owner))
        id_ = _token_id(digest)
        log.info("access.changed", action="token", workspace_id=workspace_id, token_id=id_, role=role.value, by=by)
        return token

    async def invite(
        self, workspace_id: str, name: str, role: Role | None, *, renew: bool = False, by: str = ""
    ) -> tuple[str, ApiToken]:
        """Make a token that signs the person *name* in to the chat page; return it and its description.

        A name stands for one person in a workspace. With *renew*, that person gets a new token and the former one is
        revoked. *role* None means the former role, or a member. Raises `InvalidTokenName` and `AlreadyInvited`.
        """
        name = check_token_name(name)
        if not name:
            raise InvalidTokenName("a person needs a name")
        people = [token for token in await self.of_workspace(workspace_id) if token.person]
        known = [token for token in people if token.name.casefold() == name.casefold()]
        if known and not renew:
            raise AlreadyInvited(
                f"{known[0].name} already has a link (token {known[0].id}). Use `--renew`, or choose another name"
            )
        person = known[0].person if known else secrets.token_hex(6)
        role = role or (known[0].role if known else Role.MEMBER)
        token = await self.create(workspace_id, role, name=name, person=person, by=by)
        for one in known:
            await self.revoke(one.id, by=by)
        made = ApiToken(_token_id(fingerprint(token)), workspace_id, role, name, person=person, owner=f"web:{person}")
        return token, made

    async def tokens_of(self, owner: str, workspace_id: str | None = None) -> list[ApiToken]:
        """Return the tokens that belong to *owner*, by id, in one workspace or in all."""
        return [one for one in await self.all() if one.owner == owner and workspace_id in (None, one.workspace_id)]

    async def revoke_beyond(self, owner: str, role: Role | None, workspace_id: str, *, by: str = "") -> list[ApiToken]:
        """Revoke the tokens of *owner* that allow more than *role* (None: all of them), and return these."""
        own = await self.tokens_of(owner, workspace_id)
        revoked = [token for token in own if role is None or not role.covers(token.role)]
        for token in revoked:
            await self.revoke(token.id, by=by)
        return revoked

    async def of_workspace(self, workspace_id: str) -> list[ApiToken]:
        """Return the tokens for *workspace_id*, by id."""
        return [token for token in await self.all() if token.workspace_id == workspace_id]

    async def all(self) -> list[ApiToken]:
        """Return all tokens, by id."""
        used = await self._redis.hgetall(_USED)
        found = []
        for digest, stored in (await self._redis.hgetall(_TOKENS)).items():
            values = unpack(stored, _FORMAT, "a token")
            found.append(
                ApiToken(
                    _token_id(str(digest)),
                    values["workspace_id"],
                    Role(values["role"]),
                    values.get("name", ""),
                    _time(values.get("created_at")),
                    _time(used.get(digest)),
                    person := values.get("person", ""),
                    values.get("owner") or (f"web:{person}" if person else ""),
                )
            )
        return sorted(found, key=lambda token: token.id)

    async def revoke(self, token_id: str, *, by: str = "") -> bool:
        """Make a token invalid; return False if there is none of that id.

        If it signed a person in to the chat page, the person's other tokens keep no more than the role that is left.
        """
        digests = [digest for digest in await self._redis.hkeys(_TOKENS) if _token_id(str(digest)) == token_id]
        known = [token for token in await self.all() if token.id == token_id]
        if not digests or not await self._redis.hdel(_TOKENS, *digests):
            return False
        await self._redis.hdel(_USED, *digests)
        log.info("access.changed", action="revoked", token_id=token_id, by=by)
        for link in known:
            if link.person:
                roles = {one.role for one in await self.of_workspace(link.workspace_id) if one.person == link.person}
                left = next((role for role in (Role.ADMIN, Role.MEMBER, Role.VIEWER) if role in roles), None)
                await self.revoke_beyond(link.user, left, link.workspace_id, by=by)
        return True

    async def authenticate(self, bearer: str) -> Caller:
        """Return the holder of *bearer* (the token alone). Raises `Unauthenticated`.

        The admin's token is compared without Redis. Others are looked up by their SHA-256, so that the time of the
        look-up tells nothing about a token.
        """
        return await self.holder(fingerprint(bearer))

    async def holder(self, token_fingerprint: str) -> Caller:
        """Return the holder of the token with that `fingerprint`. Raises `Unauthenticated`."""
        if hmac.compare_digest(token_fingerprint, self._admin_fingerprint):
            return Caller(Role.ADMIN, None, CALLER_PREFIX + "admin", ADMIN_NAME, owner=ADMIN_NAME)
        stored = await self._redis.hget(_TOKENS, token_fingerprint)
        if stored is None:
            raise Unauthenticated("the bearer token is not valid")
        values = unpack(stored, _FORMAT, "a token")
        now = self._clock()
        if now - self._use_stored_at.get(token_fingerprint, 0.0) >= USED_SECONDS:
            await self._redis.hset(_USED, token_fingerprint, str(now))
            self._use_stored_at[token_fingerprint] = now
        id_ = CALLER_PREFIX + _token_id(token_fingerprint)
        name, person, owner = (values.get(field, "") for field in ("name", "person", "owner"))
        owner = owner or (f"web:{person}" if person else "")
        return Caller(Role(values["role"]), values["workspace_id"], id_, name, person, owner)

    async def is_valid(self, caller: Caller) -> bool:
        """Return whether the token of *caller* is still valid."""
        if caller.workspace_id is None:
            return True  # the admin's token, which changes only at a start
        tokens = await self.of_workspace(caller.workspace_id)
        return any(caller.id == CALLER_PREFIX + token.id for token in tokens)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Revoke the tokens for a workspace that is deleted."""
        for token in await self.of_workspace(workspace_id):
            await self.revoke(token.id)


def is_person(text: str) -> bool:
    """Return whether *text* has the form of a person's id, ``connector:user_id``."""
    connector, _, user_id = text.partition(":")
    return bool(connector and user_id) and not user_id.startswith(CALLER_PREFIX)


def fingerprint(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal, by which it is stored and looked up."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_token_name(name: str) -> str:
    """Return the *name* of a token or a person without spaces around it; may be empty. Raises `InvalidTokenName`.

    A name with a colon could pass for a person's id.
    """
    name = name.strip()
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable() or ":" in name:
        raise InvalidTokenName(f"a name has at most {MAX_NAME_CHARACTERS} printable characters and no colon")
    return name


def _time(seconds: str | bytes | float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(float(seconds), UTC)


def _token_id(digest: str) -> str:
    return digest[:12]


async def admin_token(settings: Settings) -> str:
    """Return ``ADMIN_TOKEN``, or the token in ``DATA_DIR/admin-token``, which is generated if it is missing.

    Processes that start at the same time get the same token. Raises `SecretUnreadable`, and `OSError` if the file
    can be neither read nor written.
    """
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value()
    return await asyncio.to_thread(secret_in_file, settings.data_dir / ADMIN_TOKEN_FILE)


def secret_in_file(path: Path) -> str:
    """Return the secret in the file *path*, which is generated, for this user alone, if it is missing. Blocks.

    Processes that ask at the same time get the same one. Raises `SecretUnreadable`, and `OSError` if the file can be
    neither read nor written.
    """
    if not os.path.lexists(path):
        _generate(path)
    return _read(path)


def _generate(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link does not replace the secret that another process has generated meanwhile.
        os.link(partial, path)
    except FileExistsError:
        return
    finally:
        partial.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        secret = file.read(4096).strip()
        if not stat.S_ISREG(mode) or not secret:
            raise SecretUnreadable(f"{path} holds no secret; delete it, and a new one is made at the next start")
        if stat.S_IMODE(mode) & 0o077:
            os.fchmod(file.fileno(), _FILE_MODE)
    return secret
