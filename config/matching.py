"""A pydantic validator for settings that must match a regular expression."""

from __future__ import annotations

import re

from pydantic import AfterValidator


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return a validator for texts that match all of *pattern*.

    The error for any other text is "expected " followed by *expected*.
    """

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)
