"""Loads formatters, and has them make their text. See `grounding.prompt.formatters`.

They are found by the entry points of the group `GROUP`, each a function that is given the settings and returns a
formatter, or None where the settings do not ask for it. What one of them does wrong costs its text, never the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.pipeline import why
from grounding.prompt import ArtifactInjector, Formatter, PromptTemplate, Request, problem_of, template_inputs
from grounding.prompt_input import PLACES, DegradedBlock, Injected, RunContext, Tokens, Volatility

GROUP = "agent_runtime.formatters"
LOAD_SECONDS = 60.0
"""For the import of one and its call: whoever starts a process shall not wait for ever and not be told for what."""
CHARACTERS_PER_TOKEN = 16
"""Text beyond a budget times this is not kept with the turn: hardly any fits."""
MAX_RUNNING = 4
"""Calls of one formatter at the same time: one that hangs shall not make more and more threads."""
REST_SECONDS = 30.0
"""How long a formatter that took too long is not asked again."""
REMEMBERED = 2000
"""Places of which the text of a session is kept. With the shipped budget of 1,500 tokens some 12 MB."""
_log = structlog.get_logger()


class FormattersRefused(AgentRuntimeError):
    """Installed formatters cannot be used; the text names each with its distribution. ``exit_code`` 2: somebody has to
    correct or uninstall them."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Installed:
    """A formatter, and the distribution that it came with."""

    formatter: Formatter
    source: str


@dataclass(frozen=True, slots=True)
class Made:
    """Texts by the names of their blocks, and what could not be had."""

    texts: tuple[Injected, ...] = ()
    lost: tuple[DegradedBlock, ...] = ()

    def __add__(self, other: Made) -> Made:
        return Made((*self.texts, *other.texts), (*self.lost, *other.lost))


NOTHING = Made()


def installed(settings: Settings) -> tuple[Installed, ...]:
    """All formatters, by name. Imports other people's code, which may take a while. Raises `FormattersRefused`."""
    found: list[Installed] = []
    problems: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        source = _source(point)
        made, error = _loaded(point, settings)
        if error is not None:
            problems.append(f"{source}: {point.name} ({point.value}) failed: {type(error).__name__}: {error}")
            continue
        if made is None:
            continue
        if problem := problem_of(made) or _clash(made, found):
            problems.append(f"{source}: {point.name} ({point.value}): {problem}")
        else:
            found.append(Installed(made, source))
    if problems:
        raise FormattersRefused("\n  ".join(["these formatters cannot be used; correct or uninstall them:", *problems]))
    return tuple(sorted(found, key=lambda one: one.formatter.name))


def _loaded(point: EntryPoint, settings: Settings) -> tuple[Any, BaseException | None]:
    """What *point* gives, and what it raises, in a thread that ends with the process: the start waits no longer for one
    that hangs than `LOAD_SECONDS`."""
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def load() -> None:
        try:
            answers.put((point.load()(settings), None))
        except BaseException as error:  # noqa: BLE001 - it is anybody's code, which may even want to exit
            answers.put((None, error))

    threading.Thread(target=load, name=f"formatter {point.name}", daemon=True).start()
    try:
        return answers.get(timeout=LOAD_SECONDS)
    except Empty:
        return None, TimeoutError(f"it took longer than {LOAD_SECONDS:g} s")


class Formatters:
    """Makes the texts of a turn. Remembers those that outlast one."""

    def __init__(
        self,
        formatters: Sequence[Installed],
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._injectors = [
            (one.formatter, one.source) for one in formatters if isinstance(one.formatter, ArtifactInjector)
        ]
        self._templates = [
            (one.formatter, one.source) for one in formatters if isinstance(one.formatter, PromptTemplate)
        ]
        self._timeout = timeout_seconds
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._rests: dict[str, float] = {}
        self._kept: OrderedDict[tuple[str, str, str], _Kept] = OrderedDict()

    @property
    def sources(self) -> dict[str, str]:
        """The distribution of each formatter by its name."""
        injectors = {one.name: source for one, source in self._injectors}
        return injectors | {one.name: source for one, source in self._templates}

    async def inject(self, asked: Request) -> Made:
        """The texts for *asked* that do not wait for a session."""
        chosen = [one for one in self._injectors if one[0].volatility is not Volatility.SESSION]
        return await self._all(chosen, asked, "", ()) if chosen else NOTHING

    async def of_session(self, asked: Request, session: str, before: Sequence[Injected] = ()) -> Made:
        """The texts that stay as they are in *session* (its id; none where nothing is to be remembered). *before* are
        those that its last turn was given, whichever process made them."""
        chosen = [one for one in self._injectors if one[0].volatility is Volatility.SESSION]
        return await self._all(chosen, asked, session, before) if chosen else NOTHING

    async def render(self, context: RunContext, tokens: Tokens) -> RunContext:
        """*context* with what templates make of its blocks."""
        if not self._templates:
            return context
        bodies = template_inputs(context, tokens)
        lost: list[DegradedBlock] = []
        made = await asyncio.gather(
            *(
                self._rendered(template, source, context, bodies[template.block], lost)
                for template, source in self._templates
                if template.block in bodies
            )
        )
        return context.model_copy(
            update={
                "injected": (*context.injected, *(one for one in made if one is not None)),
                "degraded": (*context.degraded, *lost),
            }
        )

    async def _all(
        self, chosen: Sequence[tuple[ArtifactInjector, str]], asked: Request, session: str, before: Sequence[Injected]
    ) -> Made:
        lost: list[DegradedBlock] = []
        given = {one.name: one for one in before}
        fresh = [one for one in chosen if not _is_of(one, given.get(one[0].name))]
        texts = await asyncio.gather(*(self._text(one, asked, session, lost) for one, _ in fresh))
        made = [_injected(one, text, source) for (one, source), text in zip(fresh, texts, strict=True) if text]
        kept = [given[one.name] for one, source in chosen if (one, source) not in fresh]
        return Made(tuple(sorted((*made, *kept), key=lambda one: one.name)), tuple(lost))

    async def _text(self, injector: ArtifactInjector, asked: Request, session: str, lost: list[DegradedBlock]) -> str:
        if injector.volatility is Volatility.TURN:
            return await self._made(injector.name, lambda: injector.text(asked), lost) or ""
        lasts = injector.volatility is Volatility.STATIC
        wanted = Request(asked.workspace_id, "" if lasts else asked.context_id)
        place = (injector.name, wanted.workspace_id, wanted.context_id)
        known = self._kept.get(place)
        if known is not None and (lasts or (session and known.session == session)):
            self._kept.move_to_end(place)
            return known.text

        def keep(text: str) -> str:
            kept = _Kept(text[: injector.budget_tokens * CHARACTERS_PER_TOKEN], session)
            self._kept[place] = kept
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
            return kept.text

        # What comes too late is for the next turn; until then the last that was had is better than none.
        text = await self._made(injector.name, lambda: injector.text(wanted), lost, late=keep)
        return (known.text if known else "") if text is None else keep(text)

    async def _rendered(
        self, template: PromptTemplate, source: str, context: RunContext, body: str, lost: list[DegradedBlock]
    ) -> Injected | None:
        place = PLACES[template.block]
        stays = place.volatility is not Volatility.TURN
        asked = Request(context.workspace_id, context.context_id, "" if stays else context.query.text)
        text = await self._made(template.name, lambda: template.render(asked, body), lost)
        if not text:
            return None
        volatility: Any = place.volatility.value
        budget = max(len(body), 1)
        return Injected(
            name=template.block,
            message=place.message,
            place=template.block,
            volatility=volatility,
            text=text[: budget * CHARACTERS_PER_TOKEN],
            budget=budget,
            source=source,
        )

    async def _made(
        self, name: str, make: Callable[[], Any], lost: list[DegradedBlock], late: Callable[[str], object] | None = None
    ) -> str | None:
        """What *make* gives, in a thread of its own; None where it fails. One that takes too long is left alone for a
        while: no second turn shall wait for it. What it gives in the end is told to *late*."""
        text, reason = None, ""
        if self._clock() < self._rests.get(name, 0.0):
            reason = "resting"
        elif self._running[name] >= MAX_RUNNING:
            reason = "busy"
        else:
            try:
                async with asyncio.timeout(self._timeout):
                    text, failed = await self._in_thread(name, make, late)
                reason = why(failed) if failed else ""
            except TimeoutError:
                reason, self._rests[name] = "timeout", self._clock() + REST_SECONDS
            except RuntimeError as error:  # there is no thread left
                reason = why(error)
        if isinstance(text, str):
            return _sendable(text)
        reason = reason or "no_text"
        if reason != "resting":
            _log.warning("formatter.failed", formatter=name, why=reason)
        lost.append(DegradedBlock(block=name, why=reason))
        return None

    async def _in_thread(
        self, name: str, make: Callable[[], Any], late: Callable[[str], object] | None
    ) -> tuple[Any, BaseException | None]:
        """What *make* gives, and what it raises, in a thread that ends with the process: those of the pool would have
        to be waited for, and be missing. Raises RuntimeError where there can be none."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def over(text: Any, error: BaseException | None) -> None:
            self._running[name] -= 1
            if not result.done():
                result.set_result((text, error))  # a future takes not every exception for its own
            elif late is not None and isinstance(text, str):
                late(_sendable(text))

        def run() -> None:
            text, failed = None, None
            try:
                text = make()
            except BaseException as error:  # noqa: BLE001 - it is anybody's code, which may even want to exit
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(over, text, failed)

        threading.Thread(target=run, name=f"formatter {name}", daemon=True).start()
        self._running[name] += 1
        return await result


@dataclass(slots=True)
class _Kept:
    """The text of a place, and for which session it was made."""

    text: str
    session: str


def _sendable(text: str) -> str:
    """*text* without what has no bytes, as names from a disk may have: what holds it could be neither sent nor kept."""
    return text.encode("utf-8", "replace").decode("utf-8").strip()


def _is_of(one: tuple[ArtifactInjector, str], given: Injected | None) -> bool:
    """Whether *given* is a text of that injector as it is now."""
    injector, source = one
    return given is not None and _injected(injector, given.text, source) == given


def _injected(injector: ArtifactInjector, text: str, source: str) -> Injected:
    volatility: Any = injector.volatility.value
    return Injected(
        name=injector.name,
        message=PLACES[injector.after].message,
        place=injector.after,
        volatility=volatility,
        text=text[: injector.budget_tokens * CHARACTERS_PER_TOKEN],
        budget=injector.budget_tokens,
        source=source,
    )


def _clash(made: Formatter, found: Iterable[Installed]) -> str:
    for one in found:
        other = one.formatter
        if other.name == made.name:
            return f"{one.source} has one named {made.name!r}, too"
        if isinstance(other, PromptTemplate) and isinstance(made, PromptTemplate) and other.block == made.block:
            return f"{other.name!r} of {one.source} renders the block {made.block!r}, too"
    return ""


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
