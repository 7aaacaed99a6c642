"""What the machine says of its power and its working memory: files of the kernel. Linux only; elsewhere nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grounding.run_context import EnvironmentInput

MIB = 2**20
LOW_BATTERY_PERCENT = 20
NO_LIMIT_BYTES = 2**60
"""Control groups of version 1 write a number near 2⁶³ where there is no limit."""
MOST_DIGITS = 20
"""Longer ones are none of the kernel's."""
Power = Literal["", "mains", "battery"]


@dataclass(frozen=True, slots=True)
class Supply:
    """Where the power comes from ("" where the machine does not tell), and whether it should be saved."""

    power: Power = ""
    low: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The machine as it was seen last. ``free_memory_mib`` is working memory that may still be taken; None where the
    machine does not say."""

    environment: EnvironmentInput
    free_memory_mib: int | None = None


def supply(root: Path = Path("/")) -> Supply:
    """As the files under *root* say: documented in Documentation/ABI/testing/sysfs-class-power and
    sysfs-platform_profile of the kernel. Raises nothing."""
    mains, batteries = [], []
    for one in _folders(root / "sys/class/power_supply"):
        kind = _text(one / "type")
        if kind == "Battery" and _text(one / "scope") != "Device":  # a mouse has one, too
            batteries.append((_text(one / "status"), _number(one / "capacity")))
        elif kind in ("Mains", "USB", "Wireless") and (online := _number(one / "online")) is not None:
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
    """Working memory that may still be taken: the machine's, or what the control group of a container leaves, whichever
    is less. None where nothing says. Raises nothing."""
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
    """What each version's control group leaves. What it counts for files that are not in use can be had back."""
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
