"""Events without text and secrets (`configure_events`, `about`), their stream in Redis, and Prometheus `Metrics`."""

from runtime.observability.events import COLOURS, Event, about, folded, readable
from runtime.observability.events import Format as EventFormat
from runtime.observability.events import configure as configure_events
from runtime.observability.metrics import CONTENT_TYPE, Gauge, Metrics
from runtime.observability.redaction import Redaction
from runtime.observability.stream import EventStream, newest, tail

__all__ = [
    "COLOURS",
    "CONTENT_TYPE",
    "Event",
    "EventFormat",
    "EventStream",
    "Gauge",
    "Metrics",
    "Redaction",
    "about",
    "configure_events",
    "folded",
    "newest",
    "readable",
    "tail",
]
