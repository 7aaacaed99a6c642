"""What stands in the way of a document's refresh, in words for people, and what an operator can do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal["window", "cut_off", "answer", "model", "full", "crowded"]
LASTING_FAILURES = 3
"""After so many failures in a row people are told. Fewer are mostly an outage."""
_PROBLEMS: Mapping[ProblemKind, tuple[str, str]] = {
    "window": (
        "the model's window is too small even for a part of it",
        "use a model with a larger window, or lower AGENT_RUNTIME_LLM_MAX_OUTPUT_TOKENS; if the model's window is not "
        "known, set AGENT_RUNTIME_LLM_CONTEXT_WINDOW_TOKENS",
    ),
    "cut_off": (
        "the model's text did not end in time",
        "raise AGENT_RUNTIME_LLM_MAX_OUTPUT_TOKENS, or use a model that writes less",
    ),
    "answer": ("the model's text cannot be used ({detail})", "use another model"),
    "model": (
        "the model did not answer ({detail})",
        "see the check named model of `./agent-runtime doctor`, and the events `model.failed`",
    ),
    "full": (
        "the lines that people wrote leave no room in it",
        "shorten them with `./agent-runtime context-doc put`, or raise AGENT_RUNTIME_CONTEXT_DOCUMENT_MAX_BYTES",
    ),
    "crowded": (
        "the lines that people wrote take {detail}",
        "shorten them with `./agent-runtime context-doc put`, or raise "
        "AGENT_RUNTIME_LLM_GROUNDING_MEMORY_SUMMARY_MAX_TOKENS; until then a prompt shows only a part of them",
    ),
}
"""By kind: what is the case, and what an operator can do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a document was not refreshed by the model, with the ``failures`` in a row; or, without failures (it is
    ``crowded``), why a prompt does not show all of it."""

    kind: ProblemKind
    detail: str = ""
    failures: int = 0

    @property
    def is_lasting(self) -> bool:
        """Whether it will not pass by itself, so that people must be told."""
        return self.kind in ("window", "full", "crowded") or self.failures >= LASTING_FAILURES

    @property
    def text(self) -> str:
        """What is the case, as a sentence without its full stop."""
        what = _PROBLEMS[self.kind][0].format(detail=self.detail)
        if not self.failures:
            return what[0].upper() + what[1:]
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        return f"The model could not refresh this summary {times}: {what}"

    @property
    def notice(self) -> str:
        """What is the case, and what an operator can do."""
        return f"{self.text}. To do: {self.advice}."

    @property
    def advice(self) -> str:
        """What an operator can do."""
        return _PROBLEMS[self.kind][1]
