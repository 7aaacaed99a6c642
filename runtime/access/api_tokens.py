"""The tokens of the HTTP face: the admin's, and those made for one workspace and role.

Keys (owner ``tokens``, tag ``{tokens}``): ``by_digest``, a hash of a token's SHA-256 to what it allows; ``used``, a
hash of the same to when it was last used, in seconds since the epoch. No token is ever stored as such.
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
MAX_NAME_CHARACTERS = 64
USED_SECONDS = 60
"""How exactly it is known when a token was last used."""

log = structlog.get_logger()


class Unauthenticated(AgentRuntimeError):
    """The bearer token is missing or none of ours."""

    code = "unauthenticated"
    user_text = "A valid bearer token is needed."


class InvalidTokenName(AgentRuntimeError):
    """A token was to have a name that none can have; the text says which."""


class AlreadyInvited(AgentRuntimeError):
    """A person of that name has a token for the chat page; the text says which."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a token. ``workspace_id`` is None for one that holds everywhere.

    ``id`` stands for the caller where no author is named; no person's id looks like it. ``name`` is the token's, and
    ``person`` the id of the person whom it signs in to the chat page, where it was made for one.
    """

    role: Role
    workspace_id: str | None
    id: str
    name: str = ""
    person: str = ""

    @property
    def signature(self) -> str:
        """How versions, lines and events name who made a change."""
        return self.name or self.id

    @property
    def sees_all(self) -> bool:
        """Whether it is the administrator of the runtime, who may see what is private to people and places."""
        return self.workspace_id is None and self.role is Role.ADMIN

    def may_enter(self, workspace_id: str) -> bool:
        """Whether the token is good for that workspace at all."""
        return self.workspace_id in (None, workspace_id)


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What is known of a token after it was shown: ``id`` names it in lists and for `Tokens.revoke`."""

    id: str
    workspace_id: str
    role: Role
    name: str = ""
    created_at: datetime | None = None
    """None for one that was made before this was kept."""
    last_used_at: datetime | None = None
    """To a minute; None where it was never used."""
    person: str = ""
    """The person for whom it was made; see `Tokens.invite`."""

    @property
    def user(self) -> str:
        """That person on the chat page, as ``connector:user_id``."""
        return f"web:{self.person}"


class Tokens:
    """All tokens. Every method raises `StoreUnavailable` when Redis is needed and cannot be reached.

    *admin_token* is what `runtime.access.api_tokens.admin_token` gives, *clock* seconds since the epoch.
    """

    def __init__(self, redis: Redis, admin_token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._noted: dict[str, float] = {}
        """When this process last kept that a token was used."""
        self._admin_digest = _digest(admin_token)

    async def create(self, workspace_id: str, role: Role, *, name: str = "", person: str = "", by: str = "") -> str:
        """A new bearer token for one workspace and role: shown now and never again. *name* says what or whom it is
        for, *person* is the id of the person whom it signs in to the chat page; *by* is who made it, for the event
        ``access.changed``, which names the token by its id.

        Raises `InvalidTokenName`.
        """
        name = check_token_name(name)
        token = "art_" + secrets.token_urlsafe(_TOKEN_BYTES)
        digest = _digest(token).hex()
        fields = {"workspace_id": workspace_id, "role": role.value, "name": name, "created_at": self._clock()}
        await self._redis.hset(_TOKENS, digest, pack(_FORMAT, **fields, person=person))
        id_ = _token_id(digest)
        log.info("access.changed", action="token", workspace_id=workspace_id, token_id=id_, role=role.value, by=by)
        return token

    async def invite(
        self, workspace_id: str, name: str, role: Role | None, *, renew: bool = False, by: str = ""
    ) -> tuple[str, ApiToken]:
        """A token that signs the person *name* in to the chat page, and what is known of it; *role* None: a member.

        A name is for one person in a workspace. To *renew* is to make a new token for the same person, with the same
        role unless another one is named; the former one ends. Raises `InvalidTokenName` and `AlreadyInvited`.
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
        return token, ApiToken(_token_id(fingerprint(token)), workspace_id, role, name, person=person)

    async def of_workspace(self, workspace_id: str) -> list[ApiToken]:
        """The tokens for *workspace_id*, by id."""
        return [token for token in await self.all() if token.workspace_id == workspace_id]

    async def all(self) -> list[ApiToken]:
        """All tokens, by id."""
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
                    values.get("person", ""),
                )
            )
        return sorted(found, key=lambda token: token.id)

    async def revoke(self, token_id: str, *, by: str = "") -> bool:
        """Make the token worthless from now on; False if there was none of that id."""
        digests = [digest for digest in await self._redis.hkeys(_TOKENS) if _token_id(str(digest)) == token_id]
        if not digests or not await self._redis.hdel(_TOKENS, *digests):
            return False
        await self._redis.hdel(_USED, *digests)
        log.info("access.changed", action="revoked", token_id=token_id, by=by)
        return True

    async def authenticate(self, bearer: str) -> Caller:
        """Who holds *bearer* (the token alone). Raises `Unauthenticated`.

        The admin's token is compared without Redis. Others are found by their SHA-256, so that the
        time of the look-up tells nothing about a token.
        """
        return await self.holder(fingerprint(bearer))

    async def holder(self, token_fingerprint: str) -> Caller:
        """Who holds the token of that `fingerprint` now. Raises `Unauthenticated` where it is worth nothing."""
        if hmac.compare_digest(token_fingerprint, self._admin_digest.hex()):
            return Caller(Role.ADMIN, None, CALLER_PREFIX + "admin", "Admin")
        stored = await self._redis.hget(_TOKENS, token_fingerprint)
        if stored is None:
            raise Unauthenticated("the bearer token is not valid")
        values = unpack(stored, _FORMAT, "a token")
        await self._note_use(token_fingerprint)
        id_ = CALLER_PREFIX + _token_id(token_fingerprint)
        name, person = values.get("name", ""), values.get("person", "")
        return Caller(Role(values["role"]), values["workspace_id"], id_, name, person)

    async def _note_use(self, digest: str) -> None:
        now = self._clock()
        if now - self._noted.get(digest, 0.0) >= USED_SECONDS:
            await self._redis.hset(_USED, digest, str(now))
            self._noted[digest] = now

    async def still_holds(self, caller: Caller) -> bool:
        """Whether the token by which *caller* came is worth anything still."""
        if caller.workspace_id is None:
            return True  # the admin's, which only a start changes
        known = await self.of_workspace(caller.workspace_id)
        return any(caller.id == CALLER_PREFIX + token.id for token in known)

    async def forget_workspace(self, workspace_id: str) -> None:
        """Make the tokens for a workspace that is deleted worthless."""
        for token in await self.of_workspace(workspace_id):
            await self.revoke(token.id)


def fingerprint(token: str) -> str:
    """By what a token is known here: its SHA-256 in hexadecimal, from which nobody gets it back."""
    return _digest(token).hex()


def check_token_name(name: str) -> str:
    """*name* without spaces around it; may be empty. Raises `InvalidTokenName`: one with a colon could pass for a
    person's id."""
    name = name.strip()
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable() or ":" in name:
        raise InvalidTokenName(f"a token's name has at most {MAX_NAME_CHARACTERS} printable characters and no colon")
    return name


def _time(seconds: str | bytes | float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(float(seconds), UTC)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token_id(digest: str) -> str:
    return digest[:12]


# ---- admin token ----
#
# The admin's token: from the settings, else a file under DATA_DIR that is made once.


FILE_NAME = "admin-token"
_MODE = 0o600
_BYTES = 32


class AdminTokenUnreadable(AgentRuntimeError):
    """The token's file is there but holds no token, or is no plain file; the text says what to do."""


async def admin_token(settings: Settings) -> str:
    """``ADMIN_TOKEN``, or the token in ``DATA_DIR/admin-token``, which is generated where it is missing.

    However many processes start at once, all get the same. Raises `AdminTokenUnreadable`, and `OSError`
    when the file can be neither read nor written.
    """
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value()
    return await asyncio.to_thread(_read_or_make, settings.data_dir / FILE_NAME)


def _read_or_make(path: Path) -> str:
    if not os.path.lexists(path):
        _make(path)
    return _read(path)


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{FILE_NAME}-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, does not replace the token that another process made meanwhile.
        os.link(partial, path)
    except FileExistsError:
        return
    finally:
        partial.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.read(4096).strip()
        if not stat.S_ISREG(mode) or not token:
            raise AdminTokenUnreadable(f"{path} holds no token; delete it, and a new one is made at the next start")
        if stat.S_IMODE(mode) & 0o077:
            os.fchmod(file.fileno(), _MODE)
    return token
