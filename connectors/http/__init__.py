"""Messages over HTTP."""

from connectors.http.connector import HttpConnector, wait_seconds

__all__ = [
    "HttpConnector",
    "wait_seconds",
]
