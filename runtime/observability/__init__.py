"""Events without text and secrets (`configure_events`, `about`), their stream in Redis, and Prometheus `Metrics`."""

from runtime.observability.events import LEVEL_COLOURS, Event, event_context, format_event, wrap_line
from runtime.observability.events import Format as EventFormat
from runtime.observability.events import configure as configure_events
from runtime.observability.memory_figures import read_memory_figures
from runtime.observability.metrics import CONTENT_TYPE, Gauge, Metrics
from runtime.observability.redaction import Redaction
from runtime.observability.stream import EventStream, newest_id, read_events

__all__ = [
    "CONTENT_TYPE",
    "LEVEL_COLOURS",
    "Event",
    "EventFormat",
    "EventStream",
    "Gauge",
    "Metrics",
    "Redaction",
    "configure_events",
    "event_context",
    "format_event",
    "newest_id",
    "read_events",
    "read_memory_figures",
    "wrap_line",
]
