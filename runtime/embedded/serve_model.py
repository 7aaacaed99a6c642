"""Main of the child process that serves a GGUF model: llama.cpp's OpenAI-compatible server, on loopback.

``python -m runtime.embedded.serve_model MODEL.gguf`` prints ``READY http://127.0.0.1:PORT`` and serves
until SIGTERM. The key that callers must present is read from the environment variable
``AGENT_RUNTIME_LOCAL_MODEL_KEY``, because arguments can be read by every user of the machine.
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
"""Host memory for prompts that no slot holds any more, at least and at most: they need not be read again. The small
model takes 22.5 KiB for a token, so that a conversation's prompt of 4,500 takes 100 MiB; with less than all
conversations that are held in turn take, each of them is read anew every time."""
PREFIX_CACHE_SHARE = 0.05
"""Of the machine's memory, between those two."""

SAME_CONVERSATION = 0.75
"""A slot is gone on with where so much of a new prompt stands in it. Where less does, what it holds is put by and what
fits best is fetched: else one conversation's prompt is written over another's for the beginning that all have, and is
lost (while that is more than half of it)."""


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

    # After the server was made: llama.cpp sets handlers of its own while it starts.
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, who stops us
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    while not stop.wait(0.5):
        pass
    os._exit(0)  # llama.cpp's own threads would be waited for


def prefix_cache_mib(memory_bytes: int) -> int:
    """How much of a machine with *memory_bytes* is for prompts that may come again."""
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
    # Prompts are put by when a slot is given to another one, not while it rests: that was seen to fetch a conversation
    # into another one's slot under load (llama.cpp issue 27148), and brings nothing here.
    params.cache_idle_slots = False
    params.endpoint_slots = False
    params.ui = False
    params.warmup = True
    if isinstance(params.cors_origins, str):
        params.cors_origins = "http://127.0.0.1"
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
