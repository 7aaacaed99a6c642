"""The process that converts one document: with limited memory and processor time, and unable to write a file.

Standard input: one JSON line ``{"kind", "pages", "characters", "seconds"}``, then the document's bytes. Standard
output: one JSON object, ``{"v": 1, "text", "note"}`` or ``{"v": 1, "refused"}``. Then it ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import resource
import sys
import warnings

from runtime.conversion.formats import Refused, convert

MEMORY_BYTES = 1_000_000_000
"""Address space; the interpreter and the largest library take a tenth of it."""
OPEN_FILES = 64


def limit(seconds: float) -> None:
    """Set the limits of this process, which it cannot raise again."""
    limits = (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    )
    for kind, most in limits:
        with contextlib.suppress(ValueError, OSError):  # not every system has each; the parent limits the time too
            resource.setrlimit(kind, (most, most))
    os.nice(5)  # answers matter more than conversions


def main() -> None:
    """Convert the document on standard input."""
    logging.disable(logging.CRITICAL)  # the libraries quote what they read
    warnings.simplefilter("ignore")
    order = json.loads(sys.stdin.buffer.readline())
    limit(order["seconds"])
    try:
        found = convert(sys.stdin.buffer.read(), order["kind"], order["pages"], order["characters"])
        answer = {"v": 1, "text": found.text, "note": found.note}
    except Refused as refused:
        answer = {"v": 1, "refused": str(refused)}
    except MemoryError:
        answer = {"v": 1, "refused": "reading it would take too much memory"}
    except RecursionError:
        answer = {"v": 1, "refused": "it is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - a library choked on a stranger's file; the parent logs the class
        answer = {"v": 1, "refused": "it is damaged, or not what its name says", "error": type(error).__name__}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # freeing the objects of a large document takes time


if __name__ == "__main__":
    main()
