"""What may be fetched and from where, before anything is: apart from the fetcher, whose library every start would
have to import."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from connectors.connector import AttachmentUnavailable
from runtime.media import as_words, in_words, is_among, sniff

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_TUNNELS = tuple(map(ipaddress.ip_network, ("2001::/23", "2002::/16", "3fff::/20")))
"""Teredo and other special ranges, 6to4, documentation: they may stand for any IPv4 address, or for none."""
_RELAYS = ipaddress.ip_network("192.88.99.0/24")


def is_public(address: Address) -> bool:
    """Whether *address* is one of the public internet, and cannot stand for one that is not.

    IPv6 is taken only from the global unicast range without its tunnels, so that IPv4-mapped, IPv4-compatible,
    NAT64, 6to4, Teredo, link-local, unique local and multicast addresses all fall out (IANA's special-purpose
    registries, RFC 6890 and its updates).
    """
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and address not in _RELAYS
    return address.is_global and address in _GLOBAL_UNICAST and not any(address in tunnel for tunnel in _TUNNELS)


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of *host*, by the system. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class Network:
    """How names are resolved, which addresses and port may be reached, and how TLS is checked (None: by the
    system's authorities)."""

    resolve: Resolve = system_resolve
    permits: Callable[[Address], bool] = is_public
    port: int = 443
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file's bytes and its media type: the sniffed one, or the declared one where nothing was recognised."""

    data: bytes
    media_type: str


def check_type(data: bytes, declared: str, allowed: frozenset[str]) -> str:
    """The media type of *data*, by its bytes, or as it was *declared* where they say nothing. Raises
    `AttachmentUnavailable` where it is none of those *allowed*."""
    kind = sniff(data)
    if kind and not is_among(kind, allowed):
        raise AttachmentUnavailable(f"it is {as_words(kind)}, which I cannot read")
    return kind or declared


def too_large(size_bytes: int, max_bytes: int) -> AttachmentUnavailable:
    """What is said of a file of a known size beyond the limit."""
    return AttachmentUnavailable(f"too large ({in_words(size_bytes)}; the limit is {in_words(max_bytes)})")
