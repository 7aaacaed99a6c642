"""The child process that serves a GGUF model: llama.cpp's OpenAI-compatible server, on loopback.

``python -m runtime.embedded.serve_model MODEL.gguf`` prints ``READY http://127.0.0.1:PORT`` and serves until SIGTERM.
The callers' key is in the environment variable ``AGENT_RUNTIME_LOCAL_MODEL_KEY``, because every user of the machine can
read arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

KEY_VARIABLE = "AGENT_RUNTIME_LOCAL_MODEL_KEY"
PREFIX_CACHE_MIB = (256, 1024)
"""The least and the most host memory for prompts that no slot holds any more, so that they need not be evaluated again.
The small model takes 22.5 KiB for a token, so a conversation's prompt of 4,500 tokens takes 100 MiB. If the memory is
less than the conversations that take turns need, each of them is evaluated again every time."""
PREFIX_CACHE_SHARE = 0.05
"""The share of the machine's memory, between those two."""

SAME_CONVERSATION = 0.75
"""A slot is used again if it holds this share of the new prompt. If it holds less, its content is stored in the cache,
and the best match is loaded. Without that, one conversation's prompt would overwrite another's because all begin alike
(if the beginning is more than half of it)."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="serve_model")
    parser.add_argument("model")
    parser.add_argument("--alias", default="local")
    parser.add_argument("--context-tokens", type=int, default=8192, help="per slot")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    server = _serve(options, os.environ.pop(KEY_VARIABLE))
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    # Only now, because llama.cpp sets its own handlers while it starts.
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, which stops this process
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    while not stop.wait(0.5):
        pass
    os._exit(0)  # else it would wait for llama.cpp's threads


def prefix_cache_mib(memory_bytes: int) -> int:
    """Return the size of the prompt cache on a machine with *memory_bytes*."""
    least, most = PREFIX_CACHE_MIB
    return max(least, min(most, int(memory_bytes * PREFIX_CACHE_SHARE / 2**20)))


def _serve(options: argparse.Namespace, key: str) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the kernel picks a free one
    params.api_keys = [key]
    params.n_parallel = options.slots
    params.n_ctx = options.context_tokens * options.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.use_jinja = True
    params.cache_prompt = True
    params.cache_ram_mib = prefix_cache_mib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    params.slot_prompt_similarity = SAME_CONVERSATION
    # Prompts are stored when another one takes their slot, but not while it is idle: under load that loaded a
    # conversation into another one's slot (llama.cpp issue 27148), and it has no use here.
    params.cache_idle_slots = False
    params.endpoint_slots = False
    params.ui = False
    params.warmup = True
    if isinstance(params.cors_origins, str):
        params.cors_origins = "http://127.0.0.1"
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
