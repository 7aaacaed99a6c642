"""Tenants, and which platform places belong to them.

Keys (owner ``workspaces``, tag ``{workspaces}``): ``records``, a hash of workspace id to record, and
``routes``, a hash of route key to workspace id. Routes and workspaces that the settings name count as
well, and win.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.message import (
    AgentRuntimeError,
    InboundMessage,
    InvalidWorkspaceId,
    Scope,
    check_workspace_id,
    redis_key,
)
from grounding.documents import Library
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


SAMPLE = "sample"
"""The workspace that ships with the runtime."""

_FORMAT = 1
_TAG = "{workspaces}"
_RECORDS = redis_key("workspaces", _TAG, "records")
_ROUTES = redis_key("workspaces", _TAG, "routes")
_SAMPLE_FOLDERS = ("docs", "context")

log = structlog.get_logger()


class UnknownWorkspace(AgentRuntimeError):
    """A workspace was named that does not exist; the text says how to create it."""

    code = "unknown_workspace"
    user_text = "There is no such workspace."

    def __init__(self, workspace_id: str, known: Iterable[str] = ()) -> None:
        close = difflib.get_close_matches(workspace_id, list(known), 1)
        meant = f". Did you mean {close[0]}? If not," if close else ";"
        super().__init__(
            f"no workspace {workspace_id!r}{meant} `agent-runtime workspace create {workspace_id}` creates it"
        )
        self.workspace_id = workspace_id


class WorkspaceInSettings(AgentRuntimeError):
    """A workspace or route cannot be changed here, because the settings name it."""

    user_text = "This is set in the configuration. Please change it there."


@dataclass(frozen=True, slots=True)
class Workspace:
    """One tenant. ``created_at`` is None for one that the settings name and nobody has used yet."""

    id: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A platform place (``slack:T123``, ``discord:G9/C7``) that belongs to a workspace."""

    place: str
    workspace_id: str
    from_settings: bool = False


class Workspaces:
    """The register of workspaces and routes.

    Every method raises `connectors.message.StoreUnavailable` when Redis cannot be reached.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._default = settings.default_workspace
        self._per_place = settings.workspace_per_place
        self._keeps_former = not self._per_place and "default_workspace" not in settings.model_fields_set
        """Whether a place that has a workspace of its own, from when each place had one, stays there."""
        self._configured_routes = dict(settings.routes)
        self._configured = frozenset({*settings.routes.values(), self._default})

    async def create(self, workspace_id: str) -> bool:
        """Make a workspace; False if it was there. Raises `InvalidWorkspaceId`."""
        check_workspace_id(workspace_id)
        if _lives(await self._record(workspace_id)):
            return False
        record = pack(_FORMAT, created_at=datetime.now(UTC).isoformat())
        if await self._redis.hsetnx(_RECORDS, workspace_id, record):
            log.info("workspace.created", workspace_id=workspace_id)
            return True
        # Only the sample leaves a record behind when it is deleted; bring it back.
        if _lives(await self._redis.hget(_RECORDS, workspace_id)):
            return False
        await self._redis.hset(_RECORDS, workspace_id, record)
        log.info("workspace.created", workspace_id=workspace_id)
        return True

    async def exists(self, workspace_id: str) -> bool:
        """Whether there is such a workspace; False for an id that is none."""
        if workspace_id in self._configured:
            return True
        record = await self._record(workspace_id)
        return _lives(record) or (workspace_id == SAMPLE and record is None)

    async def _record(self, workspace_id: str) -> str | bytes | None:
        return await self._redis.hget(_RECORDS, workspace_id)

    async def require(self, workspace_id: str) -> str:
        """*workspace_id* itself. Raises `UnknownWorkspace`, and `InvalidWorkspaceId` for what can be none."""
        check_workspace_id(workspace_id)
        if not await self.exists(workspace_id):
            raise UnknownWorkspace(workspace_id, [one.id for one in await self.all()])
        return workspace_id

    async def all(self) -> list[Workspace]:
        """All workspaces, by id."""
        records = await self._redis.hgetall(_RECORDS)
        ids = {*map(str, records), *self._configured, SAMPLE}
        found = []
        for workspace_id in sorted(ids):
            record = records.get(workspace_id)
            lives, created_at = (True, None) if record is None else _read(record)
            if lives or workspace_id in self._configured:
                found.append(Workspace(workspace_id, created_at))
        return found

    async def delete(self, workspace_id: str) -> bool:
        """Remove the workspace's record and the routes to it; False if there was none.

        What the workspace holds is not touched: the caller drops its passages from the index, its keys
        in the other owners' care (access, directives, documents, transcripts…) and its folder. Raises
        `WorkspaceInSettings` while the settings name it.
        """
        if workspace_id in self._configured:
            raise WorkspaceInSettings(
                f"workspace {workspace_id!r} is named by AGENT_RUNTIME_DEFAULT_WORKSPACE or by a route in the "
                "configuration; remove it there first"
            )
        if not await self.exists(workspace_id):
            return False
        routes = [route.place for route in await self.routes() if route.workspace_id == workspace_id]
        pipeline = self._redis.pipeline(transaction=True)
        if workspace_id == SAMPLE:  # it exists unless something says that it was deleted
            pipeline.hset(_RECORDS, SAMPLE, pack(_FORMAT, deleted=True))
        else:
            pipeline.hdel(_RECORDS, workspace_id)
        if routes:
            pipeline.hdel(_ROUTES, *routes)
        await pipeline.execute()
        return True

    async def route(self, place: str, workspace_id: str) -> None:
        """Let *place* belong to *workspace_id*, which is created where it is missing.

        Raises `InvalidWorkspaceId`, `ValueError` for a place that is no ``connector:place``, and
        `WorkspaceInSettings` for a place that the settings route.
        """
        check_workspace_id(workspace_id)
        connector, colon, rest = place.partition(":")
        if not (connector.isascii() and connector.isalpha() and connector.islower() and colon and rest):
            raise ValueError(f"{place!r} is not a place: write connector:place, for example slack:T123")
        if place in self._configured_routes:
            raise WorkspaceInSettings(
                f"the configuration routes {place!r} to {self._configured_routes[place]!r}; change it there"
            )
        await self.create(workspace_id)
        await self._redis.hset(_ROUTES, place, pack(_FORMAT, workspace_id=workspace_id))
        log.info("workspace.routed", workspace_id=workspace_id, place=place, routed=True)

    async def unroute(self, place: str) -> bool:
        """Forget the route of *place*; False if there was none (one in the settings stays)."""
        if not await self._redis.hdel(_ROUTES, place):
            return False
        log.info("workspace.routed", place=place, routed=False)
        return True

    async def routes(self) -> list[Route]:
        """All routes, by place; those of the settings win over stored ones for the same place."""
        stored = await self._redis.hgetall(_ROUTES)
        merged = {str(place): Route(str(place), _routed_to(value)) for place, value in stored.items()}
        merged |= {place: Route(place, to, from_settings=True) for place, to in self._configured_routes.items()}
        return [merged[place] for place in sorted(merged)]

    async def resolve(self, message: InboundMessage) -> str:
        """The workspace that *message* belongs to.

        In order: the one that the message names (it must exist, else `UnknownWorkspace`), the most
        specific route of its place, its own with ``WORKSPACE_PER_PLACE`` or where it has one from
        before (see `former_places`), ``DEFAULT_WORKSPACE``. What routing names need not exist yet:
        `create` it once something is to be kept there.
        """
        if message.workspace_id is not None:
            try:
                return await self.require(message.workspace_id)
            except InvalidWorkspaceId:
                raise UnknownWorkspace(message.workspace_id) from None
        workspace_id = await self._routed(message.routes) or await self._unrouted(message.default_workspace)
        return check_workspace_id(workspace_id)

    async def _unrouted(self, own: str) -> str:
        if self._per_place and own:
            return own
        if self._keeps_former and own and _lives(await self._record(own)):
            return own
        return self._default

    async def former_places(self, place_of: Callable[[str], str | None]) -> list[Route]:
        """Places that stay in a workspace of their own although no route says so: they had it before all places
        shared one. *place_of* gives the place whose own workspace has a given id."""
        if not self._keeps_former:
            return []
        routed = {route.place for route in await self.routes()}
        owned = [(place_of(workspace.id), workspace.id) for workspace in await self.all()]
        return [Route(place, own) for place, own in owned if place is not None and place not in routed]

    async def _routed(self, places: Sequence[str]) -> str | None:
        if not places:
            return None

        stored = await self._redis.hmget(_ROUTES, list(places))
        for place, value in zip(places, stored, strict=True):
            if place in self._configured_routes:
                return self._configured_routes[place]
            if value is not None:
                return _routed_to(value)
        return None


def console_workspace(settings: Settings) -> str:
    """The workspace of the terminal where none is named: the sample, until there are documents in
    ``DEFAULT_WORKSPACE``. Touches the disk."""
    library = Library(settings.data_dir, max_bytes=settings.document_max_bytes)
    default = Scope(settings.default_workspace)
    if library.has_documents(default):
        return default.workspace_id
    is_first_start = not library.root(default).exists()
    return SAMPLE if is_first_start or library.root(Scope(SAMPLE)).exists() else default.workspace_id


def make_document_folder(settings: Settings, workspace_id: str) -> None:
    """So that people find the folder into which a workspace's Markdown goes. Touches the disk."""
    root = Library(settings.data_dir, max_bytes=settings.document_max_bytes).root(Scope(workspace_id))
    root.mkdir(parents=True, exist_ok=True)


async def install_sample(data_dir: Path) -> tuple[Path, ...]:
    """Copy the sample workspace's documents and directives to *data_dir*, once; the folders it made.

    A folder that is there is left as it is, whatever is in it. Each folder appears whole or not at all.
    Raises `OSError` when it cannot be written.
    """
    return await asyncio.to_thread(_install_sample, data_dir)


def _install_sample(data_dir: Path) -> tuple[Path, ...]:
    target = data_dir / "workspaces" / SAMPLE
    made = []
    for name in _SAMPLE_FOLDERS:
        folder = target / name
        source = resources.files("runtime") / "sample" / name
        if os.path.lexists(folder) or not source.is_dir():
            continue
        target.mkdir(parents=True, exist_ok=True)
        with (
            resources.as_file(source) as original,
            tempfile.TemporaryDirectory(dir=target, prefix=".installing-") as partial,
        ):
            copy = Path(partial) / name
            shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
            try:
                copy.rename(folder)
            except OSError:
                if folder.is_dir():  # another process was faster
                    continue
                raise
        made.append(folder)
    return tuple(made)


def _lives(record: str | bytes | None) -> bool:
    return record is not None and _read(record)[0]


@lru_cache(maxsize=4096)  # all are listed again and again, and hardly any ever changes
def _read(record: str | bytes) -> tuple[bool, datetime | None]:
    """Whether the workspace of *record* lives, and since when."""
    stored = unpack(record, _FORMAT, "a workspace")
    created_at = stored.get("created_at")
    return not stored.get("deleted", False), datetime.fromisoformat(created_at) if created_at else None


def _routed_to(value: str | bytes) -> str:
    return str(unpack(value, _FORMAT, "a route")["workspace_id"])
