"""One structured event for each thing that happened: standard output, and a stream that can be read.

`configure` sets structlog up; after it ``structlog.get_logger().info("event.name", field=…)`` anywhere
is one line of JSON, without message text, prompts and secrets, and an entry in Redis (see
`runtime.observability.stream`). Every event has ``event``, ``level`` and ``timestamp``, and where they are
known `CONTEXT_FIELDS`, which `about` binds for all that happens inside it.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from pathlib import PurePath
from types import MappingProxyType, TracebackType
from typing import IO, Any, Literal

import click
import structlog

from runtime.observability.redaction import Redaction

CONTEXT_FIELDS = ("workspace_id", "context_id", "connector", "turn_id")
_CONTEXT_FIELDS = frozenset(CONTEXT_FIELDS)
_LEADING = ("event", "level", "timestamp", *CONTEXT_FIELDS)
_DIGEST_CHARACTERS = 12
_NAME_COLUMNS = 20
_LAST = ("why", "detail")
_UNITS = {"ms": "ms", "seconds": "s", "usd": "USD"}
_MATTER = {
    "connector.state": ("state",),
    "directive.changed": ("kind", "name", "version", "author", "cleared"),
    "grounding.assembled": ("strategy", "reason", "tokens_total", "degraded", "duration_ms"),
    "http.listening": ("url",),
    "index.updated": ("documents", "chunks", "deleted", "lag_ms"),
    "message.accepted": ("role",),
    "reply.delivered": ("kind",),
    "turn.answered": ("model", "tokens_prompt", "tokens_completion", "cost_usd", "latency_ms", "degraded", "turn_id"),
}
"""What people see of the most frequent events, which have many fields; of others, and of warnings, they see all."""
COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}
"""Of lines for people, by level."""
_LINE = json.JSONEncoder(separators=(", ", ": "), allow_nan=False)
_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))
"""What `about` says of events here. One mapping for all its fields, never changed: set, merged and put back at once."""

Event = dict[str, Any]
Keep = Callable[[Event, str], None]
"""Is given each event, and the same as one line of JSON."""
Format = Literal["json", "console"]

# These see what people write, and put it into their log lines.
_SEES_TEXT = frozenset(
    {"LiteLLM", "aiogram", "aiohttp", "discord", "httpcore", "httpx", "litellm", "mcp", "openai", "slack_bolt"}
    | {"slack_sdk", "uvicorn", "websockets"}
)
_MAX_WHY_CHARACTERS = 300
_MAX_FRAMES = 30
_MAX_CAUSES = 5
_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)

log = structlog.get_logger()


def configure(
    redaction: Redaction,
    *,
    log_format: Format = "json",
    level: int = logging.INFO,
    output: IO[str] | None = None,
    keep: Keep | None = None,
    silent: bool = False,
) -> None:
    """Send events to *output* (standard output by default) and to *keep*.

    *silent* prints none, for commands whose output is for people; *keep* gets them all the same. Logging
    of libraries comes out as the event ``library.log``, from WARNING on. May be called again.
    """
    printer = None if silent else _Printer(sys.stdout if output is None else output, log_format)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _Finish(redaction, keep, printer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LibraryHandler)]:
        root.removeHandler(handler)
    root.addHandler(_LibraryHandler(logging.WARNING))
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)


class about:  # noqa: N801 - a block, as `contextlib.suppress` is
    """Every event inside the block carries *fields* (names of `CONTEXT_FIELDS`), unless it has another value itself.

    Raises `ValueError` for any other name.
    """

    __slots__ = ("_before", "_fields")

    def __init__(self, **fields: str) -> None:
        unknown = fields.keys() - _CONTEXT_FIELDS
        if unknown:
            raise ValueError(f"not fields of every event: {', '.join(sorted(unknown))}")
        self._fields = fields
        self._before: Token[Mapping[str, str]] | None = None

    def __enter__(self) -> None:
        self._before = _ABOUT.set({**_ABOUT.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        _ABOUT.reset(self._before)


class _Finish:
    """The last processor: cleans and orders the fields, then hands the event and its line to stream and printer."""

    def __init__(self, redaction: Redaction, keep: Keep | None, printer: _Printer | None) -> None:
        self._redaction = redaction
        self._keep = keep
        self._printer = printer

    def __call__(self, _logger: object, _method: str, fields: MutableMapping[str, Any]) -> Event:
        failure = _failure(fields.pop("exc_info", None))
        fields.pop("stack_info", None)
        told = self._redaction.clean({**_ABOUT.get(), **fields, **failure})
        event, line = _written(ordered(told, datetime.now(UTC)))
        if self._keep is not None:
            self._keep(event, line)
        if self._printer is not None:
            self._printer.print(event, line)
        raise structlog.DropEvent


class _Printer:
    def __init__(self, output: IO[str], log_format: Format) -> None:
        self._output = output
        self._for_people = log_format == "console"
        self._is_terminal = output.isatty()

    def print(self, event: Event, line: str) -> None:
        try:
            self._output.write((self._readable(event) if self._for_people else line) + "\n")
            self._output.flush()
        except (OSError, ValueError):
            # Nobody reads (any more): the reader went away or the file is closed. What happens here must
            # not fail for that, and there is no other place to say so.
            return

    def _readable(self, event: Event) -> str:
        if not self._is_terminal:
            return readable(event)
        text = folded(readable(event), shutil.get_terminal_size().columns)
        colour = COLOURS.get(str(event.get("level")))
        return click.style(text, fg=colour) if colour else text


class _LibraryHandler(logging.Handler):
    """Routes the standard library's logging into events."""

    def emit(self, record: logging.LogRecord) -> None:
        root = record.name.partition(".")[0]
        if root == "structlog":
            return
        log.log(
            next((known for known in _LEVELS if record.levelno >= known), logging.DEBUG),
            "library.log",
            library=record.name,
            where=f"{PurePath(record.pathname).name}:{record.lineno}",
            why=_library_why(record, root),
            exc_info=record.exc_info,
        )


def _library_why(record: logging.LogRecord, root: str) -> str:
    if root in _SEES_TEXT and not record.args:
        return ""  # its words may be filled in already
    try:
        message = str(record.msg) % _countable(record.args) if root in _SEES_TEXT else record.getMessage()
    except (TypeError, ValueError):  # the library's template and arguments do not fit
        message = str(record.msg)
    # What follows the first line is dumps: tasks, requests, values.
    return message.partition("\n")[0][:_MAX_WHY_CHARACTERS]


def _countable(args: object) -> Any:
    """What a line is filled in with, of which nobody can have written anything: numbers and the classes of errors stay,
    everything else is left out."""
    if isinstance(args, tuple):
        return tuple(_countable(one) for one in args)
    if isinstance(args, Mapping):
        return {name: _countable(one) for name, one in args.items()}
    if isinstance(args, BaseException):
        return type(args).__name__
    return args if isinstance(args, int | float) else "…"


def ordered(fields: Event, now: datetime) -> Event:
    """*fields* with the ones of every event first, and *now* (RFC 3339, UTC) as ``timestamp``."""
    timestamp = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {**fields, "timestamp": timestamp}
    return {**{name: known[name] for name in _LEADING if name in known}, **known}


def _written(event: Event) -> tuple[Event, str]:
    """*event* and its line: of one that cannot be written only what every event has."""
    try:
        return event, json_line(event)
    except ValueError:  # a number of thousands of digits
        known = {name: event[name] for name in _LEADING if name in event and not isinstance(event[name], int)}
        return known, json_line(known)


def json_line(event: Event) -> str:
    """*event* as one line of plain ASCII, so that no value can break the line or the terminal."""
    return _LINE.encode(event)


def readable(event: Event) -> str:
    """*event* on one line for people: time, name, place, then the fields that matter; nothing that a terminal obeys.
    Pure."""
    place = "/".join(_value(str(event[each])) for each in ("workspace_id", "context_id") if event.get(each))
    place = place or str(event.get("connector", ""))
    level, name = str(event.get("level", "")), str(event.get("event", ""))
    said = (_said(each, event[each]) for each in _shown(event, name, is_calm=level not in COLOURS))
    fields = ", ".join(one for one in said if one)
    why = ": ".join(_value(event[each]) for each in _LAST if event.get(each))
    parts = [
        str(event.get("timestamp", ""))[11:19],
        f"{level.upper()} {name}" if level in COLOURS else name.ljust(_NAME_COLUMNS),
        place,
        ": ".join(one for one in (fields, why) if one),
    ]
    return "  ".join(part for part in parts if part).rstrip()


def folded(text: str, columns: int) -> str:
    """A line of `readable` on lines of at most *columns*, broken between words, the further ones indented."""
    return textwrap.fill(
        text, max(columns, 40), subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
    )


def _shown(event: Event, name: str, *, is_calm: bool) -> Iterable[str]:
    if is_calm and name in _MATTER:
        return [each for each in _MATTER[name] if event.get(each) is not False and each in event]
    further = [each for each in event if each not in (*_LEADING, *_LAST)]
    return further if is_calm or "turn_id" not in event else [*further, "turn_id"]


def _said(name: str, value: Any) -> str:
    """A field in words; empty where it says nothing."""
    if value is None or value in ("", [], {}):
        return ""
    word, _, unit = name.rpartition("_")
    if isinstance(value, bool):
        return name.replace("_", " ") if value else f"not {name.replace('_', ' ')}"
    if word and unit in _UNITS and isinstance(value, int | float):
        return f"{word.replace('_', ' ')} {_value(value)} {_UNITS[unit]}"
    if name == "turn_id":
        return f"turn {_value(value)}"
    if name == "frames":
        return f"at {_value(value[-1])}"
    if unit == "digest":
        value = str(value)[:_DIGEST_CHARACTERS]
    return f"{name.replace('_', ' ')} {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value and value.isprintable():
        return value
    if isinstance(value, list):
        return " + ".join(map(_value, value))
    if isinstance(value, dict):
        return " ".join(map(_value, value.values()))
    return json.dumps(value, separators=(",", ":"))


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def _failure(exc_info: object) -> Event:
    """``error`` (the classes) and ``frames`` of an exception: never its text, which may quote anything."""
    if exc_info is True:
        exc_info = sys.exc_info()
    error = exc_info if isinstance(exc_info, BaseException) else None
    if isinstance(exc_info, tuple) and len(exc_info) == 3:
        error = exc_info[1]
    if error is None:
        return {}
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _MAX_CAUSES:
        chain.append(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return {
        "error": " < ".join(chain),
        "frames": [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
    }
