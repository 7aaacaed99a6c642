"""Chat commands: `build_commands` builds all, `spoken` finds one in a message, `CommandTurns` answers it."""

from runtime.commands.registry import Commands, CommandTurns, ParsedCommand, code, escape_markdown, parse_command
from runtime.commands.wiring import NAMES, build_commands

__all__ = [
    "NAMES",
    "CommandTurns",
    "Commands",
    "ParsedCommand",
    "build_commands",
    "code",
    "escape_markdown",
    "parse_command",
]
