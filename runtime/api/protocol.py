"""How requests are read from a connection: by httptools, which has no bound of its own for what comes before a body."""

from __future__ import annotations

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_MAX_BYTES = 65_536
"""Of a request's first line and headers, as much as uvicorn's reader in Python takes. What came with the last piece
that was read, at most 256 KB, may go beyond."""
TOO_LONG = f"The request has more than {HEAD_MAX_BYTES} bytes before its body."
_HEAD_ENDS = b"\r\n\r\n"
_OFFER, _OFFER_LINE = b"upgrade", re.compile(rb"\nupgrade[ \t]*:", re.IGNORECASE)


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that sends more than `HEAD_MAX_BYTES` and no body: a first line or headers that do not end, or
    trailers. All of it is held before anybody knows who asks. Bodies are bounded by who reads them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held_bytes = 0
        self._head: Head | None = Head()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held_bytes += len(data)
        if self._head is not None:
            data = self._head.without_offer(data)
        super().data_received(data)
        if self._held_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
            self.send_400_response(TOO_LONG)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: nobody has to take such an offer up."""

    def on_headers_complete(self) -> None:
        """Called by the parser, as are the others."""
        self._held_bytes = 0
        self._head = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        self._head = Head()
        super().on_message_complete()


class Head:
    """What comes of one request until its body, in pieces that may end anywhere, on its way to the parser."""

    def __init__(self) -> None:
        self._passed = b""
        """The last of what went on: where the next piece stands."""
        self._kept = b""
        """What may be the beginning of an offer."""

    def without_offer(self, data: bytes) -> bytes:
        """*data*, the next piece, without an offer to go on by another protocol, which ``curl --http2`` and the HTTP
        client of Java make with every request. It is not taken up here, and httptools holds what follows such headers
        for that protocol: the body would be lost. The body stays as it is."""
        head, end, body = (self._passed + self._kept + data).partition(_HEAD_ENDS)
        self._kept = b"" if end else _begun(head)
        head = head[: len(head) - len(self._kept)]
        if _OFFER in head.lower():
            head = _OFFER_LINE.sub(b"\nx-offer:", head)
        whole, before = head + end + body, len(self._passed)
        self._passed = whole[1 - len(_HEAD_ENDS) :]
        return whole[before:]


def _begun(head: bytes) -> bytes:
    """The last line of *head*, which has not ended, where it may become an offer."""
    _, ended, line = head.rpartition(b"\n")
    name = line.rstrip(b" \t").lower()
    return line if ended and name and _OFFER.startswith(name) else b""
