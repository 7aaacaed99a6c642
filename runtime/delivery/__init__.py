"""Delivery: the outbox, sending, previews, typing indicators and rate limits."""

from runtime.delivery.deliverer import Deliverer
from runtime.delivery.outbox import Outbox, PartStates, address_of
from runtime.delivery.preview import Shows, Telling, Watched, tell_none_comes, telling
from runtime.delivery.rate_limiter import RateLimiters
from runtime.delivery.sender import Delivery

__all__ = [
    "Deliverer",
    "Delivery",
    "Outbox",
    "PartStates",
    "RateLimiters",
    "Shows",
    "Telling",
    "Watched",
    "address_of",
    "tell_none_comes",
    "telling",
]
