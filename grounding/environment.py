"""When the machine has changed so much that the model is told anew. Pure.

What is told of the machine stands at the beginning of a prompt, so it stays as it was when the session began: free
memory that goes up and down is no news. It is told anew where something crosses a line that may change what is done.
"""

from __future__ import annotations

from grounding.layers.environment import lost
from grounding.run_context import Device, EnvironmentInput

BACK_ABOVE = 1.25
"""Memory that was short is so no more above so many times the buffer: at the line itself it would change to and fro."""


def frozen(told: EnvironmentInput | None, now: EnvironmentInput | None, buffer_mib: int) -> EnvironmentInput | None:
    """What the model is told: as it was *told* before in the session, unless it has changed so much *now*."""
    if told is None or now is None:
        return told or now
    return now if has_crossed(told, now, buffer_mib) else told


def has_crossed(told: EnvironmentInput, now: EnvironmentInput, buffer_mib: int) -> bool:
    """Whether a card came or went, is slowed down or is not any more, whether its free memory fell below *buffer_mib*
    or is back, whether something is reached no more or again, or whether power is saved."""
    before = {device.name: device for device in told.devices}
    if before.keys() != {device.name for device in now.devices} or told.note != now.note:
        return True
    if any(_state(before[one.name], one, buffer_mib) for one in now.devices):
        return True
    return lost(told) != lost(now) or _saving(told) != _saving(now)


def _state(before: Device, now: Device, buffer_mib: int) -> bool:
    if before.throttled != now.throttled:
        return True
    if before.free_mib < buffer_mib:
        return now.free_mib >= buffer_mib * BACK_ABOVE
    return now.free_mib < buffer_mib


def _saving(environment: EnvironmentInput) -> tuple[bool, bool]:
    return environment.low_power, environment.power == "battery"
