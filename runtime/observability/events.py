"""Writes structured events to standard output and to a stream.

After `configure`, ``structlog.get_logger().info("event.name", field=…)`` anywhere becomes one line of JSON without
message text, prompts and secrets, and an entry in Redis (see `runtime.observability.stream`). Every event has
``event``, ``level`` and ``timestamp``, and the `CONTEXT_FIELDS` that `about` binds, if they are known.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePath
from typing import IO, Any, Literal

import click
import structlog
from structlog.contextvars import bound_contextvars, get_contextvars

from runtime.observability.redaction import Redaction

CONTEXT_FIELDS = ("workspace_id", "context_id", "connector", "turn_id")
_LEADING = ("event", "level", "timestamp", *CONTEXT_FIELDS)
_DIGEST_CHARACTERS = 12
_NAME_COLUMNS = 20
_LAST = ("why", "detail")
_UNITS = {"ms": "ms", "seconds": "s", "usd": "USD"}
_SHOWN_FIELDS = {
    "connector.state": ("state",),
    "directive.changed": ("kind", "name", "version", "author", "cleared"),
    "grounding.assembled": ("strategy", "reason", "tokens_total", "degraded", "duration_ms"),
    "http.listening": ("url",),
    "index.updated": ("documents", "chunks", "deleted", "lag_ms"),
    "message.accepted": ("role",),
    "reply.delivered": ("kind",),
    "turn.answered": ("model", "tokens_prompt", "tokens_completion", "cost_usd", "latency_ms", "degraded", "turn_id"),
}
"""The fields that people see of the most frequent events. Of all others, and of warnings, they see all fields."""
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}
"""The colours of lines for people, by level."""
_LINE = json.JSONEncoder(separators=(", ", ": "), allow_nan=False)

Event = dict[str, Any]
Keep = Callable[[Event, str], None]
"""Gets each event, and its line of JSON."""
Format = Literal["json", "console"]

# These libraries put what people write into their log lines.
_LOGS_TEXT = frozenset(
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

    *silent* prints none, for commands whose output is for people; *keep* still gets them. What libraries log from
    WARNING on becomes the event ``library.log``. May be called again.
    """
    printer = None if silent else _Printer(sys.stdout if output is None else output, log_format)
    structlog.configure(
        processors=[structlog.processors.add_log_level, _Finish(redaction, keep, printer)],
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


@contextmanager
def event_context(**fields: str) -> Iterator[None]:
    """Give every event inside the block *fields* (names of `CONTEXT_FIELDS`), unless it has another value itself.

    Raises `ValueError` for any other name.
    """
    if unknown := fields.keys() - set(CONTEXT_FIELDS):
        raise ValueError(f"not fields of every event: {', '.join(sorted(unknown))}")
    with bound_contextvars(**fields):
        yield


class _Finish:
    """The last processor: cleans and orders the fields, then hands the event and its line to stream and printer."""

    def __init__(self, redaction: Redaction, keep: Keep | None, printer: _Printer | None) -> None:
        self._redaction = redaction
        self._keep = keep
        self._printer = printer

    def __call__(self, _logger: object, _method: str, fields: MutableMapping[str, Any]) -> Event:
        failure = _failure(fields.pop("exc_info", None))
        fields.pop("stack_info", None)
        cleaned = self._redaction.clean({**get_contextvars(), **fields, **failure})
        event = order_fields(cleaned, datetime.now(UTC))
        line = json_line(event)
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
            return  # the reader went away or the file is closed: no reason to fail, and no place to say so

    def _readable(self, event: Event) -> str:
        if not self._is_terminal:
            return format_event(event)
        text = wrap_line(format_event(event), shutil.get_terminal_size().columns)
        colour = LEVEL_COLOURS.get(str(event.get("level")))
        return click.style(text, fg=colour) if colour else text


class _LibraryHandler(logging.Handler):
    """Turns what libraries log into events."""

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
    if root in _LOGS_TEXT and not record.args:
        return ""  # the values may be filled in already
    try:
        message = str(record.msg) % _without_text(record.args) if root in _LOGS_TEXT else record.getMessage()
    except (TypeError, ValueError):  # the library's template and arguments do not fit
        message = str(record.msg)
    # The lines after the first are dumps of tasks, requests and values.
    return message.partition("\n")[0][:_MAX_WHY_CHARACTERS]


def _without_text(args: object) -> Any:
    """Return *args* of a log line with only those values that no person can have written: numbers and the classes of
    errors."""
    if isinstance(args, tuple):
        return tuple(_without_text(value) for value in args)
    if isinstance(args, Mapping):
        return {name: _without_text(value) for name, value in args.items()}
    if isinstance(args, BaseException):
        return type(args).__name__
    return args if isinstance(args, int | float) else "…"


def order_fields(fields: Event, now: datetime) -> Event:
    """Return *fields* with those of every event first, and *now* (RFC 3339, UTC) as ``timestamp``."""
    timestamp = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {**fields, "timestamp": timestamp}
    return {**{name: known[name] for name in _LEADING if name in known}, **known}


def json_line(event: Event) -> str:
    """Return *event* as one line of plain ASCII, so that no value can break the line or the terminal."""
    return _LINE.encode(event)


def format_event(event: Event) -> str:
    """Return *event* on one line for people: time, name, place, fields; without terminal control characters."""
    place = "/".join(_value(str(event[field])) for field in ("workspace_id", "context_id") if event.get(field))
    place = place or str(event.get("connector", ""))
    level, name = str(event.get("level", "")), str(event.get("event", ""))
    texts = (
        _field_text(field, event[field]) for field in _shown_fields(event, name, is_calm=level not in LEVEL_COLOURS)
    )
    fields = ", ".join(text for text in texts if text)
    why = ": ".join(_value(event[field]) for field in _LAST if event.get(field))
    parts = [
        str(event.get("timestamp", ""))[11:19],
        f"{level.upper()} {name}" if level in LEVEL_COLOURS else name.ljust(_NAME_COLUMNS),
        place,
        ": ".join(text for text in (fields, why) if text),
    ]
    return "  ".join(part for part in parts if part).rstrip()


def wrap_line(text: str, columns: int) -> str:
    """Return a line of `readable` broken between words into lines of at most *columns*, all but the first indented."""
    return textwrap.fill(
        text, max(columns, 40), subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
    )


def _shown_fields(event: Event, name: str, *, is_calm: bool) -> Iterable[str]:
    if is_calm and name in _SHOWN_FIELDS:
        return [field for field in _SHOWN_FIELDS[name] if event.get(field) is not False and field in event]
    others = [field for field in event if field not in (*_LEADING, *_LAST)]
    return others if is_calm or "turn_id" not in event else [*others, "turn_id"]


def _field_text(name: str, value: Any) -> str:
    """Return a field in words; "" if it has no value."""
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


def _failure(exc_info: object) -> Event:
    """Return ``error`` (the classes) and ``frames`` of an exception, never its text, which may quote anything."""
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
