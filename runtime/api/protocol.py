"""How requests are read from a connection: by httptools, which has no bound of its own for what comes before a body."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_MAX_BYTES = 65_536
"""Of a request's first line and headers, as much as uvicorn's reader in Python takes. What came with the last piece
that was read, at most 256 KB, may go beyond."""
_UNKNOWN = -1
"""How much of a body is to come, where it comes in chunks."""
TOO_LONG = f"The request has more than {HEAD_MAX_BYTES} bytes before its body."
_HEAD_ENDS = b"\r\n\r\n"
_OFFER, _OFFER_LINE = b"upgrade", re.compile(rb"\nupgrade[ \t]*:", re.IGNORECASE)


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that sends more than `HEAD_MAX_BYTES` and no body: a first line or headers that do not end, or
    trailers. All of it is held before anybody knows who asks. Bodies are bounded by who reads them.

    What comes at once is given to the parser request by request, so that each head is looked at (`Head`), also of those
    that are sent before the one in front of them was answered."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held_bytes = 0
        self._head: Head | None = Head()
        self._body_left = 0
        self._passed = b""
        """The last of a body in chunks: where the next piece stands."""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        while data and not self.transport.is_closing():
            if self._head is not None:
                piece, rest = self._head.without_offer(data)
            else:
                piece, rest = self._of_body(data)
            self._held_bytes += len(data) - len(rest)
            data = rest
            super().data_received(piece)
            if self._held_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
                self.send_400_response(TOO_LONG)

    def _of_body(self, data: bytes) -> tuple[bytes, bytes]:
        """What of *data* may belong to the body that is being read, and what follows. One in chunks ends with an empty
        line, and may hold some."""
        if self._body_left != _UNKNOWN:
            piece, rest = data[: self._body_left], data[self._body_left :]
            self._body_left -= len(piece)
            return piece, rest
        found = (self._passed + data).find(_HEAD_ENDS)
        end = len(data) if found < 0 else found + len(_HEAD_ENDS) - len(self._passed)
        self._passed = (self._passed + data[:end])[1 - len(_HEAD_ENDS) :] if found < 0 else b""
        return data[:end], data[end:]

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: nobody has to take such an offer up."""

    def on_headers_complete(self) -> None:
        """Called by the parser, as are the others."""
        self._held_bytes = 0
        self._head = None
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        # Nothing else passes the parser; a request that tells no length has no body, unless it comes in chunks.
        self._body_left = int(length) if length.isdigit() else _UNKNOWN
        self._passed = b""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["method"] != "HEAD":  # there the head is all that is written
            self.cycle.transport = cast("asyncio.Transport", Answer(self.transport))

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        self._head = Head()
        super().on_message_complete()


class Answer:
    """The transport of one answer: what is written first, its head, goes out with what is written right after it, which
    with most answers is all. Where nothing is, it goes out by itself when the event loop comes around."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._flushed = False

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`, as the others."""
        if self._flushed:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._flush(data)

    def _flush(self, more: bytes = b"") -> None:
        if not self._flushed and self._head is not None:
            self._flushed = True
            self._transport.write(self._head + more)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()


class Head:
    """What comes of one request until its body, in pieces that may end anywhere, on its way to the parser."""

    def __init__(self) -> None:
        self._passed = b""
        """The last of what went on: where the next piece stands."""
        self._kept = b""
        """What may be the beginning of an offer."""

    def without_offer(self, data: bytes) -> tuple[bytes, bytes]:
        """What of *data*, the next piece, belongs to the head, without an offer to go on by another protocol, which
        ``curl --http2`` and the HTTP client of Java make with every request; and what follows the head, as it is. The
        offer is not taken up here, and httptools holds what follows such headers for that protocol: the body would be
        lost."""
        head, end, body = (self._passed + self._kept + data).partition(_HEAD_ENDS)
        self._kept = b"" if end else _begun(head)
        head = head[: len(head) - len(self._kept)]
        if _OFFER in head.lower():
            head = _OFFER_LINE.sub(b"\nx-offer:", head)
        whole, before = head + end, len(self._passed)
        self._passed = whole[1 - len(_HEAD_ENDS) :]
        return whole[before:], body


def _begun(head: bytes) -> bytes:
    """The last line of *head*, which has not ended, where it may become an offer."""
    _, ended, line = head.rpartition(b"\n")
    name = line.rstrip(b" \t").lower()
    return line if ended and name and _OFFER.startswith(name) else b""
