"""Fewer and larger pieces of a streamed answer: they are joined before LiteLLM takes them apart.

What LiteLLM does for a piece costs the same for one word as for fifty (docs/decisions/06), and providers send a
word at a time. Nothing is joined but neighbours that differ in nothing but their text, so nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import structlog

GATHER_SECONDS = 0.03
"""How long text is gathered after text was passed on. The first text and the end of an answer never wait."""
END_SECONDS = 0.05
"""How long the connection may take to end after the provider said that the answer is over. One that was read to its
end is used for the next call; one that was not is closed."""
_TEXTS = ("content", "reasoning_content", "reasoning")
_PADDING = "obfuscation"
"""OpenAI makes all pieces the same length with it."""
_BETWEEN = b"\n\n"
_ENDS = (_BETWEEN, b"\r\n\r\n", b"\r\r")
"""How an event may end: servers differ in how they end a line."""
_OVER = b"\ndata: [DONE]"
_CHOICES = b'"choices"'
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
"""Either says that nothing is missing, and never in a model's words: in JSON their quotes and line ends are escaped."""


UNSAID_ENDS = 3
"""After so many answers whose end a model did not say, and none whose end it said, it is taken for one that never does:
some servers just end the connection, and those that read for them would ask again and again. As many as one call makes
by default: a server that has just been started, or is gone behind its proxy, may break off two in a row."""
_silent: dict[str, int | None] = {}
"""How many ends each model has left unsaid, by its server and name; None for one that says them. As long as the process
runs."""
_log = structlog.get_logger()


def gather(stream: Any) -> None:
    """Have LiteLLM's *stream* read larger pieces where it is read by OpenAI's client; all others stay as they are."""
    response = _response(stream)
    if response is None or not isinstance(response.stream, httpx.AsyncByteStream):
        return
    if response.is_stream_consumed or response.is_closed or "content-encoding" in response.headers:
        return
    response.stream = Gathered(response.stream, model=f"{response.url} {getattr(stream, 'model', '')}")
    stream.completion_stream = _Gone(stream.completion_stream)


async def usage_after(stream: Any) -> Any:
    """What OpenAI's client reads of tokens after LiteLLM's *stream* has told that the answer is over; None where
    another client reads it, or nothing of the kind comes.

    It is read past LiteLLM, which would put the whole answer together out of its pieces once more, for its logs, before
    it told: a third of what a streamed answer of it costs (docs/decisions/06), and a thread. Asked afterwards all the
    same, it still tells what came earlier. An answer that is over is not lost by how its connection ends; only
    `TimeoutError` is raised.
    """
    if _response(stream) is None:
        return None
    usage = None
    try:
        async for chunk in stream.completion_stream:
            usage = getattr(chunk, "usage", None) or usage
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001 - every client has errors of its own; the answer is there
        return usage
    return usage


def _response(stream: Any) -> httpx.Response | None:
    """What OpenAI's client reads *stream* from, where it is the one that does."""
    response = getattr(getattr(stream, "completion_stream", None), "response", None)
    return response if isinstance(response, httpx.Response) else None


class _Gone:
    """*stream* of OpenAI's client, gone through but once. LiteLLM begins to go through it anew for each chunk, and the
    client makes a generator each time, which the event loop then has to end by a task of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _Gone:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._stream)


class Gathered(httpx.AsyncByteStream):
    """The bytes of *source*, which are server-sent events, in larger pieces. Can be read once.

    It ends where the provider says that the answer is over, without the saying: OpenAI's client would leave off in the
    middle of all that reads for it, which the event loop would then have to end piece by piece.

    Raises what *source* raises, after all that came before it was passed on; and `httpx.RemoteProtocolError` where it
    ends in the middle of an answer, as one does whose server is gone behind a proxy: all that read for it would take
    what came for the whole. Of a *model* that never says when an answer is over that cannot be known.
    """

    def __init__(self, source: httpx.AsyncByteStream, seconds: float = GATHER_SECONDS, model: str = "") -> None:
        self._source = source
        self._model = model
        self._seconds = seconds
        self._buffer = b""
        self._arrived = asyncio.Event()
        self._over = asyncio.Event()
        self._was_told = False
        """Whether what was passed on last is what came before the provider said that the answer is over."""
        self._has_begun = False
        self._is_finished = False
        """Whether of the answer that was begun nothing is missing."""
        self._reading: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._reading = reading = asyncio.create_task(self._read(), name="model stream")
        has_shown = False
        try:
            while not (reading.done() and not self._buffer):
                await self._arrived.wait()
                if has_shown:
                    await self._gathered()
                if self._over.is_set():
                    await asyncio.wait({reading}, timeout=END_SECONDS)
                piece, shows = join(self._taken(everything=self._over.is_set()))
                has_shown = has_shown or shows
                if piece:
                    yield piece
                if self._was_told:
                    return
            await reading
            if self._has_begun and not self._is_finished and not _never_says(self._model):
                raise httpx.RemoteProtocolError("the stream ended before the answer did")
        finally:
            await self._stop()

    async def aclose(self) -> None:
        """End the reading and close *source*."""
        await self._stop()
        await self._source.aclose()

    async def _read(self) -> None:
        try:
            async for some in self._source:
                self._buffer += some
                self._arrived.set()
                if _OVER in b"\n" + self._buffer:
                    self._over.set()
        finally:
            self._over.set()
            self._arrived.set()

    async def _gathered(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._over.wait()

    def _taken(self, *, everything: bool) -> bytes:
        """All whole events that arrived; the last one may be cut where there is no more to come."""
        over = (b"\n" + self._buffer).find(_OVER) if everything else -1
        if over >= 0:
            self._was_told = True
            _silent[self._model] = None
            return self._buffer[:over]
        whole = max(self._buffer.rfind(end) + len(end) if end in self._buffer else 0 for end in _ENDS)
        end = len(self._buffer) if everything else whole
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        self._has_begun = self._has_begun or _CHOICES in taken
        if not self._is_finished and _says_all(taken):
            self._is_finished = True
            _silent[self._model] = None
        if not self._over.is_set():
            self._arrived.clear()
        return taken

    async def _stop(self) -> None:
        if self._reading is None:
            return
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if not self._reading.cancelled():
            self._reading.exception()  # whoever has the whole answer does not mind how its connection ended


def join(events: bytes) -> tuple[bytes, bool]:
    """*events* with neighbours made one that differ in their text only, and whether any of them has text. Bytes that
    are no UTF-8 are marked as unreadable."""
    events = _readable(events).replace(b"\r\n", b"\n")
    if b"\r" in events:
        return events, True  # lines end otherwise here: left as they are
    joined: list[bytes] = []
    raws: list[bytes] = []
    frame: dict[str, Any] | None = None
    key, texts, has_text = "", list[str](), False

    def finish() -> None:
        nonlocal frame
        if frame is not None and len(raws) > 1:
            frame["choices"][0]["delta"][key] = "".join(texts)
            joined.append(b"data: " + json.dumps(frame, separators=(",", ":")).encode())
        else:
            joined.extend(raws)
        frame = None
        raws.clear()
        texts.clear()

    for raw in events.split(_BETWEEN):
        found = _text_of(raw)
        if found is None or found[0] != frame:
            finish()
        raws.append(raw)
        if found is not None:
            frame, key, text = found
            texts.append(text)
            has_text = has_text or bool(text)
    finish()
    return _BETWEEN.join(joined), has_text


def _never_says(model: str) -> bool:
    """Whether *model*, which has ended an answer without saying so, is one that never says it."""
    times = _silent.get(model, 0)
    if not model or times is None:
        return False
    _silent[model] = times + 1
    if times + 1 == UNSAID_ENDS:
        _log.warning("model.ends_unsaid", model=model.rpartition(" ")[2])
    return times + 1 >= UNSAID_ENDS


def _says_all(events: bytes) -> bool:
    """Whether one of *events* says that the answer is whole."""
    return _FINISHED.search(events) is not None or (b"[DONE]" in events and _DONE.search(events) is not None)


def _readable(events: bytes) -> bytes:
    """*events* as OpenAI's client takes them: it would give a whole answer up for one byte, and so would those that are
    asked for again. Some servers write a character's bytes as the tokens have them."""
    try:
        events.decode()
    except UnicodeDecodeError:
        return events.decode("utf-8", "replace").encode()
    return events


def _text_of(event: bytes) -> tuple[dict[str, Any], str, str] | None:
    """The event without its text, where the text was, and the text; None for an event that must stay as it is."""
    if not event.startswith(b"data: {") or b"\n" in event:
        return None
    try:
        frame = json.loads(event[6:])
        [choice] = frame["choices"]
        delta = choice["delta"]
        [(key, text)] = [(key, delta[key]) for key in _TEXTS if delta.get(key) is not None]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(text, str) or not isinstance(frame, dict) or _says_more(frame, choice, key):
        return None
    frame.pop(_PADDING, None)
    delta[key] = None
    return frame, key, text


def _says_more(frame: Mapping[str, Any], choice: Mapping[str, Any], key: str) -> bool:
    """Whether there is more in it than who speaks and the text under *key*: a tool's arguments come bit by bit, too,
    and of two bits that are the same both count."""
    more: Mapping[str, Any] = choice["delta"]
    return any(value for name, value in more.items() if name not in (key, "role")) or bool(
        choice.get("finish_reason") or choice.get("logprobs") or frame.get("usage") or frame.get("error")
    )
