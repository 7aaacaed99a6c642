"""Typed records over HTTP: added, listed, found, shown in full with what became of them, changed, erased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import EVERYONE, Role, Scope, person_in, place_audience
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import (
    STATES,
    ItemKind,
    ItemStatus,
    Outcome,
    Provenance,
    Record,
    Severity,
    State,
    Type,
)
from grounding.memory.records.store import Change, place
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.global_context import OWN_CONNECTOR, User
from runtime.api.guard import caller_of, require_role
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

MAX_LIMIT = 500
OPINIONS = frozenset({"confirm", "outcome", "false_positive"})
"""What members may say of the workspace's records: it changes nothing of what they say."""
_OF_TYPE: dict[Type, tuple[str, ...]] = {
    Type.CENSOR: ("trigger", "reason", "severity", "false_positives"),
    Type.ITEM: ("kind", "due"),
    Type.PROCEDURE: ("successes", "failures"),
}
Whose = Annotated[User | None, Query(description="connector:user_id: with that person's own records.")]
InPlace = Annotated[
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
    """Only what is given changes."""

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
    """What belongs to a person or a place is for the administrator of the runtime, save those of the http connector:
    their names are the programs' own. The workspace's records are written by admins; members may say what they think of
    them."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("records")
        self._runtime = runtime
        self._records = runtime.records
        self._limit = runtime.settings.http_max_body_bytes
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
        workspace_id: str,
        type: Annotated[list[Type] | None, Query()] = None,  # noqa: A002 - as the parameter is named
        state: Annotated[list[State] | None, Query()] = None,
        user: Whose = None,
        context: InPlace = None,
        q: Annotated[str | None, Query(max_length=4000)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
        before: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        types, states = type or [], state or []
        _check_filters(types, states, before)
        if q is not None:
            found = await self._records.search(scope, q, limit, types)
            rows = [
                record_row(one.record) | {"similarity": round(one.similarity, 4), "matched": round(one.matched, 4)}
                for one in found
                if not states or one.record.state in states
            ]
            return reply({"records": rows, "next": None})
        page = await self._records.list(scope, types, states, limit, before)
        more = place(page[-1]) if len(page) == limit else None
        return reply({"records": [record_row(one) for one in page], "next": more})

    async def add_one(self, request: Request, workspace_id: str) -> Response:
        body = await read_json(request, RecordBody, self._limit)
        scope = await self._writing(request, workspace_id, body.user)
        fields = body.model_dump(exclude={"user"}) | {"due": body.due or ""}
        added = await self._records.add(scope, NewRecord(**fields), _by(request), _key(request))
        is_new = added.came in ("new", "superseded")
        return reply(record_row(added.record) | {"came": added.came}, 201 if is_new else 200)

    async def show(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: Whose = None,
        context: InPlace = None,
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        record = await self._records.get(scope, id)
        history = await self._records.history(scope, id)
        return reply(record_row(record) | {"history": [change_row(one) for one in history]})

    async def change(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: Whose = None,
        context: InPlace = None,
    ) -> Response:
        body = await read_json(request, RecordChange, self._limit)
        given = body.model_dump(exclude_unset=True, exclude={"user"})
        fields = {name: value for name, value in given.items() if value is not None or name == "due"}
        scope = await self._scope(request, workspace_id, user or body.user, context)
        record = await self._records.get(scope, id)
        if not record.audience and not set(fields) <= OPINIONS:
            require_role(caller_of(request), Role.ADMIN)
        if fields.pop("audience", None) is not None:
            if fields:
                raise ApiError(400, "bad_request", '"audience" is changed alone, without other fields')
            return reply(record_row(await self._records.share(scope, id, _by(request))))
        if not fields:
            raise ApiError(400, "bad_request", "nothing to change: give at least one field")
        return reply(record_row(await self._records.change(scope, id, fields, _by(request), _key(request))))

    async def erase(
        self,
        request: Request,
        workspace_id: str,
        id: str,  # noqa: A002 - as the path has it
        user: Whose = None,
        context: InPlace = None,
    ) -> Response:
        scope = await self._scope(request, workspace_id, user, context)
        if not (await self._records.get(scope, id)).audience:
            require_role(caller_of(request), Role.ADMIN)
        await self._records.erase(scope, id, _by(request))
        return reply({"id": id, "deleted": True})

    async def forget(
        self, request: Request, workspace_id: str, user: Annotated[User, Query(description="connector:user_id")]
    ) -> Response:
        scope = await self._writing(request, workspace_id, user)
        return reply({"user": user, "forgotten": await self._records.forget(scope)})

    async def _scope(self, request: Request, workspace_id: str, user: str | None, context: str | None = None) -> Scope:
        """What the caller sees: the workspace's records with those of a person or a place that it names, or all of
        them by the administrator of the runtime who names none."""
        scope, sees_all = await enter(self._runtime, workspace_id), caller_of(request).sees_all
        if user is not None and not user.startswith(OWN_CONNECTOR) and not sees_all:
            raise ApiError(403, "forbidden", "records of another connector's people need the runtime's admin token")
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", 'give "user" or "context", not both')
        place = place_audience(OWN_CONNECTOR + context) if context is not None else None
        return Scope(scope.workspace_id, None, user or place or (EVERYONE if sees_all else None))

    async def _writing(self, request: Request, workspace_id: str, user: str | None) -> Scope:
        scope = await self._scope(request, workspace_id, user)
        if user is None:
            require_role(caller_of(request), Role.ADMIN)
            return Scope(scope.workspace_id)
        return scope


def _check_filters(types: Sequence[Type], states: Sequence[State], before: str) -> None:
    """What nothing could ever be found by is a mistake. Raises `ApiError` 400, which says what can be."""
    known = list(dict.fromkeys(state for one in types or STATES for state in STATES[one]))
    if states and not set(states) & set(known):
        raise ApiError(400, "bad_request", f"query.state: records of that type are {', '.join(known)}")
    if before and "|" not in before:
        raise ApiError(400, "bad_request", "query.before: expected the `next` of an earlier page")


def record_row(record: Record) -> dict[str, Any]:
    """*record* as programs read it."""
    names = ["id", "type", "text", "micro", "summary", "state", "confirmations", "activations", "created_at"]
    names += ["changed_at", "confidence", "outcome", "verbatim", "supersedes", "superseded_by", "version"]
    row = record.model_dump(mode="json", include={*names, "provenance", *_OF_TYPE.get(record.type, ())})
    if record.type is Type.ITEM:
        row["status"] = record.state.value
    whose = {"user": person_in(record.audience), "audience": record.audience or "workspace"}
    return row | whose | {"shared_by": record.shared_by or None}


def change_row(one: Change) -> dict[str, Any]:
    return {
        "at": one.at,
        "from": one.from_state,
        "to": one.to_state,
        "why": one.why,
        "by": one.by,
        "turn_id": one.turn_id,
    }


def _by(request: Request) -> Provenance:
    return Provenance(author=caller_of(request).id)


def _key(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    return f"api:{caller_of(request).id}:{request.method}:{request.url.path}:{key}" if key else ""
