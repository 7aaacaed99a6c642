"""The process: it opens and wires everything, and serves."""

from runtime.process.bootstrap import ALL_PARTS, Kept, Part, Runtime, open_runtime, wire_kept

__all__ = [
    "ALL_PARTS",
    "Kept",
    "Part",
    "Runtime",
    "open_runtime",
    "wire_kept",
]
