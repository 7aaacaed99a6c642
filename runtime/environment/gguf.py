"""Reads what a GGUF file says of its model. Only the header: of 100 MB of weights it reads none.

The format is described in docs/gguf.md of ggml-org/ggml. The package ``gguf`` reads it, too, but needs numpy and maps
the whole file; this needs 60 lines.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 10_000
MOST_STRING_BYTES = 16 * 2**20
MOST_ITEMS = 4_000_000
"""Larger counts are those of a broken file: no vocabulary has so many words."""
KEPT_ITEMS = 4096
"""Longer lists (vocabularies, scores) are passed over; a number for each layer is kept."""
_NUMBERS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _LIST = 8, 9


class NotGguf(Exception):
    """The file is none, or a broken one, or of a version that is not read here."""


def read_header(path: Path, kept_items: int = KEPT_ITEMS) -> dict[str, Any]:
    """Key to value: numbers, texts and lists of at most *kept_items*. Blocks: call it in a thread (50 ms for 49,000
    words).

    Raises `NotGguf` and OSError.
    """
    with path.open("rb") as file:
        if _exactly(file, 4) != MAGIC:
            raise NotGguf(f"{path.name} is no GGUF file")
        version, _, entries = struct.unpack("<IQQ", _exactly(file, 20))
        if version not in VERSIONS or entries > MOST_ENTRIES:
            raise NotGguf(f"{path.name} is of a version that is not read here ({version})")
        return dict(_entry(file, kept_items) for _ in range(entries))


def _entry(file: BinaryIO, kept_items: int) -> tuple[str, Any]:
    key = _string(file)
    (kind,) = struct.unpack("<I", _exactly(file, 4))
    return key, _value(file, kind, kept_items)


def _value(file: BinaryIO, kind: int, kept_items: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _LIST:
        return _list(file, kept_items)
    form = _NUMBERS.get(kind)
    if form is None:
        raise NotGguf(f"a value of the unknown type {kind}")
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))[0]


def _list(file: BinaryIO, kept_items: int) -> list[Any] | None:
    """The list, or None where it is too long to be of interest: then it is passed over."""
    kind, count = struct.unpack("<IQ", _exactly(file, 12))
    if count > MOST_ITEMS or kind == _LIST:
        raise NotGguf(f"a list of {count} items of type {kind}")
    if count <= kept_items:
        return [_value(file, kind, kept_items) for _ in range(count)]
    if kind in _NUMBERS:
        file.seek(count * struct.calcsize(_NUMBERS[kind]), 1)
    else:
        for _ in range(count):
            _value(file, kind, kept_items)
    return None


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    if length > MOST_STRING_BYTES:
        raise NotGguf(f"a text of {length} bytes")
    return _exactly(file, length).decode("utf-8", "replace")


def _exactly(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise NotGguf("the file ends in its header")
    return found
