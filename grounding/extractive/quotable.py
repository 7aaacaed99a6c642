"""Split the sources in a prompt into the units that can be quoted: sentences, list items and table rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from grounding.prompt import escape_label

_CONVERSATION = ("conversation_summary", "earlier_turns", "recent_conversation")
MOST_UNITS = 4000
"""The rest of very long material is not read."""

_BLOCK = re.compile(
    r"^<(?P<tag>conversation_summary|recent_conversation|earlier_turns|workspace_passages|memory_records|standing_rules"
    r"|approach|codex|environment|good_answers|now|tool_result|global-context|censors)>\n(?P<body>.*?)^</(?P=tag)>$",
    re.MULTILINE | re.DOTALL,
)
"""A block of the prompt; see `grounding.prompt_input.sections`, which keeps any other text from looking like one."""
_LABEL = re.compile(r"^\[([^\[\]\n]+)\]$")
_FILE = re.compile(r"^=== (.+)$")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,3}[.)])\s+")
_RULE = re.compile(r"^\s*\|?[\s:|-]*-[\s:|-]*\|?\s*$")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_LINE_NUMBER = re.compile(r"^\d+-(?:\*-)?")
_RECORD = re.compile(
    r"^- (?:decision|fact|procedure|episode|item)(?: \S+)?(?: \((?P<about>[^()\n]*)\))?:(?: |$)", re.MULTILINE
)
"""What stands before a record: its type, perhaps its id, day and state."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_SENTENCE = re.compile(
    r"(?<=[.!?…])[*_\"'”»)]*\s+(?=[*_\"'“«(`#]*[^\W\d_a-zà-ÿ])|(?<=[.!?…])\s+(?=[`\d*_])|(?<=[。！？])"
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|z\.\s?B|d\.\s?h|p\.\s?ex|bzw|etc|ca|approx|no|nr|dr|mr|mrs|ms|st|vs|art|abs|cf|fig|[A-Z])|\b\d{1,2})\.$",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"[^.!?\n]*\?")

Form = Literal["prose", "item", "row", "code"]


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest part that is quoted.

    ``text`` is the text in the source, ``plain`` the same without Markdown. ``heading`` is the heading above it,
    ``topic`` the name of the whole source, ``lead`` the header of its table or the sentence before its list. ``source``
    is the number of its source, ``section`` that of its heading. ``header`` are the first two lines of a row's table.
    """

    text: str
    plain: str
    label: str
    heading: str
    topic: str
    lead: str
    source: int
    section: int
    form: Form = "prose"
    header: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The question of a prompt, and its sources, each with its citation and its text."""

    question: str
    sources: tuple[tuple[str, str], ...]


def read_prompt(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """Return the question of *messages* and their sources, the passages of documents first."""
    system = "\n\n".join(text_of(one) for one in messages if one["role"] == "system")
    by_user = [text_of(one) for one in messages if one["role"] == "user"]
    user = by_user[-1] if by_user else ""
    blocks = [(match["tag"], match["body"]) for match in (*_BLOCK.finditer(user), *_BLOCK.finditer(system))]
    question, quoted = _question_in(user)
    order = (
        "attached",
        "workspace_passages",
        "memory_records",
        "codex",
        *_CONVERSATION,
        "global-context",
        "standing_rules",
    )
    sources = [(rank, source) for tag, body in blocks for rank, source in _sources(tag, body, order)]
    sources += [(0, ("", quoted))] if quoted else []
    return Prompt(question, tuple(source for _, source in sorted(sources, key=lambda one: one[0])))


def _sources(tag: str, body: str, order: Sequence[str]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the sources in the *body* of a block, each with its rank, citation and text."""
    if tag not in order:
        return
    rank = order.index(tag)
    if tag in ("workspace_passages", "codex"):
        begins = _LABEL if tag == "workspace_passages" else _FILE
        label, lines = "", list[str]()
        for line in body.splitlines():
            if match := begins.match(line):
                if label:
                    yield rank, (label, "\n".join(lines))
                label, lines = f"[{match[1]}]", []
            else:
                lines.append(line)
        if label:
            yield rank, (label, "\n".join(lines))
    elif tag == "standing_rules":
        yield rank, ("(memory)", body.partition("\n")[2])
    elif tag == "memory_records":
        yield from ((rank, record) for record in _records(body))
    elif tag == "global-context":
        known = [_LINE_NUMBER.sub("- ", line) for line in body.splitlines() if _LINE_NUMBER.match(line)]
        yield rank, ("(memory)", "\n".join(known))
    else:
        yield rank, ("(conversation)", "\n\n".join(_said_by_people(body)))


def _records(body: str) -> Iterator[tuple[str, str]]:
    """Yield the citation and the text of each record; `grounding.prompt.layers.record_line` writes them."""
    heads = list(_RECORD.finditer(body))
    for head, after in zip_longest(heads, heads[1:]):
        text = body[head.end() : after.start() if after else len(body)].strip()
        if not text:
            continue
        if text[-1].isalnum():
            text += "."
        details = [detail for detail in (head["about"] or "").split(", ") if detail and not _DAY.fullmatch(detail)]
        yield f"({', '.join(['memory', *details])})", text[0].upper() + text[1:]


def _said_by_people(body: str) -> Iterator[str]:
    """Yield the lines of a conversation without the assistant's own, which are quotations."""
    is_own = False
    for line in body.splitlines():
        if not line.startswith("  "):
            is_own = line.startswith("assistant:")
        if not is_own and line.strip() and not _LABEL.match(line) and "./agent-runtime setup" not in line:
            yield line.strip()


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message in OpenAI's format."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n\n".join(str(part["text"]) for part in content if part.get("type") == "text")


def _question_in(user: str) -> tuple[str, str]:
    """Return the question in the *user* message, and the quotes beside it.

    They are in front of all blocks or behind them, there perhaps after the hint of a platform.
    """
    spans = [match.span() for match in _BLOCK.finditer(user)]
    first, last = (spans[0][0], spans[-1][1]) if spans else (len(user), 0)
    text = user[:first].strip() or user[last:].strip()
    quoted = "\n".join(line[2:] for line in text.splitlines() if line.startswith("> "))
    parts = [part.strip() for part in text.split("\n\n") if part.strip() and "\n> " not in part]
    asked = [match[0].strip() for part in parts for match in _QUESTION.finditer(part)]
    return " ".join(asked[-2:]) if asked else (parts[-1] if parts else text), quoted


def units_of(sources: Sequence[tuple[str, str]]) -> list[Unit]:
    """Return the sentences, list items and rows of *sources*, in their order."""
    units: list[Unit] = []
    for number, (label, text) in enumerate(sources):
        units += _Reader(label, number).read(text)
        if len(units) >= MOST_UNITS:
            break
    return units


class _Reader:
    """Splits the Markdown of one source."""

    def __init__(self, label: str, source: int) -> None:
        self._label = self._own_label = label
        inside = label.strip("[]").split(" › ")
        self._source = inside[0]
        self._topic = " ".join(inside[:-1] or inside)
        self._heading = inside[-1] if len(inside) > 1 else ""
        self._number = source
        self._section = 0
        self._units: list[Unit] = []
        self._paragraph: list[str] = []
        self._item = ""
        self._header: list[str] = []
        self._lead = ""

    def read(self, text: str) -> list[Unit]:
        fence = ""
        code: list[str] = []
        for line in text.splitlines():
            opened = _FENCE.match(line)
            if fence:
                code.append(line)
                if opened and opened[1].startswith(fence):
                    self._add("\n".join(code), " ".join(code[1:-1]), "code")
                    fence = ""
            elif opened:
                self._end()
                fence, code = opened[1], [line]
            else:
                self._take(line)
        self._end()
        return self._units

    def _take(self, line: str) -> None:
        if heading := _HEADING.match(line):
            self._end()
            self._heading, self._lead = _plain(heading[1]), ""
            if self._label.startswith("["):
                below = escape_label(self._heading)
                is_its_own = self._own_label.endswith(f"› {below}]")
                self._label = self._own_label if is_its_own else f"[{self._source} › {below}]"
            self._section += 1
        elif "|" in line and line.lstrip().startswith("|"):
            if not self._header:
                self._end()
            self._row(line)
        elif not line.strip():
            self._end()
        elif match := _ITEM.match(line):
            self._end_item()
            self._end_paragraph()
            self._item, self._paragraph = match[0], [line[match.end() :]]
        else:
            self._paragraph.append(line.strip())

    def _row(self, line: str) -> None:
        if len(self._header) < 2:
            self._header.append(line.strip())
            if len(self._header) == 2 and not _RULE.match(line):
                self._header = [self._header[0], re.sub(r"[^|]+", "---", self._header[0])]
                self._row(line)
            return
        cells = [_plain(cell) for cell in line.strip().strip("|").split("|")]
        names = [_plain(cell) for cell in self._header[0].strip("|").split("|")]
        self._add(line.strip(), ", ".join(cells), "row", lead=" ".join(names), header="\n".join(self._header))

    def _end(self) -> None:
        self._end_item()
        self._end_paragraph()
        self._header = []

    def _end_item(self) -> None:
        if self._item:
            text = " ".join(self._paragraph)
            self._add(f"{self._item.strip()} {text}", _plain(text), "item")
            self._item, self._paragraph = "", []

    def _end_paragraph(self) -> None:
        if self._paragraph:
            sentences = list(_sentences(" ".join(self._paragraph)))
            for sentence in sentences:
                self._add(sentence, _plain(sentence))
            self._lead = _plain(sentences[-1]) if sentences[-1].endswith(":") else ""
            self._paragraph = []

    def _add(self, text: str, plain: str, form: Form = "prose", lead: str = "", header: str = "") -> None:
        lead = lead or (self._lead if form == "item" else "")
        above = (self._label, self._heading, self._topic, lead, self._number, self._section)
        self._units.append(Unit(text, plain, *above, form, header))


def _sentences(text: str) -> Iterator[str]:
    begins = 0
    for match in _SENTENCE.finditer(text):
        if _ABBREVIATION.search(text[begins : match.start()].rstrip("*_\"'”») ")):
            continue
        yield text[begins : match.end()].strip()
        begins = match.end()
    if rest := text[begins:].strip():
        yield rest


def _plain(text: str) -> str:
    """Return *text* without Markdown."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*`]|(?<!\w)_|_(?!\w)", "", text).strip()
