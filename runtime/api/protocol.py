"""How requests are read from a connection: by httptools, which has no bound of its own for what comes before a body."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_MAX_BYTES = 65_536
"""Of a request's first line and headers, as much as uvicorn's reader in Python takes. What came with the last piece
that was read, at most 256 KB, may go beyond."""
TOO_LONG = f"The request has more than {HEAD_MAX_BYTES} bytes before its body."


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that sends more than `HEAD_MAX_BYTES` and no body: a first line or headers that do not end, or
    trailers. All of it is held before anybody knows who asks. Bodies are bounded by who reads them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held_bytes = 0

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
            self.send_400_response(TOO_LONG)

    def on_headers_complete(self) -> None:
        """Called by the parser, as are the others."""
        self._held_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        super().on_message_complete()
