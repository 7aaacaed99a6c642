"""Documents to chunks, along the document's own structure. Pure.

A chunk is a contiguous slice of the document, so that neighbouring chunks can be joined again without
loss. It never crosses a heading that has text of its own before it, and never cuts a code fence or a
table unless that alone is larger than the cap; the rows of a table that had to be cut carry its header
along as ``lead``.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import PurePosixPath
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from connectors.message import ConversationKey, Scope
from grounding.retrieval.bm25 import SparseVector, encode_document
from grounding.retrieval.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.retrieval.index import Entry, Hit, Kind, Passage, PassageIndex, Source
from grounding.retrieval.relevance import Floor, fitting, floor_for
from grounding.retrieval.search import query_terms, query_vectors, shorten

CHUNKER_VERSION = 3
"""Goes into every document's fingerprint: a new version means that all documents are cut again, and their words weighed
again; what is the same chunk is not embedded again. 2: the first terms of a chunk count for more.
3: no word has the stem of one that another thread had at hand."""

CountTokens = Callable[[str], int]

_HEADING_MAX_CHARACTERS = 120
_FRONT_MATTER_MAX_LINES = 200
_TITLE = re.compile(r"title[ \t]*:[ \t]*(?P<quote>[\"']?)(?P<title>.*?)(?P=quote)[ \t]*$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*\s+")
_SPACE = re.compile(r"\s+")
_HEADING_MAX_MARKUP = 10 * _HEADING_MAX_CHARACTERS
_markdown = MarkdownIt("commonmark").enable("table")
# What stands inside of paragraphs matters in headings alone, and takes most of the time: a megabyte of ``![``
# is half a minute.
_blocks_only = MarkdownIt("commonmark").enable("table")
_blocks_only.core.ruler.enableOnly(["normalize", "block"])
# The first parse gathers the rules, and another thread's would find half of them.
_blocks_only.parse("once")
_markdown.parseInline("*once*")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of chunks in tokens: what to aim at (a chunk may be a quarter larger, to leave no crumbs),
    and how much of the text before is repeated."""

    target: int = 300
    overlap: int = 30


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice ``[start, end)`` (in characters) of the document *path*, lines counted from 1."""

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
        """What is embedded and searched: title, headings and text, so that a chunk is found by its place too."""
        above = self.headings if self.headings[:1] == (self.title,) else (self.title, *self.headings)
        return "\n".join(part for part in (" › ".join(above), self.lead, self.text) if part)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A slice that is not cut further. ``solid`` ones (code, tables) are never repeated as overlap."""

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
    """The chunks of the Markdown (or, for ``.txt``, plain) document *text* at *path*, in reading order.

    *count* gives the tokens of a string. Text without any word gives no chunk. Never raises on any text.
    """
    sizes = sizes or Sizes()
    stem = PurePosixPath(path).stem
    if path.lower().endswith(".txt"):
        title, sections = stem, [_Section((), _paragraphs(text, count, sizes.target))]
    else:
        title, sections = _markdown_sections(text, count, sizes.target)
    return _number(path, title or stem, text, _pack(sections, sizes))


def section_text(path: str, text: str, heading: str) -> str | None:
    """The text of the document below *heading* (a chunk's, or the end of one), with all that is nested below it; None
    where the document has none. Without a heading: what stands before the first one, or the whole where nothing
    does."""
    if path.lower().endswith(".txt"):
        return None if heading else text
    _, (preface, *sections) = _markdown_sections(text, lambda _: 0, 1)
    starts = [one.pieces[0].start for one in sections] + [len(text)]
    if not heading:
        return text[: starts[0]].strip() if preface.pieces else text
    wanted = tuple(heading.split(" › "))
    exact = (number for number, one in enumerate(sections) if one.headings == wanted)
    ending = (number for number, one in enumerate(sections) if one.headings[-len(wanted) :] == wanted)
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
    """Lines as Markdown counts them: `str.splitlines` would also break at characters such as U+2028."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _blank(lines: list[str], skip: int) -> list[str]:
    """*lines* with the front matter emptied, so that line numbers stay, and lone CRs made harmless."""
    return ["\n"] * skip + [line.replace("\r", " ").replace("\0", " ") for line in lines[skip:]]


def _front_matter(lines: list[str]) -> tuple[str, int]:
    """The title that a YAML block at the very top names (or nothing), and how many lines that block has."""
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
    """Outermost blocks as (first line, line after the last, token, heading text); between them no line is lost."""
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
    """A heading's words without their markup; *references* are the link definitions of the document."""
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
    """Whole lines packed into pieces of at most *cap* tokens; a line that is larger is cut as prose."""
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
    """*text* between *start* and *end* halved at natural edges until every piece has at most *cap* tokens."""
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
    """The position of the best edge in the middle half: a paragraph's, line's, sentence's or word's end."""
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
    """Groups of pieces, each a chunk: filled up to the target within a section.

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
    """Groups up to the target; one that would be left with next to nothing joins its neighbour instead."""
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
    """The last pieces of *group* that are small enough to be said again before *following*."""
    room = min(sizes.overlap, sizes.target - following.tokens)
    repeated: list[_Piece] = []
    for piece in reversed(group[1:]):
        if piece.solid or piece.tokens > room:
            break
        repeated.insert(0, piece)
        room -= piece.tokens
    return repeated


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
    """SHA-256, in hexadecimal, of *parts* with their lengths, so that different parts never agree."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


# ---- context field ----
#
# The context document of each conversation as one field that can be searched, from inside its own context only.
#
# The latest version alone is there: it takes the place of the one before.


HEADING = "Context document"
EMBEDDED_CHARACTERS = 8000
"""What of a document is embedded: models take some thousand tokens. Its words are all indexed."""
_ID = "latest"


class ContextField:
    """Puts context documents into the index and finds them. Scopes must name a context."""

    def __init__(
        self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None, words_alone: bool = False
    ) -> None:
        """*words_alone* are searched where the question cannot be embedded."""
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._words_alone = words_alone

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """Make *text*, written *at* (RFC 3339), what is found of *key*'s document.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        (dense,) = await self._embedder.embed_documents([text[:EMBEDDED_CHARACTERS]])
        sparse = await asyncio.to_thread(encode_document, text)
        passage = Passage(_ID, Kind.CONTEXT, key.context_id, text, heading=HEADING, end=len(text), said_at=at)
        entries = [Entry(passage, dense, sparse)]
        await self._index.replace([Source(key.scope, Kind.CONTEXT, key.context_id, entries)])

    async def forget(self, key: ConversationKey) -> None:
        """Let nothing of *key*'s document be found. Raises `IndexUnavailable`."""
        await self._index.delete(key.scope, Kind.CONTEXT)

    async def among(self, scope: Scope, query: str, hits: Sequence[Hit], top_k: int, *, explain: bool) -> list[Hit]:
        """*hits*, documents of the workspace for *query*, with the scope's context document where it belongs.

        It is there if it holds a word of the query, or is above the relevance floor. Fused scores of two searches
        cannot be compared: it stands before the first hit that is less relevant by `Floor.relevance`, with that
        one's score.
        Hits need their arms. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        dense, sparse = await self._vectors(query)
        found = await self._index.search(scope, Kind.CONTEXT, dense, sparse, 1, explain=explain, scores=True)
        floor = fitting(self._floor, found)
        if not found or not (found[0].sparse or floor.keep(query, found, 1)):
            return list(hits)
        corpus = await self._index.estimate(scope, Kind.DOCUMENT)
        return await asyncio.to_thread(_placed, floor, found[0], query, hits, top_k, corpus)

    async def _vectors(self, query: str) -> tuple[Vector | None, SparseVector]:
        try:
            return await query_vectors(self._embedder, query)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        return None, await query_terms(query)


def _placed(floor: Floor, own: Hit, query: str, hits: Sequence[Hit], top_k: int, corpus: int) -> list[Hit]:
    relevance = floor.relevance(query, own, 1)
    lower = (place for place, hit in enumerate(hits) if floor.relevance(query, hit, corpus) < relevance)
    before = next(lower, len(hits))
    neighbour = hits[min(before, len(hits) - 1)] if hits else own
    return [*hits[:before], own._replace(score=neighbour.score), *hits[before:]][:top_k]
