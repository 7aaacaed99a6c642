"""Chat commands: `build_commands` builds all, `spoken` finds one in a message, `CommandTurns` answers it."""

from runtime.commands.registry import Commands, CommandTurns, Spoken, code, plain, spoken
from runtime.commands.wiring import NAMES, build_commands

__all__ = [
    "NAMES",
    "CommandTurns",
    "Commands",
    "Spoken",
    "build_commands",
    "code",
    "plain",
    "spoken",
]
