"""The door: opens the platforms, and accepts what people say there.

A connector passes each message to `Gateway.accept`, which authorises it, drops duplicates and stores it in the mailbox
of its conversation; only then does the connector acknowledge it to the platform. `open_platforms` makes the connectors;
`remove_workspace` deletes a tenant; `Audiences` upgrades the data of earlier versions.
"""

from runtime.ingress.gateway import Gateway
from runtime.ingress.platforms import (
    PLATFORMS,
    examine_platform,
    examine_platforms,
    home_place,
    open_platforms,
    platforms_on,
    reply_hint_of,
)
from runtime.ingress.removal import remove_workspace
from runtime.ingress.upgrade import Audiences

__all__ = [
    "PLATFORMS",
    "Audiences",
    "Gateway",
    "examine_platform",
    "examine_platforms",
    "home_place",
    "open_platforms",
    "platforms_on",
    "remove_workspace",
    "reply_hint_of",
]
