"""How much memory a model's attention cache takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]

BYTES_PER_ELEMENT: Mapping[CacheType, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}
"""What one number of the cache takes. Quantised ones are kept in blocks of 32 with a scale (and an offset) of two bytes
each: ggml's ``block_q8_0`` has 34 bytes, ``block_q4_0`` 18 (ggml/src/ggml-common.h in ggml-org/llama.cpp)."""
assert set(BYTES_PER_ELEMENT) == set(get_args(CacheType))

MOST = 2**20
"""Beyond this a number of a model's description is no number of layers, heads or the like."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What of a model decides how large its cache is. ``kv_heads`` is summed over the layers; ``key_size`` and
    ``value_size`` are the sizes of one head."""

    layers: int
    kv_heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, of: CacheType) -> int:
        """Bytes that the cache takes for one token.

        ``2 × layers × KV heads × head size × bytes per element``: for each layer a key and a value for each KV head.
        The 2 is the sum of both, which some models have of different sizes; with grouped-query attention (Ainslie et
        al. 2023, arXiv:2305.13245) there are fewer KV heads than heads, and some models have another number of them in
        each layer, hence their sum. The formula is that of Pope et al. 2022 (arXiv:2211.05102), and what
        llama.cpp sets aside (``llama_kv_cache``: ``n_embd_k_gqa`` and ``n_embd_v_gqa`` for each layer and cell).

        It is too high for layers with a sliding window, which need no more than the window, and for models whose
        layers are partly recurrent or that keep a compressed cache (MLA): what it is used for should rather expect too
        much than too little.
        """
        return math.ceil(self.kv_heads * (self.key_size + self.value_size) * BYTES_PER_ELEMENT[of])


def shape_of(about: Mapping[str, Any]) -> CacheShape | None:
    """The shape that a model's own description gives; None where it does not say enough.

    *about* has GGUF's keys (docs/gguf.md in ggml-org/ggml), as a file's header and the ``model_info`` of Ollama's
    ``/api/show`` do. Without ``head_count_kv`` every head has keys and values of its own; without ``key_length`` and
    ``value_length`` a head is its share of the embedding.
    """
    name = about.get("general.architecture")

    def number(key: str) -> int | None:
        found = about.get(f"{name}.{key}")
        return found if type(found) is int and 0 < found <= MOST else None

    layers, width = number("block_count"), number("embedding_length")
    if layers is None:
        return None
    heads = _summed(about.get(f"{name}.attention.head_count"), layers)
    kv_heads = _summed(about.get(f"{name}.attention.head_count_kv"), layers) or heads
    share = width * layers // heads if width and heads else None
    key_size = number("attention.key_length") or share
    value_size = number("attention.value_length") or share
    if not (kv_heads and key_size and value_size):
        return None
    return CacheShape(layers, kv_heads, key_size, value_size)


def _summed(found: object, layers: int) -> int | None:
    """Heads of all layers, from their number in each layer or a list of these; None where it is neither."""
    each = found if isinstance(found, list | tuple) else [found] * layers
    if len(each) != layers or not all(type(one) is int and 0 <= one <= MOST for one in each):
        return None
    return sum(each) or None
