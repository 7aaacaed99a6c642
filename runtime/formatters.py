"""Loads formatters (plug-ins of the prompt) and runs them; see `grounding.prompt.formatters`.

They are entry points of the group `GROUP`: functions that take the settings and return a formatter, or None if the
settings do not ask for it. If a formatter fails, its text is missing, and the turn goes on.
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
from typing import Any

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.pipeline import error_word
from grounding.prompt import ArtifactInjector, Formatter, PromptTemplate, Request, problem_of, template_inputs
from grounding.prompt_input import PLACES, DegradedBlock, Injected, RunContext, Tokens, Volatility

GROUP = "agent_runtime.formatters"
CHARACTERS_PER_TOKEN = 16
"""Text beyond a budget times this is cut, because it could hardly fit."""
MAX_RUNNING = 4
"""Calls of one formatter at the same time, so that one that hangs does not start more and more threads."""
REST_SECONDS = 30.0
"""How long a formatter is not called after it took too long."""
CACHED_TEXTS = 2000
"""Texts that are cached for a session or for good. With the shipped budget of 1,500 tokens some 12 MB."""
_log = structlog.get_logger()


class FormattersRefused(AgentRuntimeError):
    """Installed formatters cannot be used; the text names each with its distribution.

    ``exit_code`` 2: somebody has to correct or uninstall them.
    """

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Installed:
    """A formatter, and the distribution that it came with."""

    formatter: Formatter
    source: str


@dataclass(frozen=True, slots=True)
class FormattedTexts:
    """The texts, named after their blocks, and the blocks that failed."""

    texts: tuple[Injected, ...] = ()
    lost: tuple[DegradedBlock, ...] = ()

    def __add__(self, other: FormattedTexts) -> FormattedTexts:
        return FormattedTexts((*self.texts, *other.texts), (*self.lost, *other.lost))


NOTHING = FormattedTexts()


def load_formatters(settings: Settings) -> tuple[Installed, ...]:
    """Load all formatters, sorted by name. Imports other people's code. Raises `FormattersRefused`."""
    found: list[Installed] = []
    problems: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        source = _source(point)
        try:
            formatter = point.load()(settings)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may raise anything
            problems.append(f"{source}: {point.name} ({point.value}) failed: {type(error).__name__}: {error}")
            continue
        if formatter is None:
            continue
        if problem := problem_of(formatter) or _clash(formatter, found):
            problems.append(f"{source}: {point.name} ({point.value}): {problem}")
        else:
            found.append(Installed(formatter, source))
    if problems:
        raise FormattersRefused("\n  ".join(["these formatters cannot be used; correct or uninstall them:", *problems]))
    return tuple(sorted(found, key=lambda item: item.formatter.name))


class Formatters:
    """Has the formatters make the texts of a turn, and caches those that last longer than one."""

    def __init__(
        self,
        formatters: Sequence[Installed],
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._injectors = [
            (item.formatter, item.source) for item in formatters if isinstance(item.formatter, ArtifactInjector)
        ]
        self._templates = [
            (item.formatter, item.source) for item in formatters if isinstance(item.formatter, PromptTemplate)
        ]
        self._timeout = timeout_seconds
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._resting_until: dict[str, float] = {}
        self._cache: OrderedDict[tuple[str, str, str], _CachedText] = OrderedDict()

    @property
    def sources(self) -> dict[str, str]:
        """The distribution of each formatter, by its name."""
        injectors = {formatter.name: source for formatter, source in self._injectors}
        return injectors | {formatter.name: source for formatter, source in self._templates}

    async def inject(self, request: Request) -> FormattedTexts:
        """Return the texts for *request* that do not depend on a session."""
        chosen = [pair for pair in self._injectors if pair[0].volatility is not Volatility.SESSION]
        return await self._inject(chosen, request, "", ()) if chosen else NOTHING

    async def session_texts(self, request: Request, session: str, before: Sequence[Injected] = ()) -> FormattedTexts:
        """Return the texts that stay the same in the session with the id *session*; if empty, nothing is cached.

        *before* are the texts of the session's last turn, whichever process made them.
        """
        chosen = [pair for pair in self._injectors if pair[0].volatility is Volatility.SESSION]
        return await self._inject(chosen, request, session, before) if chosen else NOTHING

    async def render(self, context: RunContext, tokens: Tokens) -> RunContext:
        """Return *context* with the blocks that templates render."""
        if not self._templates:
            return context
        bodies = template_inputs(context, tokens)
        lost: list[DegradedBlock] = []
        rendered = await asyncio.gather(
            *(
                self._render_block(template, source, context, bodies[template.block], lost)
                for template, source in self._templates
                if template.block in bodies
            )
        )
        return context.model_copy(
            update={
                "injected": (*context.injected, *(text for text in rendered if text is not None)),
                "degraded": (*context.degraded, *lost),
            }
        )

    async def _inject(
        self, chosen: Sequence[tuple[ArtifactInjector, str]], request: Request, session: str, before: Sequence[Injected]
    ) -> FormattedTexts:
        lost: list[DegradedBlock] = []
        previous = {text.name: text for text in before}
        due = [pair for pair in chosen if not _is_of(pair, previous.get(pair[0].name))]
        texts = await asyncio.gather(*(self._text(injector, request, session, lost) for injector, _ in due))
        new = [_injected(injector, text, source) for (injector, source), text in zip(due, texts, strict=True) if text]
        old = [previous[injector.name] for injector, source in chosen if (injector, source) not in due]
        return FormattedTexts(tuple(sorted((*new, *old), key=lambda text: text.name)), tuple(lost))

    async def _text(self, injector: ArtifactInjector, request: Request, session: str, lost: list[DegradedBlock]) -> str:
        if injector.volatility is Volatility.TURN:
            return await self._call(injector.name, lambda: injector.text(request), lost) or ""
        is_static = injector.volatility is Volatility.STATIC
        request = Request(request.workspace_id, "" if is_static else request.context_id)
        place = (injector.name, request.workspace_id, request.context_id)
        known = self._cache.get(place)
        if known is not None and (is_static or (session and known.session == session)):
            self._cache.move_to_end(place)
            return known.text

        def keep(text: str) -> str:
            cached = _CachedText(text[: injector.budget_tokens * CHARACTERS_PER_TOKEN], session)
            self._cache[place] = cached
            while len(self._cache) > CACHED_TEXTS:
                self._cache.popitem(last=False)
            return cached.text

        # A text that comes too late is for the next turn; until then the last one is better than none.
        text = await self._call(injector.name, lambda: injector.text(request), lost, late=keep)
        return (known.text if known else "") if text is None else keep(text)

    async def _render_block(
        self, template: PromptTemplate, source: str, context: RunContext, body: str, lost: list[DegradedBlock]
    ) -> Injected | None:
        place = PLACES[template.block]
        query = context.query.text if place.volatility is Volatility.TURN else ""
        request = Request(context.workspace_id, context.context_id, query)
        text = await self._call(template.name, lambda: template.render(request, body), lost)
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

    async def _call(
        self, name: str, make: Callable[[], Any], lost: list[DegradedBlock], late: Callable[[str], object] | None = None
    ) -> str | None:
        """Return the text of *make*, which runs in a thread of its own; None if it fails.

        A formatter that took too long is not called for a while, so that the next turns do not wait for it. Its text is
        passed to *late* when it comes.
        """
        text, reason = None, ""
        if self._clock() < self._resting_until.get(name, 0.0):
            reason = "resting"
        elif self._running[name] >= MAX_RUNNING:
            reason = "busy"
        else:
            try:
                async with asyncio.timeout(self._timeout):
                    text, failed = await self._in_thread(name, make, late)
                reason = error_word(failed) if failed else ""
            except TimeoutError:
                reason, self._resting_until[name] = "timeout", self._clock() + REST_SECONDS
            except RuntimeError as error:  # no thread could be started
                reason = error_word(error)
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
        """Call *make* in a daemon thread, and return its result and its error.

        A thread of the pool would delay the process's end, and be missing elsewhere. Raises RuntimeError if no thread
        can be started.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def finish(text: Any, error: BaseException | None) -> None:
            self._running[name] -= 1
            if not result.done():
                result.set_result((text, error))  # as a value: a future does not accept every exception
            elif late is not None and isinstance(text, str):
                late(_sendable(text))

        def run() -> None:
            text, failed = None, None
            try:
                text = make()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may raise anything
                failed = error
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(finish, text, failed)

        threading.Thread(target=run, name=f"formatter {name}", daemon=True).start()
        self._running[name] += 1
        return await result


@dataclass(slots=True)
class _CachedText:
    """A text, and the session that it was made for."""

    text: str
    session: str


def _sendable(text: str) -> str:
    """Replace lone surrogates, as file names may contain: a text with them can neither be sent nor stored."""
    return text.encode("utf-8", "replace").decode("utf-8").strip()


def _is_of(pair: tuple[ArtifactInjector, str], text: Injected | None) -> bool:
    """Return whether *text* comes from that injector as it is configured now."""
    injector, source = pair
    return text is not None and _injected(injector, text.text, source) == text


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


def _clash(new: Formatter, found: Iterable[Installed]) -> str:
    for item in found:
        other = item.formatter
        if other.name == new.name:
            return f"{item.source} has one named {new.name!r}, too"
        if isinstance(other, PromptTemplate) and isinstance(new, PromptTemplate) and other.block == new.block:
            return f"{other.name!r} of {item.source} renders the block {new.block!r}, too"
    return ""


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
