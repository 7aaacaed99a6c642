"""The block about the approach to the message: the frame's text, and how past decisions turned out."""

from __future__ import annotations

from grounding.run_context import Calibration, FrameInput
from grounding.sections import Section, one_line

HEAD, FOOT = "<approach>", "</approach>"
SILENT = "conversation"
"""The frame without text. Most messages have it, so their prompts pay nothing for it."""
SURE = 0.1
"""The least difference between mean confidence and accuracy that counts as over- or underconfidence."""


def section(frame: FrameInput | None, calibration: Calibration | None) -> Section:
    """Return the approach, its questions, and the note on calibration; empty if there is nothing to say."""
    pieces: list[str] = []
    if frame is not None and frame.name != SILENT:
        pieces.append(f"Current approach: {one_line(frame.name)}. {one_line(frame.description)}".rstrip())
        if frame.questions:
            pieces.append("\n".join(["Consider:", *(f"- {one_line(question)}" for question in frame.questions)]))
    if calibration is not None:
        pieces.append(note(calibration))
    return Section(HEAD, tuple(pieces), FOOT, cut="never")


def note(calibration: Calibration) -> str:
    """Return advice on confidence from the outcomes of the reviewed decisions."""
    apart = calibration.confidence - calibration.accuracy
    if apart > SURE:
        advice = "Overconfident: be less sure than you feel."
    elif apart < -SURE:
        advice = "Underconfident: trust the analysis more."
    else:
        advice = "Confidence and results agree."
    return (
        f"Note: of {calibration.reviewed} reviewed decisions {calibration.accuracy:.0%} came out well "
        f"(Brier {calibration.brier:.3f}). {advice}"
    )
