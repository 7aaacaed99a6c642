"""Events without text and secrets (`events.configure`, `about`), their stream in Redis, and Prometheus `Metrics`."""

from runtime.observability.events import COLOURS, about, folded, readable
from runtime.observability.metrics import CONTENT_TYPE, Gauge, Metrics
from runtime.observability.redaction import Redaction
from runtime.observability.stream import EventStream, newest, tail

__all__ = [
    "COLOURS",
    "CONTENT_TYPE",
    "EventStream",
    "Gauge",
    "Metrics",
    "Redaction",
    "about",
    "folded",
    "newest",
    "readable",
    "tail",
]
