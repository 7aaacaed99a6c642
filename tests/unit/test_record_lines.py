"""How a prompt tells a record."""

from grounding.prompt import record_line
from grounding.prompt_input import SelectedRecord


def told(text: str, *, verbatim: bool) -> str:
    record = SelectedRecord(
        id="r1",
        type="procedure",
        level="summary",
        text=text,
        state="active",
        made_on="2026-11-22",
        score=1.0,
        similarity=1.0,
        verbatim=verbatim,
        tokens=9,
    )
    return record_line(record, with_id=False)


def test_what_is_kept_word_for_word_keeps_its_spaces_and_line_breaks() -> None:
    text = "make build\n\tmake ship  --now"
    assert told(text, verbatim=True) == f"- procedure (2026-11-22):\n{text}"
    assert told("make ship  --now", verbatim=True) == "- procedure (2026-11-22): make ship  --now"
    assert told(text, verbatim=False) == "- procedure (2026-11-22): make build make ship --now"
