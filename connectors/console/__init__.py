"""The chat in a terminal."""

from connectors.console.connector import LEAVE, ConsoleConnector
from connectors.console.convert import neutralise
from connectors.console.terminal import Terminal, open_terminal

__all__ = [
    "LEAVE",
    "ConsoleConnector",
    "Terminal",
    "neutralise",
    "open_terminal",
]
