"""Registers workspaces (tenants) and the routes of platform places to them.

Keys (owner ``workspaces``, tag ``{workspaces}``): ``records``, a hash of workspace id to record, and ``routes``, a hash
of route key to workspace id. Workspaces and routes in the settings count as well, and win.
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
    """There is no workspace of that id; the text says how to create it."""

    code = "unknown_workspace"
    user_text = "There is no such workspace."

    def __init__(self, workspace_id: str, known: Iterable[str] = ()) -> None:
        close = difflib.get_close_matches(workspace_id, list(known), 1)
        hint = f". Did you mean {close[0]}? If not," if close else ";"
        super().__init__(
            f"no workspace {workspace_id!r}{hint} `agent-runtime workspace create {workspace_id}` creates it"
        )
        self.workspace_id = workspace_id


class WorkspaceInSettings(AgentRuntimeError):
    """A workspace or route cannot be changed, because the settings name it."""

    user_text = "This is set in the configuration. Please change it there."


@dataclass(frozen=True, slots=True)
class Workspace:
    """One tenant. ``created_at`` is None if only the settings name it and nobody has used it yet."""

    id: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A platform place (``slack:T123``, ``discord:G9/C7``) that belongs to a workspace."""

    place: str
    workspace_id: str
    from_settings: bool = False


class Workspaces:
    """The register of workspaces and routes. All methods raise `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._default = settings.default_workspace
        self._per_place = settings.workspace_per_place
        self._keeps_former = not self._per_place and "default_workspace" not in settings.model_fields_set
        """Whether a place stays in a workspace of its own, from an earlier version in which each place had one."""
        self._configured_routes = dict(settings.routes)
        self._configured = frozenset({*settings.routes.values(), self._default})

    async def create(self, workspace_id: str) -> bool:
        """Create a workspace; return False if it exists. Raises `InvalidWorkspaceId`."""
        check_workspace_id(workspace_id)
        if _exists(await self._record(workspace_id)):
            return False
        record = pack(_FORMAT, created_at=datetime.now(UTC).isoformat())
        if not await self._redis.hsetnx(_RECORDS, workspace_id, record):
            # Another process has created it, or it is the deleted sample, whose record stays.
            if _exists(await self._record(workspace_id)):
                return False
            await self._redis.hset(_RECORDS, workspace_id, record)
        log.info("workspace.created", workspace_id=workspace_id)
        return True

    async def exists(self, workspace_id: str) -> bool:
        """Return whether there is such a workspace; False for an invalid id."""
        if workspace_id in self._configured:
            return True
        record = await self._record(workspace_id)
        return _exists(record) or (workspace_id == SAMPLE and record is None)

    async def _record(self, workspace_id: str) -> str | bytes | None:
        return await self._redis.hget(_RECORDS, workspace_id)

    async def require(self, workspace_id: str) -> str:
        """Return *workspace_id* if it exists. Raises `UnknownWorkspace` and `InvalidWorkspaceId`."""
        check_workspace_id(workspace_id)
        if not await self.exists(workspace_id):
            raise UnknownWorkspace(workspace_id, [one.id for one in await self.all()])
        return workspace_id

    async def all(self) -> list[Workspace]:
        """Return all workspaces, by id."""
        records = await self._redis.hgetall(_RECORDS)
        ids = {*map(str, records), *self._configured, SAMPLE}
        found = []
        for workspace_id in sorted(ids):
            record = records.get(workspace_id)
            exists, created_at = (True, None) if record is None else _read(record)
            if exists or workspace_id in self._configured:
                found.append(Workspace(workspace_id, created_at))
        return found

    async def delete(self, workspace_id: str) -> bool:
        """Delete the workspace's record and the routes to it; return False if there is none.

        This is the last step of `runtime.ingress.remove_workspace`, which deletes what the workspace holds. Raises
        `WorkspaceInSettings` while the settings name the workspace.
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
        if workspace_id == SAMPLE:  # it exists unless its record says that it was deleted
            pipeline.hset(_RECORDS, SAMPLE, pack(_FORMAT, deleted=True))
        else:
            pipeline.hdel(_RECORDS, workspace_id)
        if routes:
            pipeline.hdel(_ROUTES, *routes)
        await pipeline.execute()
        return True

    async def route(self, place: str, workspace_id: str) -> None:
        """Route *place* to *workspace_id*, which is created if it is missing.

        Raises `InvalidWorkspaceId`, `ValueError` if *place* is not of the form ``connector:place``, and
        `WorkspaceInSettings` if the settings route it.
        """
        check_workspace_id(workspace_id)
        connector, colon, name = place.partition(":")
        if not (connector.isascii() and connector.isalpha() and connector.islower() and colon and name):
            raise ValueError(f"{place!r} is not a place: write connector:place, for example slack:T123")
        if place in self._configured_routes:
            raise WorkspaceInSettings(
                f"the configuration routes {place!r} to {self._configured_routes[place]!r}; change it there"
            )
        await self.create(workspace_id)
        await self._redis.hset(_ROUTES, place, pack(_FORMAT, workspace_id=workspace_id))
        log.info("workspace.routed", workspace_id=workspace_id, place=place, routed=True)

    async def unroute(self, place: str) -> bool:
        """Delete the route of *place*; return False if there is none. A route in the settings stays."""
        if not await self._redis.hdel(_ROUTES, place):
            return False
        log.info("workspace.routed", place=place, routed=False)
        return True

    async def routes(self) -> list[Route]:
        """Return all routes, by place; for the same place, the settings win."""
        stored = await self._redis.hgetall(_ROUTES)
        merged = {str(place): Route(str(place), _routed_to(value)) for place, value in stored.items()}
        merged |= {place: Route(place, to, from_settings=True) for place, to in self._configured_routes.items()}
        return [merged[place] for place in sorted(merged)]

    async def resolve(self, message: InboundMessage) -> str:
        """Return the workspace that *message* belongs to.

        In order: the one that the message names (it must exist, else `UnknownWorkspace`); the most specific route of
        its place; the place's own workspace, with ``WORKSPACE_PER_PLACE`` or from an earlier version (`former_places`);
        ``DEFAULT_WORKSPACE``. A routed workspace need not exist yet: `create` it before something is stored there.
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
        if self._keeps_former and own and _exists(await self._record(own)):
            return own
        return self._default

    async def former_places(self, place_of: Callable[[str], str | None]) -> list[Route]:
        """Return places that stay in a workspace of their own from an earlier version, although no route says so.

        *place_of* returns the place, if any, that has the workspace of a given id for its own.
        """
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
    """Return the terminal's workspace if none is named: the sample, until ``DEFAULT_WORKSPACE`` has documents.

    Reads the disk.
    """
    library = Library(settings.data_dir, max_bytes=settings.document_max_bytes)
    default = Scope(settings.default_workspace)
    if library.has_documents(default):
        return default.workspace_id
    is_first_start = not library.root(default).exists()
    return SAMPLE if is_first_start or library.root(Scope(SAMPLE)).exists() else default.workspace_id


def make_document_folder(settings: Settings, workspace_id: str) -> None:
    """Create the folder for a workspace's Markdown, so that people find it."""
    root = Library(settings.data_dir, max_bytes=settings.document_max_bytes).root(Scope(workspace_id))
    root.mkdir(parents=True, exist_ok=True)


async def install_sample(data_dir: Path) -> tuple[Path, ...]:
    """Copy the sample workspace's documents and directives to *data_dir*; return the new folders.

    An existing folder is left as it is. Each folder appears whole or not at all. Raises `OSError` if it cannot be
    written.
    """
    return await asyncio.to_thread(_install_sample, data_dir)


def _install_sample(data_dir: Path) -> tuple[Path, ...]:
    target = data_dir / "workspaces" / SAMPLE
    installed = []
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
        installed.append(folder)
    return tuple(installed)


def _exists(record: str | bytes | None) -> bool:
    return record is not None and _read(record)[0]


def _read(record: str | bytes) -> tuple[bool, datetime | None]:
    """Return whether the workspace of *record* exists, and since when."""
    stored = unpack(record, _FORMAT, "a workspace")
    created_at = stored.get("created_at")
    return not stored.get("deleted", False), datetime.fromisoformat(created_at) if created_at else None


def _routed_to(value: str | bytes) -> str:
    return str(unpack(value, _FORMAT, "a route")["workspace_id"])
