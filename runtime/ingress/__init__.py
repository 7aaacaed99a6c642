"""The door: the gateway that accepts messages from all platforms."""

from runtime.ingress.gateway import Gateway
from runtime.ingress.platforms import (
    examine_platform,
    examine_platforms,
    open_platforms,
    place_of,
    platforms_on,
    reply_hint_of,
)
from runtime.ingress.removal import Audiences, remove_workspace

__all__ = [
    "Audiences",
    "Gateway",
    "examine_platform",
    "examine_platforms",
    "open_platforms",
    "place_of",
    "platforms_on",
    "remove_workspace",
    "reply_hint_of",
]
