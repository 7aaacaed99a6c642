"""Texts of a form, in settings."""

from __future__ import annotations

import re

from pydantic import AfterValidator


def matching(pattern: str, expected: str) -> AfterValidator:
    """A text that is *pattern* from its beginning to its end; *expected* is said where it is not."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)
