"""Reads graphics cards through NVIDIA's management library. The only importer of pynvml (package nvidia-ml-py).

Every call may block for as long as a driver likes: only a thread that nobody waits for makes them
(`runtime.environment.sampling`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from grounding.run_context import Device

MIB = 2**20
NO_GPU = "none"
DRIVER_BROKEN = "the driver does not work"
THROTTLING = (
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
)
"""Reasons for lower clocks that are trouble: heat, or a power supply that gives too little. A power cap or an idle card
is none."""
_NONE_HERE = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")


@dataclass(frozen=True, slots=True)
class Cards:
    """What was read: the cards that answered, and a word about what did not."""

    devices: tuple[Device, ...] = ()
    note: str = ""


class Gpus:
    """The machine's cards. *nvml* is the module pynvml, or what stands in for it."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._is_open = False

    def read(self) -> Cards:
        """What the cards say now. Blocks; raises nothing."""
        try:
            nvml = self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError:
            return Cards(note=NO_GPU)
        try:
            return self._read(nvml)
        except nvml.NVMLError as error:
            self._close(nvml)
            return Cards(note=NO_GPU if type(error).__name__ in _NONE_HERE else DRIVER_BROKEN)
        except Exception:  # noqa: BLE001 - a broken driver breaks ctypes in ways of its own; a turn goes on without it
            self._close(nvml)
            return Cards(note=DRIVER_BROKEN)

    def _read(self, nvml: Any) -> Cards:
        if not self._is_open:
            nvml.nvmlInit()
            self._is_open = True
        devices, lost = [], []
        count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                device = _device(nvml, index)
                named = {"name": f"{index} {device.name}"} if count > 1 else {}  # two of a kind are told apart
                devices.append(device.model_copy(update=named))
            except nvml.NVMLError:  # fallen off the bus, or not ours to look at
                lost.append(str(index))
        if not devices and not lost:
            return Cards(note=NO_GPU)
        note = f"{', '.join(lost)} of {count} {'does' if len(lost) == 1 else 'do'} not answer" if lost else ""
        if lost:
            self._close(nvml)  # a card that comes back is found by a new beginning only
        return Cards(tuple(devices), note)

    def _close(self, nvml: Any) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            nvml.nvmlShutdown()
        except Exception:  # noqa: BLE001 - it is left either way
            return


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Device(
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        total_mib=memory.total // MIB,
        used_mib=memory.used // MIB,
        free_mib=memory.free // MIB,
        throttled=_is_throttled(nvml, handle),
    )


def _is_throttled(nvml: Any, handle: Any) -> bool:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except nvml.NVMLError:  # many cards do not say
        return False
    return any(reasons & getattr(nvml, name, 0) for name in THROTTLING)
