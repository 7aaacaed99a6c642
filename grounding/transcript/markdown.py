"""The Markdown form of a conversation's log, for people to read and for the runtime to read back.

All but `read_log` is pure. A message's text is a block quote, so that none of its lines can pass for an entry's header.
An author's name is one line in a code span.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from connectors.message import ConversationKey, file_stem
from grounding.transcript.entry import EntryRole, TranscriptEntry

_HEADER = re.compile(r"^## (\S+) `(INBOUND|OUTBOUND|TOOL)` (\S+)$")
# Characters at which Markdown or an editor breaks a line without a line feed. CR LF is one line end.
_LINE_END = re.compile("\r(?!$)|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_QUOTED_LINE_END = re.compile("([\r\v\f\x1c-\x1e\x85\u2028\u2029])> ")
_TITLE = re.compile(r"# Chat Log\n\n- connector: `(.*)`\n- external_id: `(.*)`\n")
_FIELD = re.compile(r"^- (actor|user|message|made of): `(.*)`$")


class UnreadableLog(Exception):
    """The file is no chat log of this conversation; the text says why."""


def path(key: ConversationKey) -> PurePosixPath:
    """Return the path of *key*'s log under DATA_DIR. Different conversations never share a file."""
    return PurePosixPath(
        "workspaces", key.workspace_id, "logs", "chats", file_stem(key.connector), file_stem(key.external_id) + ".md"
    )


def title(key: ConversationKey) -> str:
    """Return the header of a log file."""
    return f"# Chat Log\n\n- connector: `{_span(key.connector)}`\n- external_id: `{_span(key.external_id)}`\n"


def key_of(text: str, workspace_id: str) -> ConversationKey | None:
    """Return the conversation of a log file's *text* by its `title`; None if it has no valid one."""
    match = _TITLE.match(text)
    if match is None:
        return None
    try:
        return ConversationKey(workspace_id, _unspan(match[1]), _unspan(match[2]))
    except ValueError:
        return None


def render(entry: TranscriptEntry) -> str:
    """Return one entry as text to append to the file."""
    quoted = "\n".join("> " + _LINE_END.sub(lambda match: match[0] + "> ", line) for line in entry.text.split("\n"))
    made_of = f"- made of: `{_span(entry.foreign)}`\n" if entry.foreign else ""
    return (
        f"\n## {entry.at} `{entry.role.value.upper()}` {entry.turn_id}\n"
        f"- actor: `{_span(entry.author)}`\n- user: `{_span(entry.user)}`\n- message: `{_span(entry.message_id)}`\n"
        f"{made_of}\n{quoted}\n"
    )


def without_turn(text: str, turn_id: str) -> str:
    """Return a log file's *text* without the entries of *turn_id*."""
    blocks = re.split(r"(?<=\n)(?=\n## )", text)
    headers = [_HEADER.match(block.removeprefix("\n").partition("\n")[0]) for block in blocks]
    return "".join(
        block for block, header in zip(blocks, headers, strict=True) if header is None or header[3] != turn_id
    )


def read(text: str) -> list[TranscriptEntry]:
    """Return the entries of a log file, in order."""
    entries: list[TranscriptEntry] = []
    header: re.Match[str] | None = None
    fields: dict[str, str] = {}
    quoted: list[str] = []
    for line in [*text.split("\n"), "## end"]:
        if line.startswith("## "):
            if header:
                entries.append(
                    TranscriptEntry(
                        role=EntryRole(header[2].lower()),
                        text="\n".join(quoted),
                        turn_id=header[3],
                        at=header[1],
                        author=fields.get("actor", ""),
                        user=fields.get("user", ""),
                        message_id=fields.get("message", ""),
                        foreign=fields.get("made of", ""),
                    )
                )
            header, fields, quoted = _HEADER.match(line), {}, []
        elif line.startswith("> "):
            quoted.append(_QUOTED_LINE_END.sub(lambda match: match[1], line[2:]))
        elif match := _FIELD.match(line):
            fields[match[1]] = _unspan(match[2])
    return entries


def read_log(data_dir: Path, file: Path, workspace_id: str) -> tuple[ConversationKey, list[TranscriptEntry]]:
    """Return the conversation of the log *file* and its entries. Blocking.

    An entry that an interrupted write left incomplete at the end is dropped. Raises `UnreadableLog` and `OSError`.
    Symbolic links are not followed, and a file that was moved or copied is refused: its path must be that of its
    conversation.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        raw = opened.read()
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UnreadableLog(f"it is not UTF-8 at byte {error.start}") from error
    key = key_of(text, workspace_id)
    if key is None:
        raise UnreadableLog("it does not begin as a chat log does")
    if data_dir / path(key) != file:
        raise UnreadableLog(f"it is the log of {key.context_id}, and has the name of another")
    try:
        entries = read(text)
    except ValueError as error:
        raise UnreadableLog(str(error)) from error
    return key, entries if text.endswith("\n") else entries[:-1]


def _span(text: str) -> str:
    """Return *text* on one line and without backticks, reversibly."""
    return re.sub(r"[`%\x00-\x1f\x7f\x85\u2028\u2029]", lambda match: f"%{ord(match[0]):04X}", text)


def _unspan(text: str) -> str:
    return re.sub(r"%([0-9A-F]{4})", lambda match: chr(int(match[1], 16)), text)
