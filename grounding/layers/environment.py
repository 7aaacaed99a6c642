"""The block about the machine that the runtime is on and the permissions of the turn."""

from __future__ import annotations

from collections.abc import Iterator

from grounding.run_context import Device, EnvironmentInput, SigilInput
from grounding.sections import Section, one_line

HEAD, FOOT = "<environment>", "</environment>"
LOST = ("degraded", "failed", "stopped")
"""States of a broken connection. One that is only being established is not lost."""


def section(environment: EnvironmentInput | None, sigil: SigilInput | None) -> Section:
    """Return a line for each known thing; the most important are kept longest."""
    lines = tuple(_lines(environment, sigil))
    return Section(HEAD, lines, FOOT, cut="never")


def _lines(environment: EnvironmentInput | None, sigil: SigilInput | None) -> Iterator[str]:
    if sigil is not None:
        scopes = ", ".join(sorted(one_line(scope) for scope in sigil.scopes)) or "none"
        yield f"Permissions ({one_line(sigil.name)}): {scopes}."
    if environment is None:
        return
    if gone := lost(environment):
        yield f"Not reached as usual: {', '.join(f'{one_line(name)} ({one_line(state)})' for name, state in gone)}."
    elif environment.links:
        yield f"Reached: {', '.join(one_line(link.name) for link in environment.links)}."
    if environment.low_power or environment.power == "battery":
        yield f"Power: {environment.power or 'unknown'}{', low-power mode' if environment.low_power else ''}."
    yield from (_device(one) for one in environment.devices)
    if environment.note:
        yield f"GPU: {one_line(environment.note)}."


def lost(environment: EnvironmentInput) -> tuple[tuple[str, str], ...]:
    """Return name and state of the connections that are lost."""
    return tuple(sorted((link.name, link.state) for link in environment.links if link.state in LOST))


def _device(device: Device) -> str:
    slowed = ", slowed down" if device.throttled else ""
    return (
        f"GPU {one_line(device.name)}: {device.used_mib} of {device.total_mib} MiB used, "
        f"{device.free_mib} free{slowed}."
    )
