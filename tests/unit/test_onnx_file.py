"""What onnxruntime loads is what was written, and what was written is read again."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from grounding.documents.onnx_file import FLOAT32, BadOnnxFile, Graph, tensors


def _written(graph: Graph, value: str) -> bytes:
    return graph.written(("x", FLOAT32, (1, "many")), (value, FLOAT32, (1, "many")))


@given(
    st.lists(arrays(st.sampled_from([np.int8, np.uint8, np.int64, np.float32]), array_shapes(max_side=40)), max_size=4)
)
def test_constants_are_read_as_they_were_written(constants: list[np.ndarray]) -> None:
    """With their types, shapes and bytes."""
    graph = Graph()
    names = [graph.constant(constant) for constant in constants]

    read = tensors(_written(graph, graph.node("Identity", "x")))

    assert list(read) == names
    for name, constant in zip(names, constants, strict=True):
        assert (read[name].dtype, read[name].shape) == (constant.dtype, constant.shape)
        assert read[name].tobytes() == constant.tobytes()


def test_a_graph_computes_what_it_says() -> None:
    """Nodes, attributes of both kinds and inputs that are left out, as onnxruntime reads them."""
    graph = Graph()
    doubled = graph.node("Mul", "x", graph.constant(np.array([2.0], np.float32)))
    kept = graph.node("Clip", doubled, "", graph.constant(np.array(5.0, np.float32)))
    leaky = graph.node("LeakyRelu", kept, alpha=0.5)
    summed = graph.node("CumSum", leaky, graph.constant(np.array(1)), reverse=1)
    session = onnxruntime.InferenceSession(_written(graph, summed), providers=["CPUExecutionProvider"])

    (made,) = session.run(None, {"x": np.array([[1.0, 4.0, -2.0]], np.float32)})

    assert made.tolist() == [[5.0, 3.0, -2.0]]


@pytest.mark.parametrize("file", [b"", b"no model", b"\x3a\x04\x2a\x02\x10\x63", b"\x3a\xff"])
def test_other_bytes_are_refused(file: bytes) -> None:
    """Whatever they are."""
    with pytest.raises(BadOnnxFile):
        tensors(file)
