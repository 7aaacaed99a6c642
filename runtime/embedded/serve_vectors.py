"""Main of the child process that embeds with the deeper model.

``python -m runtime.embedded.serve_vectors QUESTIONS DOCUMENTS`` is given the numbers of two open sockets, and serves
what `runtime.embedded.vector_lane` says on each until it is closed: questions as fast as it can, documents when nothing
else wants the processor.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import traceback

from grounding.documents.minilm import MiniLM, find_weights
from runtime.embedded.vector_lane import HEAD, READY

NICE = 15
"""The priority of loading the model and of documents, of 0 to 19."""


def main() -> None:
    questions, documents = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, who stops us
    loaded: list[MiniLM] = []
    is_loaded = threading.Event()

    def documents_lane() -> None:
        try:
            if sys.platform == "linux":  # elsewhere a thread has no priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            loaded.append(MiniLM(find_weights()))
            is_loaded.set()
            serve(documents, loaded[0])
        except BaseException:  # noqa: BLE001 - printed for whoever looks why, and the end of the process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0 if loaded else 1)

    threading.Thread(target=documents_lane, daemon=True).start()
    is_loaded.wait()
    questions.sendall(HEAD.pack(READY, 0))
    serve(questions, loaded[0])


def serve(lane: socket.socket, model: MiniLM) -> None:
    """Answer each text on *lane* until the other side hangs up."""
    with lane.makefile("rb") as texts:
        while len(head := texts.read(HEAD.size)) == HEAD.size:
            number, size = HEAD.unpack(head)
            text = texts.read(size).decode("utf-8", "replace")
            try:
                vector = model.deeper_vector(text)
            except Exception:  # noqa: BLE001 - whatever a text does to the model, the next one is embedded
                traceback.print_exc()
                vector = []
            try:
                lane.sendall(HEAD.pack(number, len(vector)) + struct.pack(f"<{len(vector)}f", *vector))
            except OSError:  # nobody listens any more
                return


if __name__ == "__main__":
    main()
