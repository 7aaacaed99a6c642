"""Typed records: listed, searched, added, shown with their history, changed and erased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import EVERYONE, Role, Scope, person_of_audience, place_audience
from grounding.memory.records import (
    STATES,
    Change,
    ItemKind,
    ItemStatus,
    NewRecord,
    Outcome,
    Provenance,
    Record,
    Severity,
    State,
    Type,
    place,
)
from runtime.http.auth import OWN_CONNECTOR, Routes, User, Workspace, caller_of, idempotency_key, require_role
from runtime.http.errors import ApiError, Body, reply

if TYPE_CHECKING:
    from runtime.process import Runtime

MAX_LISTED = 500
OPINIONS = frozenset({"confirm", "outcome", "false_positive"})
"""The fields of the workspace's records that members may change: none changes what a record says."""
_OF_TYPE: dict[Type, tuple[str, ...]] = {
    Type.CENSOR: ("trigger", "reason", "severity", "false_positives"),
    Type.ITEM: ("kind", "due"),
    Type.PROCEDURE: ("successes", "failures"),
}
UserQuery = Annotated[User | None, Query(description="connector:user_id: with that person's own records.")]
PlaceQuery = Annotated[
    str | None, Query(min_length=1, max_length=512, description="An external id of the http connector: with its own.")
]
Confidence = Annotated[float, Field(ge=0.0, le=1.0)]


class RecordBody(Body):
    type: Type
    text: str
    outcome: Outcome | None = None
    confidence: Confidence = 1.0
    created_at: str = ""
    verbatim: bool = False
    supersedes: str = ""
    user: User | None = Field(default=None, description="connector:user_id: a record of that person's own.")
    trigger: str = Field(default="", description="Censors: words and phrases separated by |.")
    reason: str = ""
    severity: Severity = "warn"
    kind: ItemKind = "task"
    status: ItemStatus = "open"
    due: str | None = ""


class RecordChange(Body):
    """Fields that are left out do not change."""

    text: str | None = None
    confidence: Confidence | None = None
    outcome: Outcome | None = None
    verbatim: bool | None = None
    trigger: str | None = None
    reason: str | None = None
    severity: Severity | None = None
    kind: ItemKind | None = None
    status: ItemStatus | None = None
    due: str | None = None
    state: State | None = None
    confirm: Literal[True] | None = None
    false_positive: Literal[True] | None = None
    audience: Literal["workspace"] | None = Field(default=None, description="Shares it with the whole workspace.")
    user: User | None = None


class RecordRoutes(Routes):
    """The records of people and places need the runtime's admin token, except those of the http connector, whose names
    are the programs' own. Admins write the workspace's records; members may confirm and rate them."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("records", runtime)
        self._records = runtime.records
        here = "/workspaces/{workspace_id}/records"
        self.add("GET", here, self.listing, Role.VIEWER, answers="The newest records, or those that bear on q")
        self.add("POST", here, self.add_one, Role.MEMBER, body=RecordBody, answers="The record")
        self.add("DELETE", here, self.forget, Role.MEMBER, answers="How many of a person's records were erased")
        self.add("GET", f"{here}/{{id}}", self.show, Role.VIEWER, answers="The record in full, with its history")
        self.add("PATCH", f"{here}/{{id}}", self.change, Role.MEMBER, body=RecordChange, answers="The record")
        self.add("DELETE", f"{here}/{{id}}", self.erase, Role.MEMBER, answers="The record's id")

    async def listing(
        self,
        request: Request,
        scope: Workspace,
        type: Annotated[list[Type] | None, Query()] = None,  # noqa: A002 - as the parameter is named
        state: Annotated[list[State] | None, Query()] = None,
        user: UserQuery = None,
        context: PlaceQuery = None,
        q: Annotated[str | None, Query(max_length=4000)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
        before: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        scope = self._visible(request, scope, user, context)
        types, states = type or [], state or []
        _check_filters(types, states, before)
        if q is not None:
            hits = await self._records.search(scope, q, limit, types)
            rows = [
                _record_row(hit.record) | {"similarity": round(hit.similarity, 4), "matched": round(hit.matched, 4)}
                for hit in hits
                if not states or hit.record.state in states
            ]
            return reply({"records": rows, "next": None})
        page = await self._records.list(scope, types, states, limit, before)
        more = place(page[-1]) if len(page) == limit else None
        return reply({"records": [_record_row(record) for record in page], "next": more})

    async def add_one(self, request: Request, scope: Workspace) -> Response:
        body = await self.read(request, RecordBody)
        scope = self._writable(request, scope, body.user)
        fields = body.model_dump(exclude={"user"}) | {"due": body.due or ""}
        added = await self._records.add(scope, NewRecord(**fields), _by(request), idempotency_key(request))
        is_new = added.came in ("new", "superseded")
        return reply(_record_row(added.record) | {"came": added.came}, 201 if is_new else 200)

    async def show(
        self,
        request: Request,
        scope: Workspace,
        id: str,  # noqa: A002 - as the path has it
        user: UserQuery = None,
        context: PlaceQuery = None,
    ) -> Response:
        scope = self._visible(request, scope, user, context)
        record = await self._records.get(scope, id)
        history = await self._records.history(scope, id)
        return reply(_record_row(record) | {"history": [_change_row(change) for change in history]})

    async def change(
        self,
        request: Request,
        scope: Workspace,
        id: str,  # noqa: A002 - as the path has it
        user: UserQuery = None,
        context: PlaceQuery = None,
    ) -> Response:
        body = await self.read(request, RecordChange)
        sent = body.model_dump(exclude_unset=True, exclude={"user"})
        fields = {name: value for name, value in sent.items() if value is not None or name == "due"}
        scope = self._visible(request, scope, user or body.user, context)
        if not set(fields) <= OPINIONS:
            await self._check_writable(request, scope, id)
        if fields.pop("audience", None) is not None:
            if fields:
                raise ApiError(400, "bad_request", '"audience" is changed alone, without other fields')
            return reply(_record_row(await self._records.share(scope, id, _by(request))))
        if not fields:
            raise ApiError(400, "bad_request", "nothing to change: give at least one field")
        return reply(_record_row(await self._records.change(scope, id, fields, _by(request), idempotency_key(request))))

    async def erase(
        self,
        request: Request,
        scope: Workspace,
        id: str,  # noqa: A002 - as the path has it
        user: UserQuery = None,
        context: PlaceQuery = None,
    ) -> Response:
        scope = self._visible(request, scope, user, context)
        await self._check_writable(request, scope, id)
        await self._records.erase(scope, id, _by(request))
        return reply({"id": id, "deleted": True})

    async def forget(
        self, request: Request, scope: Workspace, user: Annotated[User, Query(description="connector:user_id")]
    ) -> Response:
        scope = self._writable(request, scope, user)
        return reply({"user": user, "forgotten": await self._records.forget(scope)})

    async def _check_writable(self, request: Request, scope: Scope, record_id: str) -> None:
        """Raise `ApiError` 403 if the record is the whole workspace's and the caller is no admin."""
        if not (await self._records.get(scope, record_id)).audience:
            require_role(caller_of(request), Role.ADMIN)

    def _visible(self, request: Request, scope: Scope, user: str | None, context: str | None = None) -> Scope:
        """Return the scope that the caller may see: the workspace's records and those of the person or place that it
        names. The runtime's administrator who names none sees all."""
        sees_all = caller_of(request).sees_all
        if user is not None and not user.startswith(OWN_CONNECTOR) and not sees_all:
            raise ApiError(403, "forbidden", "records of another connector's people need the runtime's admin token")
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", 'give "user" or "context", not both')
        place = place_audience(OWN_CONNECTOR + context) if context is not None else None
        return Scope(scope.workspace_id, None, user or place or (EVERYONE if sees_all else None))

    def _writable(self, request: Request, scope: Scope, user: str | None) -> Scope:
        visible = self._visible(request, scope, user)
        if user is not None:
            return visible
        require_role(caller_of(request), Role.ADMIN)
        return scope


def _check_filters(types: Sequence[Type], states: Sequence[State], before: str) -> None:
    """Raise `ApiError` 400 for filters by which nothing can ever be found."""
    known = list(dict.fromkeys(state for type_ in types or STATES for state in STATES[type_]))
    if states and not set(states) & set(known):
        raise ApiError(400, "bad_request", f"query.state: records of that type are {', '.join(known)}")
    if before and "|" not in before:
        raise ApiError(400, "bad_request", "query.before: expected the `next` of an earlier page")


def _record_row(record: Record) -> dict[str, Any]:
    names = ["id", "type", "text", "micro", "summary", "state", "confirmations", "activations", "created_at"]
    names += ["changed_at", "confidence", "outcome", "verbatim", "supersedes", "superseded_by", "version"]
    row = record.model_dump(mode="json", include={*names, "provenance", *_OF_TYPE.get(record.type, ())})
    if record.type is Type.ITEM:
        row["status"] = record.state.value
    owner = {"user": person_of_audience(record.audience), "audience": record.audience or "workspace"}
    return row | owner | {"shared_by": record.shared_by or None}


def _change_row(change: Change) -> dict[str, Any]:
    row = asdict(change)
    return {"from": row.pop("from_state"), "to": row.pop("to_state"), **row}


def _by(request: Request) -> Provenance:
    return Provenance(author=caller_of(request).id)
