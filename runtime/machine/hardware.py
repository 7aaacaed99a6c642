"""Reads the power supply, the free memory and the graphics cards of the machine.

Power and memory come from the kernel's files, so on Linux only. The graphics cards come from NVIDIA's management
library: this is the only importer of pynvml (package nvidia-ml-py). Its calls may block as long as the driver likes, so
only `runtime.machine.sampling` makes them, in a thread that nobody waits for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grounding.prompt_input import Device, EnvironmentInput

MIB = 2**20
LOW_BATTERY_PERCENT = 20
NO_LIMIT_BYTES = 2**60
"""Control groups of version 1 write a number near 2⁶³ if there is no limit."""
MOST_DIGITS = 20
"""The kernel writes no longer numbers."""
Power = Literal["", "mains", "battery"]


@dataclass(frozen=True, slots=True)
class Supply:
    """The source of the power ("" if unknown), and whether power should be saved."""

    power: Power = ""
    low: bool = False


@dataclass(frozen=True, slots=True)
class MachineState:
    """The machine at the last look. ``free_memory_mib``: the working memory that is free; None if unknown."""

    environment: EnvironmentInput
    free_memory_mib: int | None = None


def supply(root: Path = Path("/")) -> Supply:
    """Read the power supply from the files under *root*. Raises nothing.

    Source: Documentation/ABI/testing/sysfs-class-power and sysfs-platform_profile of the kernel.
    """
    mains, batteries = [], []
    for folder in _folders(root / "sys/class/power_supply"):
        kind = _text(folder / "type")
        if kind == "Battery" and _text(folder / "scope") != "Device":  # not the battery of a mouse
            batteries.append((_text(folder / "status"), _number(folder / "capacity")))
        elif kind in ("Mains", "USB", "Wireless") and (online := _number(folder / "online")) is not None:
            mains.append(online > 0)
    saving = _text(root / "sys/firmware/acpi/platform_profile") == "low-power"
    discharging = any(status == "Discharging" for status, _ in batteries)
    if any(mains) or (batteries and not discharging):
        return Supply("mains", saving)
    if not batteries:
        return Supply("", saving)
    charges = [percent for _, percent in batteries if percent is not None]
    return Supply("battery", saving or (bool(charges) and max(charges) <= LOW_BATTERY_PERCENT))


def free_memory_mib(root: Path = Path("/")) -> int | None:
    """Return the free working memory of the machine, or of the container if that is less; None if unknown.

    Raises nothing.
    """
    found = [free for free in (_of_machine(root), *_of_groups(root)) if free is not None]
    return min(found) // MIB if found else None


def _of_machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            fields = line.split()
            free = _as_number(fields[1]) if len(fields) > 1 else None
            return None if free is None else free * 1024
    return None


def _of_groups(root: Path) -> list[int | None]:
    """Return what the control groups of versions 2 and 1 leave. Their cache of unused files counts as free."""
    group = root / "sys/fs/cgroup"
    return [
        _left(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file"),
        _left(
            group / "memory/memory.limit_in_bytes",
            group / "memory/memory.usage_in_bytes",
            group / "memory/memory.stat",
            "total_inactive_file",
        ),
    ]


def _left(limit: Path, used: Path, stat: Path, reclaimable: str) -> int | None:
    most, taken = _number(limit), _number(used)
    if most is None or taken is None or most >= NO_LIMIT_BYTES:
        return None
    fields = dict(line.partition(" ")[::2] for line in _text(stat).splitlines())
    return max(0, most - taken + (_as_number(fields.get(reclaimable, "")) or 0))


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    return _as_number(_text(path))


def _as_number(text: str) -> int | None:
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdecimal() else None


NO_GPU = "none"
DRIVER_BROKEN = "the driver does not work"
THROTTLING = (
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
)
"""Reasons for lower clocks that mean trouble: heat or a weak power supply, but not a power cap or an idle card."""
_NONE_HERE = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards that answered, and a note about those that did not."""

    devices: tuple[Device, ...] = ()
    note: str = ""


class Gpus:
    """Reads the machine's cards. *nvml*: the module pynvml, or a substitute."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._is_open = False

    def read(self) -> Cards:
        """Return the cards now. Blocks; raises nothing."""
        try:
            nvml = self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError:
            return Cards(note=NO_GPU)
        try:
            return self._read(nvml)
        except nvml.NVMLError as error:
            self._close(nvml)
            return Cards(note=NO_GPU if type(error).__name__ in _NONE_HERE else DRIVER_BROKEN)
        except Exception:  # noqa: BLE001 - a broken driver raises all kinds of errors from ctypes
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
                named = {"name": f"{index} {device.name}"} if count > 1 else {}  # tells two of a kind apart
                devices.append(device.model_copy(update=named))
            except nvml.NVMLError:  # it fell off the bus, or access is denied
                lost.append(str(index))
        if not devices and not lost:
            return Cards(note=NO_GPU)
        note = f"{', '.join(lost)} of {count} {'does' if len(lost) == 1 else 'do'} not answer" if lost else ""
        if lost:
            self._close(nvml)  # a card that comes back is found only after a new start
        return Cards(tuple(devices), note)

    def _close(self, nvml: Any) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            nvml.nvmlShutdown()
        except Exception:  # noqa: BLE001 - nothing can be done about it
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
    except nvml.NVMLError:  # many cards do not support it
        return False
    return any(reasons & getattr(nvml, name, 0) for name in THROTTLING)
