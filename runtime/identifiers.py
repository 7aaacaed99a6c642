"""Ids of turns: short, unique, and sortable by the time at which they were made."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Of ten bits each."""
_TURN_ID = re.compile(f"t[{_ALPHABET}]{{20}}")


def new_turn_id() -> str:
    """``t`` and 20 letters and digits: 50 bits of milliseconds, 50 bits of chance."""
    number = (time.time_ns() // 1_000_000) << 50 | secrets.randbits(50)
    return "t" + "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])


def is_turn_id(text: str) -> bool:
    """Whether *text* is of the form that `new_turn_id` makes."""
    return _TURN_ID.fullmatch(text) is not None
