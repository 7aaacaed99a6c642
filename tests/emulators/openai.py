"""A model provider on loopback that speaks OpenAI's protocol, remembers what it was sent, and can misbehave.

``python -m tests.emulators.openai --port N`` runs it by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from aiohttp import web

from tests.emulators import loopback

CHARACTERS_PER_TOKEN = 4
EMBEDDING_DIMENSIONS = 32

Trouble = Literal[
    "empty", "rate_limited", "server_error", "unauthorized", "context_window", "content_policy", "not_found", "hang",
    "break_off", "leave_off", "stall", "no_end", "unsaid_end", "odd_usage", "garbage",
]  # fmt: skip


REMEMBERED_PREFIXES = 64
"""Requests whose beginnings are still cached; a provider forgets, too."""


@dataclass(frozen=True)
class Reply:
    """What the next request gets: text, tool calls (name, and arguments or their very text), or trouble."""

    text: str = ""
    tool_calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    trouble: Trouble | None = None
    retry_after_seconds: float | None = None
    finish_reason: str | None = None


@dataclass
class FakeOpenAI:
    """The running emulator. ``requests`` are the JSON bodies of chat requests, oldest first.

    Answers: the next of ``replies`` while there are any, else what ``answer`` makes of the request
    body. By default that is an echo of the end of the last user message. Work in the background takes
    none of the ``replies``: it comes whenever the machine has time for it.
    """

    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    embedding_requests: list[dict[str, Any]] = field(default_factory=list)
    embeds_batches: int | None = None
    """How many more requests to embed several texts are answered, the others being refused; None for all of them."""
    rerank_requests: list[dict[str, Any]] = field(default_factory=list)
    transcription_requests: list[dict[str, Any]] = field(default_factory=list)
    """Of each: ``model``, ``name``, ``media_type`` and ``data`` of the recording."""
    heard: str = "What do the tyres cost?"
    """What every recording says."""
    billed: list[int] = field(default_factory=list)
    """The tokens of each chat request whose use was told, prompt and answer together."""
    keys: list[str] = field(default_factory=list)
    peers: list[Any] = field(default_factory=list)
    """The other end of each chat request's connection."""
    replies: deque[Reply] = field(default_factory=deque)
    answer: Callable[[dict[str, Any]], Reply | str] = lambda body: echo(body)
    chunk_delay_seconds: float = 0.0
    timed: Callable[[dict[str, Any], float], None] = lambda body, arrived: None
    """Is told of each chat request when it was answered whole, and when it had arrived, by the monotonic clock."""
    rerank_forgets: bool = False
    """Whether the last document of each rerank request gets no score."""
    key: str | None = None
    """Where set, callers must present it."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end, so that nothing hangs longer than the emulator."""

    def will(self, *replies: Reply | str | Trouble) -> None:
        """Queue answers; the names of trouble are trouble, every other string is text."""
        for reply in replies:
            if isinstance(reply, str):
                is_trouble = reply in get_args(Trouble)
                reply = Reply(trouble=cast("Trouble", reply)) if is_trouble else Reply(text=reply)
            self.replies.append(reply)

    def forget_orders(self) -> None:
        """Answer as at the start again: nothing is queued, and nothing takes time. What hangs now is let go."""
        self.replies.clear()
        self.answer = FakeOpenAI.answer
        self.chunk_delay_seconds = 0.0
        self.key = None
        self.release.set()
        self.release = asyncio.Event()

    @property
    def images(self) -> list[list[str]]:
        """The pictures of each chat request, as the data URIs that they came as."""
        return [
            [
                part["image_url"]["url"]
                for message in body["messages"]
                if isinstance(message.get("content"), list)
                for part in message["content"]
                if part["type"] == "image_url"
            ]
            for body in self.requests
        ]

    @property
    def prompts(self) -> list[str]:
        """All messages of each request as one text, e.g. to search them."""
        return [_flat(body) for body in self.requests]

    def cached_characters(self, body: dict[str, Any]) -> int:
        """The longest prefix that *body* shares with an earlier request of the same model, as providers cache it."""
        new = _flat(body)
        same = [
            _flat(old)
            for old in self.requests[-REMEMBERED_PREFIXES:]
            if old is not body and old.get("model") == body.get("model")
        ]
        return max((len(os.path.commonprefix([new, old])) for old in same), default=0)  # noqa: RUF071 - of text


def in_background(body: dict[str, Any]) -> bool:
    """Whether a request is for the document about a conversation, for its records, or for a search, not for a reply to
    anybody."""
    begins = _text(body["messages"][0]).startswith
    return begins("You keep one short document") or about_records(body) or is_translation(body)


def is_translation(body: dict[str, Any]) -> bool:
    """Whether a request is for a question in the language of the documents."""
    return _text(body["messages"][0]).startswith("Translate the question into")


def about_records(body: dict[str, Any]) -> bool:
    """Whether a request is for the records of a conversation."""
    return _text(body["messages"][0]).startswith("You decide what of a conversation")


def echo(body: dict[str, Any]) -> str:
    """The last 60 characters of what the user said last."""
    said = [_text(message) for message in body["messages"] if message["role"] == "user"]
    return f"You said: {said[-1][-60:] if said else ''}"


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _flat(body: dict[str, Any]) -> str:
    return "\n".join(f"{message['role']}\x00{_text(message)}" for message in body["messages"])


@contextlib.asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[FakeOpenAI]:
    """The emulator on *port* of loopback (0: any free one) as long as the block lasts."""
    fake = FakeOpenAI()
    app = web.Application(client_max_size=64_000_000)
    app.router.add_post("/v1/chat/completions", functools.partial(_chat, fake))
    app.router.add_post("/v1/embeddings", functools.partial(_embeddings, fake))
    app.router.add_post("/v1/audio/transcriptions", functools.partial(_transcriptions, fake))
    for path in ("/v2/rerank", "/v1/rerank", "/rerank"):
        app.router.add_post(path, functools.partial(_rerank, fake))
    app.router.add_get("/v1/models", _models)
    async with loopback.serving(app, port) as address:
        fake.base_url = f"{address}/v1"
        try:
            yield fake
        finally:
            fake.release.set()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})


def _error(status: int, message: str, code: str, kind: str = "invalid_request_error", **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return web.json_response(body, status=status, headers=headers)


def _refusal(reply: Reply) -> web.Response | None:
    match reply.trouble:
        case "rate_limited":
            wait = {} if reply.retry_after_seconds is None else {"Retry-After": f"{reply.retry_after_seconds:g}"}
            return _error(429, "Rate limit reached", "rate_limit_exceeded", "requests", **wait)
        case "server_error":
            return _error(500, "The server had an error", "internal_error", "server_error")
        case "unauthorized":
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        case "not_found":
            return _error(404, "The model does not exist", "model_not_found")
        case "context_window":
            said = "This model's maximum context length is 128 tokens. However, your messages resulted in 999 tokens."
            return _error(400, said, "context_length_exceeded")
        case "content_policy":
            return _error(400, "Your request was rejected by our safety system", "content_policy_violation")
        case "garbage":
            return web.Response(text="<html>Bad gateway</html>", content_type="text/html")
    return None


async def _chat(fake: FakeOpenAI, request: web.Request) -> web.StreamResponse:
    arrived = time.monotonic()
    body = await request.json()
    try:
        return await _answer(fake, request, body)
    finally:
        fake.timed(body, arrived)


async def _answer(fake: FakeOpenAI, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    key = request.headers.get("Authorization", "").removeprefix("Bearer ")
    fake.keys.append(key)
    fake.peers.append(request.transport and request.transport.get_extra_info("peername"))
    if fake.key is not None and key != fake.key:
        return _error(401, "Incorrect API key provided", "invalid_api_key")
    fake.requests.append(body)
    planned = fake.replies.popleft() if fake.replies and not in_background(body) else fake.answer(body)
    reply = Reply(text=planned) if isinstance(planned, str) else planned
    if refusal := _refusal(reply):
        return refusal
    if reply.trouble == "hang":
        await fake.release.wait()
        return _error(503, "Shutting down", "shutdown")
    if body.get("stream"):
        return await _stream(fake, request, body, reply)
    if reply.trouble in ("break_off", "stall"):
        if reply.trouble == "stall":
            await fake.release.wait()
        assert request.transport is not None
        request.transport.close()
        return web.Response()
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message = {"role": "assistant", "content": reply.text or None, "tool_calls": _tool_calls(reply)}
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply, body)}
    return web.json_response(_envelope(body, "chat.completion", [choice]) | {"usage": _usage(fake, body, reply)})


def _envelope(body: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body.get("model", ""), "choices": choices}


def _tool_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "index": i,
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for i, (name, given) in enumerate(reply.tool_calls)
    ]


def told(body: dict[str, Any]) -> list[str]:
    """What tools told, as the messages of a request have it."""
    return [_text(message) for message in body["messages"] if message["role"] == "tool"]


def offered(body: dict[str, Any]) -> list[str]:
    """The names of the tools that a request offers."""
    return [tool["function"]["name"] for tool in body.get("tools", ())]


def _finish(reply: Reply, body: dict[str, Any]) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(fake: FakeOpenAI, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    prompt = len(_flat(body)) // CHARACTERS_PER_TOKEN
    completion = len(reply.text) // CHARACTERS_PER_TOKEN + 1
    fake.billed.append(prompt + completion)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": fake.cached_characters(body) // CHARACTERS_PER_TOKEN},
    }


async def _stream(fake: FakeOpenAI, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(choices: list[dict[str, Any]], **more: Any) -> None:
        chunk = _envelope(body, "chat.completion.chunk", choices) | more
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await asyncio.sleep(fake.chunk_delay_seconds)

    def delta(**content: Any) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": content, "finish_reason": None}]

    await send(delta(role="assistant", content=""))
    for start in range(0, len(reply.text), 5):
        await send(delta(content=reply.text[start : start + 5]))
        if start >= 5 and reply.trouble == "break_off":
            assert request.transport is not None
            request.transport.close()
            return response
        if start >= 5 and reply.trouble == "leave_off":
            return response
        if start >= 5 and reply.trouble == "stall":
            await fake.release.wait()
            return response
    for call in _tool_calls(reply):
        arguments = call["function"]["arguments"]
        head = {**call, "function": {**call["function"], "arguments": ""}}
        await send(delta(tool_calls=[head]))
        for start in range(0, len(arguments), 5):
            await send(
                delta(tool_calls=[{"index": call["index"], "function": {"arguments": arguments[start : start + 5]}}])
            )
    if reply.trouble == "unsaid_end":
        return response
    await send([{"index": 0, "delta": {}, "finish_reason": _finish(reply, body)}])
    if reply.trouble == "no_end":
        await fake.release.wait()
        return response
    if (body.get("stream_options") or {}).get("include_usage"):
        await send([], usage="many" if reply.trouble == "odd_usage" else _usage(fake, body, reply))
    await response.write(b"data: [DONE]\n\n")
    return response


async def _embeddings(fake: FakeOpenAI, request: web.Request) -> web.Response:
    body = await request.json()
    fake.embedding_requests.append(body)
    if fake.replies and (refusal := _refusal(fake.replies.popleft())):
        return refusal
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if len(texts) > 1 and fake.embeds_batches is not None:
        if not fake.embeds_batches:
            fake.embedding_requests.pop()
            return _error(503, "The embedder is overloaded", "overloaded", "server_error")
        fake.embeds_batches -= 1
    data = [{"object": "embedding", "index": i, "embedding": embed(text)} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": sum(map(len, texts)) // 4, "total_tokens": sum(map(len, texts)) // 4}
    return web.json_response({"object": "list", "data": data, "model": body.get("model", ""), "usage": usage})


async def _rerank(fake: FakeOpenAI, request: web.Request) -> web.Response:
    """Cohere's protocol, which the other rerank servers speak too: scores with the documents' places, best first."""
    body = await request.json()
    fake.keys.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
    fake.rerank_requests.append(body)
    if fake.replies and fake.replies[0].trouble:
        reply = fake.replies.popleft()
        if reply.trouble == "hang":
            await fake.release.wait()
        if refusal := _refusal(reply):
            return refusal
    documents = body["documents"]
    if not body["query"] or not documents or not all(documents):
        return _error(400, "query and documents must not be empty", "invalid_request")
    scored = sorted(((common(body["query"], text), -at) for at, text in enumerate(documents)), reverse=True)
    results = [{"index": -at, "relevance_score": score} for score, at in scored[: body.get("top_n")]]
    if fake.rerank_forgets:
        results.pop()
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return web.json_response({"id": "rerank-1", "results": results, "meta": meta, "usage": {"total_tokens": 42}})


def common(query: str, text: str) -> float:
    """The share of the words of *query* that stand in *text*, less a little for each further word."""
    wanted, words = set(query.lower().split()), text.lower().split()
    return len(wanted & set(words)) / len(wanted) - 0.0001 * len(words)


async def _transcriptions(fake: FakeOpenAI, request: web.Request) -> web.Response:
    form = await request.post()
    recording = form["file"]
    assert isinstance(recording, web.FileField)
    fake.transcription_requests.append(
        {
            "model": form["model"],
            "name": recording.filename,
            "media_type": recording.content_type,
            "data": recording.file.read(),
        }
    )
    if fake.replies and (refusal := _refusal(fake.replies[0])):
        fake.replies.popleft()
        return refusal
    usage: dict[str, Any] = {"type": "duration", "seconds": 3}
    if form["model"] != "whisper-1":  # the older model is paid by the second
        details = {"audio_tokens": 14, "text_tokens": 0}
        usage = {"type": "tokens", "input_tokens": 14, "output_tokens": 6, "total_tokens": 20}
        usage["input_token_details"] = details
    return web.json_response({"text": fake.heard, "usage": usage})


def embed(text: str) -> list[float]:
    """A vector that is the same for the same words: each word adds to the dimension that its digest names."""
    vector = [0.0] * EMBEDDING_DIMENSIONS
    for word in text.lower().split():
        vector[hashlib.sha256(word.encode()).digest()[0] % EMBEDDING_DIMENSIONS] += 1.0
    return vector


async def _main(port: int) -> None:
    async with serving(port) as fake:
        print(f"READY {fake.base_url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args().port))
