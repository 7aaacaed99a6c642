"""The meaning of an error of a platform's SDK. Each platform has a table of its own, by the classes of its SDK."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from connectors.connector import SendFailed


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an error for a send, and for the connection.

    ``retryable`` and ``ambiguous`` are as in `SendFailed`. ``needs_person`` says what a person has to do before
    anything can work; empty if nothing.
    """

    retryable: bool
    ambiguous: bool = False
    needs_person: str = ""

    def send_failed(self, text: str, retry_after_seconds: float | None, *, everywhere: bool = False) -> SendFailed:
        """Return the error of a send. *text* is for people, without secrets."""
        return SendFailed(
            text,
            retryable=self.retryable,
            ambiguous=self.ambiguous,
            retry_after_seconds=retry_after_seconds,
            everywhere=everywhere,
        )


REFUSED = Meaning(retryable=False)
"""The request was read and not carried out."""
LATER = Meaning(retryable=True)
"""Nothing was carried out, but it may be later."""
UNKNOWN = Meaning(retryable=True, ambiguous=True)
"""There was no answer, or one that does not say whether the request was carried out."""


def find_meaning(error: Exception, meanings: Mapping[type[Exception], Meaning]) -> Meaning:
    """Return the entry for *error*, or for the nearest of its base classes. Raises `KeyError`."""
    for kind in type(error).__mro__:
        if kind in meanings:
            return meanings[kind]
    raise KeyError(type(error))


def origin(error: Exception) -> str:
    """Return where *error* was raised, as ``function:line``. Its text may quote a message, so it goes to no log."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}:{frame.lineno}"
