"""Server-sent events as commands read them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from runtime.cli.client import EventParser

DATA = st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3)


def _stream(events: list[dict[str, str]]) -> bytes:
    return b"".join(
        b"event: delta\ndata: " + json.dumps(data, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"
        for data in events
    )


@given(st.lists(DATA.filter(bool), max_size=4), st.lists(st.integers(0, 400), max_size=12))
def test_events_are_the_same_however_the_stream_is_cut(events: list[dict[str, str]], cuts: list[int]) -> None:
    stream = _stream(events)
    whole = list(EventParser().feed(stream))
    parser = EventParser()
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    pieces = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [event for piece in pieces for event in parser.feed(piece)] == whole
    assert len(whole) == len(events)


def test_line_separators_of_unicode_in_the_data_end_no_line() -> None:
    text = "one\u2028two\u0085three\u000bfour"
    assert list(EventParser().feed(_stream([{"text": text}]))) == [("delta", {"text": text})]


def test_comments_and_carriage_returns_are_no_events() -> None:
    stream = b": waiting\r\n\r\nevent: done\r\ndata: {\r\ndata: }\r\n\r\n"
    assert list(EventParser().feed(stream)) == [("done", {})]
