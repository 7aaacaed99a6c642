"""Reads the tensors of an ONNX file, and writes a graph as onnxruntime loads it: the little needed of both. Pure.

ONNX files are messages of Protocol Buffers (https://protobuf.dev/programming-guides/encoding/); the numbers of the
fields are those of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Part = bytes | memoryview
Message = list[Part]
"""A message in parts, so that tensors of megabytes are copied once."""

FLOAT32, INT64 = 1, 7
_TYPES: dict[int, type[np.generic]] = {FLOAT32: np.float32, 2: np.uint8, 3: np.int8, INT64: np.int64, 9: np.bool_}
_NUMBERS = {np.dtype(kind): number for number, kind in _TYPES.items()}
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
IR_VERSION = 10
OPSET = 17
MICROSOFT = "com.microsoft"
"""The domain of the operators that onnxruntime has beside those of ONNX."""


class BadOnnxFile(ValueError):
    """Bytes that are no ONNX file as expected."""


def tensors(file: bytes) -> dict[str, Array]:
    """The constants of the graph in *file* by their names, as views of it. Raises `BadOnnxFile`."""
    try:
        graph = next(value for field, value in _fields(memoryview(file)) if field == 7)
        return dict(_tensor(value) for field, value in _fields(graph) if field == 5)
    except (IndexError, KeyError, StopIteration, TypeError, UnicodeDecodeError, ValueError) as error:
        raise BadOnnxFile(f"no ONNX file as expected: {error}") from error


def _tensor(message: memoryview) -> tuple[str, Array]:
    shape: list[int] = []
    kind, name, raw = 0, "", memoryview(b"")
    for field, value in _fields(message):
        if field == 1:
            shape.append(value)
        elif field == 2:
            kind = value
        elif field == 8:
            name = bytes(value).decode()
        elif field == 9:
            raw = value
    return name, np.frombuffer(raw, _TYPES[kind]).reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of *message*: numbers of variable length as such, everything else as bytes."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(message, at)
        else:
            size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[wire]
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


class Graph:
    """A graph in the making. Values are known by their names, which are given here."""

    def __init__(self) -> None:
        self._nodes: list[Message] = []
        self._constants: list[Message] = []

    def constant(self, array: Array) -> str:
        """A constant; its bytes are read when the graph is written."""
        name = f"constant_{len(self._constants)}"
        array = np.ascontiguousarray(array)
        shape = [part for size in array.shape for part in _number(1, size)]
        raw = array.data.cast("B")
        self._constants.append([*shape, *_number(2, _NUMBERS[array.dtype]), *_text(8, name), *_nested(9, [raw])])
        return name

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: float) -> str:
        """What the operator *kind* makes of *inputs*, of which empty ones are left out. Attributes are whole numbers
        or floats, as they are given."""
        name = f"value_{len(self._nodes)}"
        node = [part for one in inputs for part in _text(1, one)]
        node += [*_text(2, name), *_text(4, kind), *_text(7, domain)]
        for attribute, value in attributes.items():
            node += _nested(5, _attribute(attribute, value))
        self._nodes.append(node)
        return name

    def written(self, given: tuple[str, int, Sequence[str | int]], made: tuple[str, int, Sequence[str | int]]) -> bytes:
        """The model as a file has it, with what it is *given* and what it has *made*: name, type and shape, in which
        a size that varies has a name."""
        graph: Message = []
        for node in self._nodes:
            graph += _nested(1, node)
        graph += _text(2, "graph")
        for constant in self._constants:
            graph += _nested(5, constant)
        graph += [*_nested(11, _value(*given)), *_nested(12, _value(*made))]
        own = [*_text(1, ""), *_number(2, OPSET)]
        more = [*_text(1, MICROSOFT), *_number(2, 1)]
        return b"".join([*_number(1, IR_VERSION), *_nested(7, graph), *_nested(8, own), *_nested(8, more)])


def _attribute(name: str, value: float) -> Message:
    if isinstance(value, float):
        return [*_text(1, name), _varint(2 << 3 | _FOUR_BYTES), struct.pack("<f", value), *_number(20, 1)]
    return [*_text(1, name), *_number(3, value), *_number(20, 2)]


def _value(name: str, kind: int, shape: Sequence[str | int]) -> Message:
    sizes: Message = []
    for size in shape:
        sizes += _nested(1, _text(2, size) if isinstance(size, str) else _number(1, size))
    tensor = [*_number(1, kind), *_nested(2, sizes)]
    return [*_text(1, name), *_nested(2, _nested(1, tensor))]


def _number(field: int, value: int) -> Message:
    return [_varint(field << 3 | _VARINT), _varint(value)]


def _text(field: int, text: str) -> Message:
    return _nested(field, [text.encode()])


def _nested(field: int, message: Message) -> Message:
    return [_varint(field << 3 | _BYTES), _varint(sum(map(len, message))), *message]


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])
