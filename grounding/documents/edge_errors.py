"""The embedded engine's errors, as ours: one table."""

from __future__ import annotations

from pathlib import Path

from grounding.documents.index import IndexUnavailable

ERRORS: tuple[tuple[str, bool, str], ...] = (
    ("WouldBlock", True, "is in use by another process: talk to the running `serve`, or set QDRANT_URL"),
    ("No space left", True, "has no space left on its disk"),
    ("Permission denied", False, "may not be read or written by this user"),
    ("Too many open files", True, "has no file left to open: let this user open more"),
    ("Cannot allocate memory", True, "has no memory left"),
    ("failed to load segment", True, "could not be opened"),
    ("Vector dimension error", False, "was made for vectors of another size: run `agent-runtime index --fresh`"),
    ("Not existing vector name", False, "was made by another version: run `agent-runtime index --fresh`"),
    ("Wrong input", False, "refused a request"),
    ("Bad request", False, "refused a request"),
    ("not initialized", True, "is closed"),
    ("Service runtime error", True, "failed"),
    ("", True, "failed"),
)
"""Part of the engine's message → may it succeed later, and what to say. The first match counts.

The engine raises plain ``Exception`` for everything, so that only its words tell errors apart.
"""


def unavailable(error: BaseException, place: Path) -> IndexUnavailable:
    """*error* of the engine as ours."""
    said = str(error)
    retryable, what = next((retryable, what) for part, retryable, what in ERRORS if part in said)
    return IndexUnavailable(f"the search index in {place} {what} ({said})", retryable=retryable)
