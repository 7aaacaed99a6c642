"""Conversations as they are kept, from lines as people write them down."""

from __future__ import annotations

from grounding.transcript import EntryRole, TranscriptEntry


def talk(*lines: str, first: int = 1) -> list[TranscriptEntry]:
    """Entries from lines such as ``Lena> text``; ``BOT> text`` answers the turn before it."""
    entries: list[TranscriptEntry] = []
    number = first - 1
    for line in lines:
        who, _, text = line.partition("> ")
        number += who != "BOT"
        role = EntryRole.OUTBOUND if who == "BOT" else EntryRole.INBOUND
        entries.append(TranscriptEntry(role, text, f"t{number:03}", "2026-11-21T10:00:00.000Z", author=who))
    return entries
