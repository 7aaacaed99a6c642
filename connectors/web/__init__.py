"""The chat page."""

from connectors.http_requests import RequestError
from connectors.web.backend import SESSION_SECONDS, ChatPerson, File, ListedConversation, Mark, PastMessage, Session
from connectors.web.connector import WebConnector
from connectors.web.convert import NAME, conversation_in, item_id, place

__all__ = [
    "NAME",
    "SESSION_SECONDS",
    "ChatPerson",
    "File",
    "ListedConversation",
    "Mark",
    "PastMessage",
    "RequestError",
    "Session",
    "WebConnector",
    "conversation_in",
    "item_id",
    "place",
]
