"""One process: `open_runtime` wires and runs all its parts, `serve.serve` serves them until it is told to stop."""

from runtime.process.bootstrap import ALL_PARTS, Part, Runtime, Timings, open_runtime
from runtime.process.installed import check_installed

__all__ = [
    "ALL_PARTS",
    "Part",
    "Runtime",
    "Timings",
    "check_installed",
    "open_runtime",
]
