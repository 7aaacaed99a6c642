"""The chat page."""

from connectors.web.backend import SESSION_SECONDS, Conversation, File, Mark, PastMessage, Person, Session
from connectors.web.connector import WebConnector
from connectors.web.convert import NAME, RequestError, conversation_in, item_id, place

__all__ = [
    "NAME",
    "SESSION_SECONDS",
    "Conversation",
    "File",
    "Mark",
    "PastMessage",
    "Person",
    "RequestError",
    "Session",
    "WebConnector",
    "conversation_in",
    "item_id",
    "place",
]
