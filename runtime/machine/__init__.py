"""The machine: `MachineMonitor` watches its hardware, memory and power, and the memory of a local model."""

from runtime.machine.hardware import MIB, Gpus, MachineState
from runtime.machine.model_memory import ModelMemories
from runtime.machine.sampling import MachineMonitor

__all__ = [
    "MIB",
    "Gpus",
    "MachineMonitor",
    "MachineState",
    "ModelMemories",
]
