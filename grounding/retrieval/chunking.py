"""Documents to chunks, along the document's own structure. Pure.

A chunk is a contiguous slice of the document, so that neighbouring chunks can be joined again without loss. It never
crosses a heading that has text of its own before it, and never cuts a code fence or a table unless that alone is larger
than the cap; the later parts of a table that had to be cut carry its header as ``lead``.

A chat ("Anna: …", "user: …", or a log of this runtime) is cut between its messages instead, into smaller chunks: a
question stays with the beginning of its answer, and the later parts of a long message carry its speaker as ``lead``.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import PurePosixPath
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from grounding.retrieval.index import ANSWERING, CONTINUED

CHUNKER_VERSION = 4
"""A part of every document's fingerprint: with a new version all documents are cut and their words weighed again; a
chunk that stays the same is not embedded again. 2: the first terms of a chunk count for more. 3: no word has the stem
that another thread was making. 4: chats are cut between messages."""

CountTokens = Callable[[str], int]

_HEADING_MAX_CHARACTERS = 120
_FRONT_MATTER_MAX_LINES = 200
_TITLE = re.compile(r"title[ \t]*:[ \t]*(?P<quote>[\"']?)(?P<title>.*?)(?P=quote)[ \t]*$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*\s+")
_SPACE = re.compile(r"\s+")
_HEADING_MAX_MARKUP = 10 * _HEADING_MAX_CHARACTERS
_markdown = MarkdownIt("commonmark").enable("table")
# Markup inside paragraphs matters in headings alone, and takes most of the time: a megabyte of ``![`` takes half a
# minute.
_blocks_only = MarkdownIt("commonmark").enable("table")
_blocks_only.core.ruler.enableOnly(["normalize", "block"])
# The first parse collects the rules; a second thread would see only half of them.
_blocks_only.parse("once")
_markdown.parseInline("*once*")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of chunks in tokens: the target (a chunk may be a quarter larger, so that no tiny one is left), and how
    much of the text before is repeated."""

    target: int = 300
    overlap: int = 30


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice ``[start, end)`` (in characters) of the document ``path``; lines count from 1."""

    path: str
    title: str
    headings: tuple[str, ...]
    ordinal: int
    text: str
    lead: str
    start: int
    end: int
    first_line: int
    last_line: int
    id: str

    @property
    def heading(self) -> str:
        """The headings above the chunk, outermost first: ``Refunds › Windows``."""
        return " › ".join(self.headings)

    @property
    def indexed_text(self) -> str:
        """The embedded and searched text: title, headings and text, so that a chunk is found by its place too."""
        above = self.headings if self.headings[:1] == (self.title,) else (self.title, *self.headings)
        return "\n".join(part for part in (" › ".join(above), self.lead, self.text) if part)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A slice that is not cut further. A ``solid`` one (code, a table) is never repeated as overlap."""

    start: int
    end: int
    tokens: int
    solid: bool = False
    lead: str = ""


@dataclass(slots=True)
class _Section:
    headings: tuple[str, ...]
    pieces: list[_Piece]


def chunk_document(path: str, text: str, count: CountTokens, sizes: Sizes | None = None) -> list[Chunk]:
    """Return the chunks of the Markdown (for ``.txt``, plain) document *text* at *path*, in reading order.

    *count* gives the tokens of a string. Text without any word gives no chunk. Never raises, whatever the text.
    """
    sizes = sizes or Sizes()
    stem = PurePosixPath(path).stem
    if messages := _messages(text):
        title, groups = _chat(path, text, messages, count, sizes)
        return _number(path, title or stem, text, groups)
    if path.lower().endswith(".txt"):
        title, sections = stem, [_Section((), _paragraphs(text, count, sizes.target))]
    else:
        title, sections = _markdown_sections(text, count, sizes.target)
    return _number(path, title or stem, text, _pack(sections, sizes))


def section_text(path: str, text: str, heading: str) -> str | None:
    """Return the text of the document below *heading* (a chunk's, or the end of one) with all nested sections; None if
    there is no such heading. Without a heading: the text before the first one, or the whole document if there is
    none."""
    if path.lower().endswith(".txt"):
        return None if heading else text
    _, (preface, *sections) = _markdown_sections(text, lambda _: 0, 1)
    starts = [section.pieces[0].start for section in sections] + [len(text)]
    if not heading:
        return text[: starts[0]].strip() if preface.pieces else text
    wanted = tuple(heading.split(" › "))
    exact = (number for number, section in enumerate(sections) if section.headings == wanted)
    ending = (number for number, section in enumerate(sections) if section.headings[-len(wanted) :] == wanted)
    number = next(chain(exact, ending), None)
    if number is None:
        return None
    whole = sections[number].headings
    after = (later for later in range(number + 1, len(sections)) if sections[later].headings[: len(whole)] != whole)
    return text[starts[number] : starts[next(after, len(sections))]].strip()


def _markdown_sections(text: str, count: CountTokens, cap: int) -> tuple[str, list[_Section]]:
    lines = _newline_lines(text)
    offsets = list(accumulate((len(line) for line in lines), initial=0))
    title, skip = _front_matter(lines)
    references: dict[str, Any] = {}
    tokens = _blocks_only.parse("".join(_blank(lines, skip)), references)
    blocks = _top_blocks(tokens, references, len(lines), skip)
    sections = [_Section((), [])]
    open_headings: list[tuple[int, str]] = []
    for first, last, token, heading in blocks:
        start, end = offsets[first], offsets[last]
        if token is not None and token.type == "heading_open":
            level = int(token.tag[1])
            open_headings = [item for item in open_headings if item[0] < level]
            open_headings.append((level, heading))
            title = title or (heading if level == 1 else "")
            sections.append(_Section(tuple(name for _, name in open_headings if name), []))
            pieces = _split_prose(text, start, end, count, cap)
        else:
            pieces = _pieces_of(text, offsets, first, last, token, count, cap)
        sections[-1].pieces += pieces
    return title, sections


def _newline_lines(text: str) -> list[str]:
    """Return lines as Markdown counts them: `str.splitlines` would also break at characters such as U+2028."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _blank(lines: list[str], skip: int) -> list[str]:
    """Return *lines* with the front matter emptied, so that line numbers stay, and lone CRs made harmless."""
    return ["\n"] * skip + [line.replace("\r", " ").replace("\0", " ") for line in lines[skip:]]


def _front_matter(lines: list[str]) -> tuple[str, int]:
    """Return the title in a YAML block at the very top (or nothing), and how many lines that block has."""
    if not lines or lines[0].rstrip() not in ("---", "\ufeff---"):
        return "", 0
    title = ""
    for number, line in enumerate(lines[1:_FRONT_MATTER_MAX_LINES], start=1):
        if line.rstrip() in ("---", "..."):
            return title[:_HEADING_MAX_CHARACTERS], number + 1
        if match := _TITLE.match(line.rstrip()):
            title = match["title"].strip()
    return "", 0


def _top_blocks(
    tokens: list[Token], references: dict[str, Any], line_count: int, skip: int
) -> Iterator[tuple[int, int, Token | None, str]]:
    """Yield the outermost blocks as (first line, line after the last, token, heading text); no line is lost between."""
    tops = [
        (index, token) for index, token in enumerate(tokens) if token.level == 0 and token.map and token.nesting >= 0
    ]
    starts = [token.map[0] if token.map else 0 for _, token in tops]
    if not tops:
        yield skip, line_count, None, ""
        return
    if starts[0] > skip:
        yield skip, starts[0], None, ""
    for (index, token), first, following in zip(tops, starts, [*starts[1:], line_count], strict=True):
        heading = _plain(tokens[index + 1].content, references) if token.type == "heading_open" else ""
        yield first, following, token, heading


def _plain(markup: str, references: dict[str, Any]) -> str:
    """Return a heading's words without their markup; *references* are the link definitions of the document."""
    parsed = _markdown.parseInline(markup[:_HEADING_MAX_MARKUP], references)
    inside = [child for inline in parsed for child in inline.children or []]
    words = "".join(child.content or " " for child in inside if child.type != "html_inline")
    return _SPACE.sub(" ", words).strip()[:_HEADING_MAX_CHARACTERS].strip()


def _pieces_of(
    text: str, offsets: Sequence[int], first: int, last: int, token: Token | None, count: CountTokens, cap: int
) -> list[_Piece]:
    start, end = offsets[first], offsets[last]
    kind = token.type if token is not None else "text"
    if kind in ("fence", "code_block", "table_open"):
        tokens = count(text[start:end])
        if tokens <= cap:
            return [_Piece(start, end, tokens, solid=True)]
        lead = text[start : offsets[min(first + 2, last)]] if kind == "table_open" else ""
        body = _split_lines(text, offsets, first, last, count, max(cap - count(lead), cap // 2, 1))
        return [
            _Piece(piece.start, piece.end, piece.tokens, solid=True, lead=lead if number else "")
            for number, piece in enumerate(body)
        ]
    if kind in ("bullet_list_open", "ordered_list_open", "blockquote_open", "html_block"):
        return _split_lines(text, offsets, first, last, count, cap)
    return _split_prose(text, start, end, count, cap)


def _split_lines(
    text: str, offsets: Sequence[int], first: int, last: int, count: CountTokens, cap: int
) -> list[_Piece]:
    """Pack whole lines into pieces of at most *cap* tokens; a larger line is cut as prose."""
    pieces: list[_Piece] = []
    for line in range(first, last):
        for piece in _split_prose(text, offsets[line], offsets[line + 1], count, cap):
            if pieces and pieces[-1].tokens + piece.tokens <= cap:
                before = pieces.pop()
                pieces.append(_Piece(before.start, piece.end, before.tokens + piece.tokens))
            else:
                pieces.append(piece)
    return pieces


def _split_prose(text: str, start: int, end: int, count: CountTokens, cap: int) -> list[_Piece]:
    """Halve *text* between *start* and *end* at natural edges until every piece has at most *cap* tokens."""
    todo, pieces = [(start, end)], []
    while todo:
        first, last = todo.pop()
        tokens = count(text[first:last])
        if tokens <= cap or last - first <= 1:
            pieces.append(_Piece(first, last, tokens))
            continue
        middle = _edge_near_middle(text, first, last)
        todo += [(middle, last), (first, middle)]
    return [piece for piece in pieces if piece.end > piece.start]


def _edge_near_middle(text: str, start: int, end: int) -> int:
    """Return the position of the best edge in the middle half: a paragraph's, line's, sentence's or word's end."""
    middle, quarter = (start + end) // 2, max((end - start) // 4, 1)
    low, high = max(middle - quarter, start + 1), min(middle + quarter, end - 1)
    window = text[low:high]
    for pattern in (re.compile(r"\n\s*\n"), re.compile(r"\n"), _SENTENCE_END, _SPACE):
        edges = [low + match.end() for match in pattern.finditer(window)]
        inside = [edge for edge in edges if start < edge < end]
        if inside:
            return min(inside, key=lambda edge: abs(edge - middle))
    return middle


def _paragraphs(text: str, count: CountTokens, cap: int) -> list[_Piece]:
    starts = [0, *(match.end() for match in re.finditer(r"\n[ \t]*\n\s*", text))]
    pieces: list[_Piece] = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        pieces += _split_prose(text, start, end, count, cap)
    return pieces


def _pack(sections: Sequence[_Section], sizes: Sizes) -> Iterator[tuple[tuple[str, ...], list[_Piece]]]:
    """Yield groups of pieces, each a chunk with its headings, filled up to the target within a section.

    A heading with next to nothing under it goes down into the subsection that follows it.
    """
    carried: list[_Piece] = []
    for number, section in enumerate(sections):
        pieces = carried + section.pieces
        carried = []
        following = sections[number + 1] if number + 1 < len(sections) else None
        depth = len(section.headings)
        is_parent = (
            following is not None and len(following.headings) > depth and following.headings[:depth] == section.headings
        )
        if is_parent and sum(piece.tokens for piece in pieces) <= sizes.target // 6:
            carried = pieces
            continue
        for group in _fill(pieces, sizes):
            yield section.headings, group


def _fill(pieces: Sequence[_Piece], sizes: Sizes) -> Iterator[list[_Piece]]:
    """Yield groups up to the target; a rest of next to nothing joins its neighbour instead."""
    small, loose = sizes.target // 6, sizes.target + sizes.target // 4
    group: list[_Piece] = []
    size = 0
    for number, piece in enumerate(pieces):
        rest = sum(later.tokens for later in pieces[number:]) if number + 4 > len(pieces) else loose
        fits = size + piece.tokens <= sizes.target
        joins = (size <= small or rest <= small) and size + piece.tokens <= loose
        if group and (piece.lead or not (fits or joins)):
            yield group
            group = [] if piece.lead else _overlap(group, sizes, piece)
            size = sum(repeated.tokens for repeated in group)
        group.append(piece)
        size += piece.tokens
    if group:
        yield group


def _overlap(group: Sequence[_Piece], sizes: Sizes, following: _Piece) -> list[_Piece]:
    """Return the last pieces of *group* that are small enough to be repeated before *following*."""
    room = min(sizes.overlap, sizes.target - following.tokens)
    repeated: list[_Piece] = []
    for piece in reversed(group[1:]):
        if piece.solid or piece.tokens > room:
            break
        repeated.insert(0, piece)
        room -= piece.tokens
    return repeated


# Chats


CHAT_SHARE = 0.5
"""A chat's chunks have this share of the size of others: a message says more by itself than a paragraph does, and what
is around it is often about something else."""
LEAST_MESSAGES = 6
"""Fewer lines such as "Note: …" do not make a text a chat."""
MOST_SPEAKERS = 1 / 3
"""A chat has at most so many speakers for each message; else "name: …" stands for a list of fields."""
LEAST_CHANGES = 1 / 3
"""So often, at least, another speaker follows in a chat."""
_SPOKEN = re.compile(
    r"""^(?:\[?\d[\d/.:,TZ -]{3,24}(?:[AaPp][Mm])?\]?\ *(?:-\ *)?)?     # a time, perhaps
        (?:\*\*)?(?P<speaker>[^\W\d_][\w.'’ -]{0,38}?)(?:\*\*)?\ *:(?:\*\*)?\ +(?=\S)
      | ^\#\#\ \S+\ `(?:INBOUND|(?P<reply>OUTBOUND)|TOOL)`\ \S+\n-\ actor:\ `(?P<actor>.*)`$  # transcript/markdown.py
    """,
    re.MULTILINE | re.VERBOSE,
)
MOST_ABOVE = 1000
"""So many characters may stand above the first message: a title, who takes part. Below more than that somebody only
quotes a chat."""
ROLES = ANSWERING | {"user", "human", "system"}
"""If two of them speak, nobody else does: "Example: …" is a line of an answer then."""
_FENCES = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_HEADING = re.compile(r"#{1,6}[ \t]+(?P<words>.*)")


_Message = tuple[int, int, str, tuple[int, str]]
"""Where a message of a chat begins and ends, the heading just above it, and what `_messages` says of it."""


def _messages(text: str) -> list[tuple[int, str]]:
    """Return where each message of a chat begins and who speaks; nothing if *text* is no chat."""
    fences = [match.start() for match in _FENCES.finditer(text)]
    found = [
        (match.start(), match["speaker"] or ("assistant" if match["reply"] else match["actor"]))
        for match in _SPOKEN.finditer(text)
        if not bisect(fences, match.start()) % 2  # what code says is no message
    ]
    counts = Counter(speaker for _, speaker in found)
    often = {speaker for speaker, number in counts.items() if number > 1}
    roles = {speaker for speaker in often if speaker.lower() in ROLES}
    found = [(start, speaker) for start, speaker in found if speaker in (roles if len(roles) > 1 else often)]
    changes = sum(before != after for (_, before), (_, after) in pairwise(found))
    speakers = len({speaker for _, speaker in found})
    is_chat = (
        len(found) >= LEAST_MESSAGES
        and found[0][0] <= MOST_ABOVE
        and 1 < speakers <= max(len(found) * MOST_SPEAKERS, 2)
        and changes >= len(found) * LEAST_CHANGES
    )
    return found if is_chat else []


def _chat(
    path: str, text: str, messages: Sequence[tuple[int, str]], count: CountTokens, sizes: Sizes
) -> tuple[str, Iterator[tuple[tuple[str, ...], list[_Piece]]]]:
    """Return the title of a chat, and groups of pieces, each a chunk with its headings."""
    target = max(int(sizes.target * CHAT_SHARE), 1)
    is_plain = path.lower().endswith(".txt")
    title, skipped = ("", 0) if is_plain else _front_matter(_newline_lines(text))
    above = sum(map(len, _newline_lines(text)[:skipped]))
    starts, names = [above], []
    for (start, _), after in pairwise([(above, ""), *messages]):
        begin, name = (after[0], "") if is_plain else _under_heading(text, start, after[0])
        starts.append(max(begin, above))
        names.append(name)
    del starts[1]  # what stands above the first message belongs to it

    def pieces_of(first: int, last: int) -> list[_Piece]:
        whole = _Piece(first, last, count(text[first:last]))
        if whole.tokens <= target:
            return [whole]
        if is_plain:
            parts = _paragraphs(text[first:last], count, target)
        else:
            parts = [
                piece for section in _markdown_sections(text[first:last], count, target)[1] for piece in section.pieces
            ]
        return [replace(piece, start=piece.start + first, end=piece.end + first) for piece in parts]

    def groups() -> Iterator[tuple[tuple[str, ...], list[_Piece]]]:
        heading, group, size = "", list[_Piece](), 0

        def is_full(tokens: int) -> bool:
            joins = size <= target // 2 and size + tokens <= target + target // 4
            return bool(group) and size + tokens > target and not joins

        for exchange in _exchanges([*zip(starts, [*starts[1:], len(text)], names, messages, strict=True)]):
            pieces = [(name, speaker, pieces_of(start, end)) for start, end, name, (_, speaker) in exchange]
            tokens = sum(piece.tokens for *_, of_message in pieces for piece in of_message)
            if group and (pieces[0][0] or is_full(tokens)):
                yield ((heading,) if heading else ()), group
                group, size = [], 0
            for name, speaker, of_message in pieces:
                heading = name or heading
                for number, piece in enumerate(of_message):
                    if is_full(piece.tokens):
                        yield ((heading,) if heading else ()), group
                        group, size = [], 0
                    if number and not group:
                        piece = replace(piece, lead=piece.lead or f"{speaker}: {CONTINUED}")
                    group.append(piece)
                    size += piece.tokens
        if group:
            yield ((heading,) if heading else ()), group

    return title or next(filter(None, names), ""), groups()


def _exchanges(messages: Sequence[_Message]) -> Iterator[list[_Message]]:
    """Yield each message of a chat; what an assistant answers, together with what it answers."""
    exchange: list[_Message] = []
    for message in messages:
        *_, name, (_, speaker) = message
        if exchange and (name or speaker.lower() not in ANSWERING):
            yield exchange
            exchange = []
        exchange.append(message)
    yield exchange


def _under_heading(text: str, after: int, start: int) -> tuple[int, str]:
    """Return where the message at *start* begins with the heading just above it, and that heading, if there is one
    *after* the message before."""
    before = text[after:start].rstrip()
    match = _HEADING.fullmatch(before.rpartition("\n")[2])
    if match is None:
        return start, ""
    return after + len(before) - len(match[0]), match["words"].strip()[:_HEADING_MAX_CHARACTERS]


def _number(path: str, title: str, text: str, groups: Iterator[tuple[tuple[str, ...], list[_Piece]]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    seen: dict[str, int] = {}
    line, at = 1, 0
    for headings, group in groups:
        start, end = group[0].start, group[-1].end
        body = text[start:end]
        if not body.strip():
            continue
        start += len(body) - len(body.lstrip("\r\n"))
        body = text[start:end].rstrip()
        if start >= at:
            line += text.count("\n", at, start)
        else:
            line -= text.count("\n", start, at)
        at = start
        digest = _digest(path, title, *headings, group[0].lead, body)
        seen[digest] = seen.get(digest, 0) + 1
        identity = digest if seen[digest] == 1 else _digest(digest, str(seen[digest]))
        last_line = line + body.count("\n")
        chunks.append(
            Chunk(
                path, title, headings, len(chunks), body, group[0].lead, start, start + len(body),
                line, last_line, identity,
            )
        )  # fmt: skip
    return chunks


def _digest(*parts: str) -> str:
    """Return SHA-256, in hexadecimal, of *parts* with their lengths, so that different parts never agree."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()
