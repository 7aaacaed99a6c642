"""Render parsed Markdown as plain text, for platforms without formatting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from connectors.text.form import Form, Spans
from connectors.text.layout import Piece, lay_out, prefixed, with_address


def render(form: Form) -> str:
    """Render *form* without marks. The URL of a link follows in brackets; code stays unchanged."""
    return lay_out(form, _Plain())


class _Plain:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return "".join(map(with_address, spans))

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(spans)

    def code(self, text: str, language: str) -> Piece:
        return Piece(text, verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        return [replace(piece, text=prefixed(piece.text, "> "), verbatim=False) for piece in pieces]
