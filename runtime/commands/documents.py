"""``docs``: list and change the workspace's documents from a chat. An admin adds one by sending the file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Protocol

import structlog

from connectors.connector import AttachmentUnavailable
from connectors.message import AgentRuntimeError, Attachment, Role, Scope
from grounding.documents import SUFFIXES, DocumentMissing, DocumentRefused, Shelf, Skipped, Synced, check_path
from grounding.retrieval import IndexUnavailable
from runtime.attachments import Files, size_in_words
from runtime.commands.registry import (
    Command,
    CommandRefused,
    Invocation,
    as_refusal,
    bullet_list,
    code,
    escape_markdown,
    format_count,
    format_number,
)

_LATER = "The search index cannot be reached now. It will be updated by itself."
LONGEST_STEM_BYTES = 200
"""The most bytes of a name that a document gets from the file that was sent."""
SHOWN = 10
"""The most documents in a list."""
_USAGE = (
    "`/docs` lists the documents. To add one, send a file with the caption `/docs add` or `/docs add folder/name.md`. "
    "`/docs remove PATH` removes one."
)
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f/\\:]+")
_log = structlog.get_logger()


class Indexes(Protocol):
    """See `runtime.search.Knowledge`."""

    async def index(self, scope: Scope, paths: Collection[str] | None = None) -> Synced: ...

    async def skipped(self, scope: Scope) -> Sequence[Skipped]: ...


def docs_command(shelf: Shelf, index: Indexes, files: Files, document_max_bytes: int) -> Command:
    """Build the command ``docs``. *document_max_bytes* bounds the text of one document."""
    return Command(
        "docs",
        "list, add, replace or remove documents",
        _Docs(shelf, index, files, document_max_bytes).run,
        "[add|replace [path]|remove PATH]",
        role=Role.ADMIN,
        details="Send a file with the caption `/docs add` to add it: Markdown and text as they are; PDF, Word, Excel, "
        "PowerPoint, OpenDocument and web pages as their text. `/docs replace` replaces a document.",
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """The result for one file: where it is stored and what of it was left out, or why it is not stored."""

    name: str
    path: str = ""
    size_bytes: int = 0
    left_out: str = ""
    unchanged: bool = False
    why_not: str = ""


class _Docs:
    def __init__(self, shelf: Shelf, index: Indexes, files: Files, document_max_bytes: int) -> None:
        self._shelf = shelf
        self._index = index
        self._files = files
        self._most = document_max_bytes

    async def run(self, invocation: Invocation) -> str:
        verb, _, rest = invocation.rest.partition(" ")
        scope, path = Scope(invocation.key.workspace_id), rest.strip()
        match verb.lower():
            case "" | "list":
                return await self._listed(scope)
            case "add" | "replace":
                return await self._add(scope, invocation, path, replace=verb.lower() == "replace")
            case "remove" if path:
                return await self._remove(scope, path)
            case _:
                raise CommandRefused(_USAGE)

    async def _listed(self, scope: Scope) -> str:
        files = (await self._shelf.look_through(scope))[0]
        try:
            skipped = {file.path: file.why for file in await self._index.skipped(scope)}
        except IndexUnavailable:  # the list comes from the disk
            skipped = {}
        files = [file for file in files if file.path not in skipped]
        unread = _unread(skipped)
        if not files:
            return f"There are no documents yet. {_USAGE}{unread}"
        newest = sorted(files, key=lambda file: (-file.modified_ns, file.path))[:SHOWN]
        lines = [f"{code(file.path)}, {size_in_words(file.size_bytes)}, {_day(file.modified_ns)}" for file in newest]
        count = format_count(len(files), "document")
        return f"{count}{'; the newest' if len(files) > SHOWN else ''}:\n{bullet_list(lines)}{unread}"

    async def _add(self, scope: Scope, invocation: Invocation, path: str, *, replace: bool) -> str:
        attachments = invocation.message.attachments
        if not attachments:
            raise CommandRefused("Send the file with the command as its caption.")
        if path and len(attachments) > 1 and not path.endswith("/"):
            raise CommandRefused("Several files need a folder, such as `/docs add handbook/`.")
        results = [
            await self._store(scope, invocation.message.connector, attachment, path, replace)
            for attachment in attachments
        ]
        changed = [result.path for result in results if result.path and not result.unchanged]
        reply = bullet_list(map(_result_text, results)) if len(results) > 1 else _result_text(results[0])
        if changed:
            done = await self._indexed(scope, changed)
            reply += f"\n\nI can look it up now ({format_count(done.chunks, 'chunk')})." if done else f"\n\n{_LATER}"
        if not any(result.path for result in results):
            raise CommandRefused(reply)
        return reply

    async def _store(self, scope: Scope, connector: str, attachment: Attachment, wanted: str, replace: bool) -> _Result:
        name = attachment.name
        try:
            path = check_path(document_path(wanted, name))
            found = await self._files.text(connector, attachment, self._most)
            text = found.text + "\n"
            present = await self._text_at(scope, path)
            if present == text:
                return _Result(name, path, unchanged=True)
            if present is not None and not replace:
                return _Result(
                    name,
                    why_not=f"{code(path)} exists already; the caption {code('/docs replace')} replaces it",
                )
            stored = await self._shelf.put(scope, path, text)
        except AttachmentUnavailable as error:
            return _Result(name, why_not=error.user_text.rstrip("."))
        except DocumentRefused as error:
            return _Result(name, why_not=str(error))
        except OSError as error:
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
            return _Result(name, why_not="it could not be written to the disk")
        return _Result(name, path, stored.size_bytes, found.note)

    async def _text_at(self, scope: Scope, path: str) -> str | None:
        try:
            return (await self._shelf.get(scope, path)).text
        except DocumentMissing:
            return None

    async def _remove(self, scope: Scope, path: str) -> str:
        try:
            await self._shelf.delete(scope, path)
        except (DocumentMissing, DocumentRefused) as error:
            raise as_refusal(error) from error
        done = await self._indexed(scope, [path])
        return f"{code(path)} is removed." if done else f"{code(path)} is removed. {_LATER}"

    async def _indexed(self, scope: Scope, paths: Collection[str]) -> Synced | None:
        """Index *paths*; None if that fails. The files are stored in any case."""
        try:
            return await self._index.index(scope, paths)
        except (AgentRuntimeError, OSError) as error:
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
            return None


def _unread(skipped: Mapping[str, str]) -> str:
    """Return a list of the files that are no documents, and why, for those who look for them in vain."""
    if not skipped:
        return ""
    lines = [f"{code(path)}: {why}" for path, why in sorted(skipped.items())[:SHOWN]]
    more = f"\n… and {format_number(len(skipped) - SHOWN)} more" if len(skipped) > SHOWN else ""
    return f"\n\nI cannot read these files:\n{bullet_list(lines)}{more}"


def _day(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d")


def document_path(wanted: str, name: str) -> str:
    """Return the path of a document from a file *name*, if its sender asked for *wanted*: a path, a folder (ending in
    ``/``), or nothing. A file that is no Markdown or text becomes its text, in a file that ends in ``.md``."""
    own = _NOT_IN_NAMES.sub("-", name).strip().lstrip(".") or "document"
    ending = PurePosixPath(own).suffix if PurePosixPath(own).suffix.lower() in SUFFIXES else ".md"
    stem = _ENDING.sub("", own).encode()[:LONGEST_STEM_BYTES].decode("utf-8", "ignore")
    own = (stem or "document") + ending
    if not wanted:
        return own
    if wanted.endswith("/"):
        return wanted + own
    return wanted if PurePosixPath(wanted).suffix.lower() in SUFFIXES else wanted + ".md"


def _result_text(result: _Result) -> str:
    if result.why_not:
        return f"{escape_markdown(result.name)} was not stored: {result.why_not}."
    if result.unchanged:
        return f"{code(result.path)} is already stored with the same text."
    left_out = f" What was read: {result.left_out}." if result.left_out else ""
    name, size = escape_markdown(result.name), size_in_words(result.size_bytes)
    return f"{name} is stored as {code(result.path)}, {size} of text.{left_out}"
