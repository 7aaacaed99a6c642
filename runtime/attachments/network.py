"""Which network addresses a file may be fetched from, and what was fetched.

Imports no HTTP library, because every start imports this.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from connectors.connector import AttachmentUnavailable
from runtime.conversion import as_words, is_among, sniff


def size_in_words(size_bytes: float) -> str:
    """Return a size for people: ``12 MB``, ``900 kB``, ``37 bytes``."""
    if size_bytes >= 999_500:
        megabytes = size_bytes / 1_000_000
        return f"{megabytes:.0f} MB" if megabytes >= 9.95 else f"{megabytes:.1f}".removesuffix(".0") + " MB"
    return f"{size_bytes / 1000:.0f} kB" if size_bytes >= 1000 else f"{size_bytes:.0f} bytes"


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_TUNNELS = tuple(map(ipaddress.ip_network, ("2001::/23", "2002::/16", "3fff::/20")))
"""Teredo and other special ranges, 6to4, documentation: they may contain any IPv4 address, or none."""
_RELAYS = ipaddress.ip_network("192.88.99.0/24")


def is_public(address: Address) -> bool:
    """Return whether *address* is on the public internet, and does not contain another one that is not.

    Of IPv6 only the global unicast range without its tunnels is public. This excludes IPv4-mapped, IPv4-compatible,
    NAT64, 6to4, Teredo, link-local, unique local and multicast addresses (IANA's special-purpose registries, RFC 6890
    and its updates).
    """
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and address not in _RELAYS
    return address.is_global and address in _GLOBAL_UNICAST and not any(address in tunnel for tunnel in _TUNNELS)


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Resolve *host* by the system. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class Network:
    """How names are resolved, which addresses and port are allowed, and how TLS is checked (None: by the system's
    authorities)."""

    resolve: Resolve = system_resolve
    permits: Callable[[Address], bool] = is_public
    port: int = 443
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file's bytes and its media type: the recognised one, or the declared one if the bytes are unknown."""

    data: bytes
    media_type: str


def check_type(data: bytes, declared: str, allowed: frozenset[str]) -> str:
    """Return the media type of *data* by its bytes, or the *declared* one if they are unknown.

    Raises `AttachmentUnavailable` if it is not *allowed*.
    """
    kind = sniff(data)
    if kind and not is_among(kind, allowed):
        raise AttachmentUnavailable(f"it is {as_words(kind)}, which I cannot read")
    return kind or declared


def too_large(size_bytes: int, max_bytes: int) -> AttachmentUnavailable:
    """Return the error for a file of a known size beyond the limit."""
    return AttachmentUnavailable(f"too large ({size_in_words(size_bytes)}; the limit is {size_in_words(max_bytes)})")
