"""Counts what each of our tokens takes in other vocabularies: ``python -m bench.vocabularies`` (half a minute).

Writes `grounding.vocabularies.FILE`. The vocabularies come with packages of this project: the bundled model's (in its
GGUF file), Llama 2's (wordllama), Claude 2's and o200k_base (litellm).
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tiktoken

from grounding.tokens import ENCODING, find_vocabularies
from grounding.vocabularies import FILE
from runtime.embedded.model_server import WEIGHTS_FILE, WEIGHTS_PACKAGE
from runtime.environment.gguf import read_header

Takes = Callable[[bytes], int]
"""How many tokens of a vocabulary some bytes take."""


def taken(tokens: Iterable[bytes], vocabularies: Mapping[str, Takes]) -> bytes:
    """For each of *tokens* the most that any of *vocabularies* takes."""
    return bytes(max(takes(token) for takes in vocabularies.values()) for token in tokens)


def ours() -> Iterator[bytes]:
    """The bytes of our tokens, in their order."""
    find_vocabularies()
    encoding = tiktoken.get_encoding(ENCODING)
    yield from (encoding.decode_single_token_bytes(number) for number in range(len(encoding.token_byte_values())))


def vocabularies() -> dict[str, Takes]:
    """By name."""
    from tokenizers import Tokenizer

    find_vocabularies()
    o200k = tiktoken.get_encoding("o200k_base")
    words = llama()
    claude = Tokenizer.from_file(str(_file("litellm", "litellm_core_utils/tokenizers/anthropic_tokenizer.json")))
    return {
        "SmolLM2": _by_bytes(bundled()),
        "Claude 2": _by_bytes(claude),
        "Llama 2": lambda token: _by_words(words, token),
        "o200k_base": lambda token: len(o200k._encode_bytes(token)),
    }


def bundled() -> Any:
    """The tokenizer of the bundled model, made of what its GGUF file says."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    header = read_header(_file(WEIGHTS_PACKAGE, WEIGHTS_FILE), kept_items=100_000)
    words = {word: number for number, word in enumerate(header["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in header["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def llama() -> Any:
    """Llama 2's."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_file("wordllama", "tokenizers/l2_supercat_tokenizer_config.json")))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _by_bytes(tokenizer: Any) -> Takes:
    """Of a vocabulary of bytes, which writes each as a letter."""
    letters = _letters()

    def takes(token: bytes) -> int:
        try:
            return len(tokenizer.encode(token.decode(), add_special_tokens=False).ids)
        except UnicodeDecodeError:  # a part of a character
            return len(tokenizer.model.tokenize("".join(letters[byte] for byte in token)))

    return takes


def _by_words(tokenizer: Any, token: bytes) -> int:
    """Of a vocabulary of words, which takes each byte of what it does not know by itself."""
    try:
        return len(tokenizer.model.tokenize(token.decode().replace(" ", "\u2581")))
    except UnicodeDecodeError:
        return len(token)


def _letters() -> dict[int, str]:
    """How vocabularies of bytes write them: those that can be seen as they are, the others from U+0100 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _file(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]) / path


def main() -> None:
    """Write the file anew."""
    table = taken(ours(), vocabularies())
    FILE.write_bytes(zlib.compress(table, 9))
    sys.stdout.write(f"{len(table)} tokens, at most {max(table)} each: {FILE.stat().st_size} bytes in {FILE.name}\n")


if __name__ == "__main__":
    main()
