"""Chat commands: what people tell the bot itself to do."""

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
