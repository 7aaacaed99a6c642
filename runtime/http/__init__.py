"""The HTTP interface: `create_app` builds the application, `serving` serves it, `ChatPage` answers the chat page."""

from runtime.http.app import create_app, create_health_app
from runtime.http.auth import USER_HEADER, Security
from runtime.http.chat_page import ChatPage, WebSessions
from runtime.http.server import listen_tcp, listen_unix, serving, unlink_if_ours

__all__ = [
    "USER_HEADER",
    "ChatPage",
    "Security",
    "WebSessions",
    "create_app",
    "create_health_app",
    "listen_tcp",
    "listen_unix",
    "serving",
    "unlink_if_ours",
]
