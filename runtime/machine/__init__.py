"""The machine: hardware, its memory, and what a local model takes of it."""

from runtime.machine.hardware import MIB, Gpus, Seen
from runtime.machine.model_memory import ModelMemories
from runtime.machine.sampling import Surroundings

__all__ = [
    "MIB",
    "Gpus",
    "ModelMemories",
    "Seen",
    "Surroundings",
]
