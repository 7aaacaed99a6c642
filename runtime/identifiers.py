"""Ids of turns: short, unique, and sortable by the time at which they were made."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_turn_id() -> str:
    """``t`` and 20 letters and digits: 50 bits of milliseconds, 50 bits of chance."""
    number = (time.time_ns() // 1_000_000) << 50 | secrets.randbits(50)
    return "t" + "".join(_ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))
