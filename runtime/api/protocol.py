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
_OFFER = re.compile(rb"(^|\n)upgrade[ \t]*:", re.IGNORECASE)


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that sends more than `HEAD_MAX_BYTES` and no body: a first line or headers that do not end, or
    trailers. All of it is held before anybody knows who asks. Bodies are bounded by who reads them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held_bytes = 0
        self._is_in_head = True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held_bytes += len(data)
        if self._is_in_head:
            data = without_offer(data)
        super().data_received(data)
        if self._held_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
            self.send_400_response(TOO_LONG)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: nobody has to take such an offer up."""

    def on_headers_complete(self) -> None:
        """Called by the parser, as are the others."""
        self._held_bytes = 0
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        self._is_in_head = True
        super().on_message_complete()


def without_offer(data: bytes) -> bytes:
    """*data*, a piece of a request that begins in its headers, without its offer to go on by another protocol, which
    ``curl --http2`` and the HTTP client of Java make with every request. It is not taken up here, and httptools holds
    what follows such headers for that protocol: the body would be lost."""
    head, end, body = data.partition(_HEAD_ENDS)
    if b"pgrade" not in head and b"PGRADE" not in head:
        return data
    return _OFFER.sub(rb"\1x-offer:", head) + end + body
