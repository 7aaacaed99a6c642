"""How the message is gone about: the frame's words, and how past decisions came out."""

from __future__ import annotations

from grounding.run_context import Calibration, FrameInput
from grounding.sections import Section, one_line

HEAD, FOOT = "<approach>", "</approach>"
SILENT = "conversation"
"""The frame that says nothing: most messages have it, and their prompts pay nothing for it."""
SURE = 0.1
"""How far the mean confidence must lie from the accuracy to be called over- or underconfidence."""


def section(frame: FrameInput | None, calibration: Calibration | None) -> Section:
    """The approach, its questions, and the note; empty where there is nothing to say."""
    pieces: list[str] = []
    if frame is not None and frame.name != SILENT:
        pieces.append(f"Current approach: {one_line(frame.name)}. {one_line(frame.description)}".rstrip())
        if frame.questions:
            pieces.append("\n".join(["Consider:", *(f"- {one_line(question)}" for question in frame.questions)]))
    if calibration is not None:
        pieces.append(note(calibration))
    return Section(HEAD, tuple(pieces), FOOT, cut="never")


def note(calibration: Calibration) -> str:
    """How sure to be: what came of the decisions that were reviewed."""
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
