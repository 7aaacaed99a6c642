"""The machine: `Surroundings` watches its hardware, memory and power, and the memory of a local model."""

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
