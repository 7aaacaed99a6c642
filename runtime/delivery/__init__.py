"""Delivers replies and notices to the platforms, and shows answers while they are written.

A reply goes out in four steps. `Outbox.put` stores it. The `Deliverer` of a process with the right connector hears of
it. `Delivery` sends it part by part, and stores each part's state around the call. Before each call the
platform's `RateLimiter` waits for the platform's rates. On a 429 the limiter stops all calls to that chat, or to the
platform, for as long as the platform asks; then the part is sent again.

`Previews` runs previews and typing signs from what workers report (`report_progress`).
"""

from runtime.delivery.deliverer import Deliverer
from runtime.delivery.outbox import Outbox, address_of
from runtime.delivery.preview import Previews
from runtime.delivery.progress import PreviewMode, ProgressReporter, notify_unanswered, report_progress
from runtime.delivery.rate_limiter import RateLimiters
from runtime.delivery.sender import Delivery

__all__ = [
    "Deliverer",
    "Delivery",
    "Outbox",
    "PreviewMode",
    "Previews",
    "ProgressReporter",
    "RateLimiters",
    "address_of",
    "notify_unanswered",
    "report_progress",
]
