"""The network of all-MiniLM-L6-v2 as onnxruntime computes it in 8 bits, made of the weights in the packaged file. Pure.

The packaged graph unpacks its weights to 32 bits and multiplies those. This one multiplies the weights as they are with
activations that are brought to 8 bits as they come, each by its own range, and leaves everything else in 32 bits. The
network is BERT's (Devlin et al., 2019): six layers of twelve heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grounding.documents.onnx_file import FLOAT32, INT64, MICROSOFT, Array, Graph, tensors

LAYERS = 6
HEADS = 12
EPSILON = 1e-12
MATRICES = 6
"""Of a layer, as the file has them: query, key, value, what the heads found, and the two of the feed-forward part."""
IDS = "ids"


def minilm_graph(file: bytes, *, signed: bool) -> bytes:
    """A model that makes of token numbers (int64, 1 × tokens) their last states (float32, 1 × tokens × 384).

    *signed* says whether the processor multiplies signed by unsigned bytes without loss, which is fastest; the other
    way takes twice as long and has the same outcome. Raises `BadOnnxFile`, and `KeyError` for another network.
    """
    return _Network(tensors(file), signed).written()


class _Network:
    def __init__(self, weights: Mapping[str, Array], signed: bool) -> None:
        self._weights = weights
        self._signed = signed
        self._graph = Graph()
        # The exporter named the matrices by numbers, which grow from layer to layer.
        numbers = sorted(int(name[4:-2]) for name in weights if name.startswith("val_") and name.endswith("_q"))
        self._matrices = [f"val_{number}" for number in numbers]

    def written(self) -> bytes:
        states = self._embedded()
        dimensions = self._weights["inner.embeddings.LayerNorm.bias"].size
        for layer in range(LAYERS):
            states = self._layer(states, layer)
        shape = (1, "tokens")
        return self._graph.written((IDS, INT64, shape), (states, FLOAT32, (*shape, dimensions)))

    def _embedded(self) -> str:
        """What stands for each token: its own vector and that of its place. All tokens are of the first text."""
        node, constant, weights = self._graph.node, self._graph.constant, self._weights
        table = "inner.embeddings.word_embeddings.weight"
        rows = node("Cast", node("Gather", constant(weights[f"{table}_q"]), IDS), to=FLOAT32)
        words = node("Mul", rows, node("Gather", constant(weights[f"{table}_scale"]), IDS))
        table = "inner.embeddings.position_embeddings.weight"
        places = weights[f"{table}_q"] * weights[f"{table}_scale"]
        places = places + weights["inner.embeddings.token_type_embeddings.weight"][0]
        first = constant(np.zeros(1, np.int64))
        shown = node("Slice", constant(places), first, node("Shape", IDS, start=1, end=2), first)
        return self._normalised("inner.embeddings.LayerNorm", words, shown)

    def _layer(self, states: str, layer: int) -> str:
        query, key, value, found, wider, narrower = self._matrices[layer * MATRICES : (layer + 1) * MATRICES]
        name = f"inner.encoder.layer.{layer}"
        asked = self._linear(states, query, f"{name}.attention.self.query")
        offered = self._linear(states, key, f"{name}.attention.self.key")
        told = self._linear(states, value, f"{name}.attention.self.value")
        heads = self._graph.node("MultiHeadAttention", asked, offered, told, domain=MICROSOFT, num_heads=HEADS)
        more = self._linear(heads, found, f"{name}.attention.output.dense")
        states = self._normalised(f"{name}.attention.output.LayerNorm", more, states)
        wide = self._linear(states, wider, f"{name}.intermediate.dense")
        more = self._linear(self._graph.node("Gelu", wide, domain=MICROSOFT), narrower, f"{name}.output.dense")
        return self._normalised(f"{name}.output.LayerNorm", more, states)

    def _linear(self, states: str, matrix: str, name: str) -> str:
        constant, weights = self._graph.constant, self._weights
        numbers, zero = weights[f"{matrix}_q"], ""
        if not self._signed:
            numbers = (numbers.astype(np.int16) + 128).astype(np.uint8)
            zero = constant(np.full(numbers.shape[1], 128, np.uint8))
        scale, bias = constant(weights[f"{matrix}_scale"].ravel()), constant(weights[f"{name}.bias"])
        return self._graph.node("DynamicQuantizeMatMul", states, constant(numbers), scale, zero, bias, domain=MICROSOFT)

    def _normalised(self, name: str, one: str, other: str) -> str:
        """The sum of both. Two operators: the one that does both at once takes five times as long."""
        node, constant, weights = self._graph.node, self._graph.constant, self._weights
        scale, bias = constant(weights[f"{name}.weight"]), constant(weights[f"{name}.bias"])
        return node("LayerNormalization", node("Add", one, other), scale, bias, epsilon=EPSILON)
