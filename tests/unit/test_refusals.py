"""How a refused message is called when people are told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.message import Author, InboundMessage
from runtime.ingress.gateway import BEGINNING_CHARACTERS, beginning

MESSAGE = InboundMessage("telegram", "-100", "m1", Author("7", "Ann"), "what does it cost?")


def test_the_beginning_is_one_line_that_ends_no_quotation() -> None:
    assert beginning(replace(MESSAGE, text="a `b`\n\nc")) == "a 'b' c"
    assert beginning(replace(MESSAGE, text="x" * 200)) == "x" * BEGINNING_CHARACTERS + " …"
    assert beginning(replace(MESSAGE, text="")) == "…"


@pytest.mark.parametrize("one", ["👨‍👩‍👧", "e\u0301", "🇩🇪", "日"])
@pytest.mark.parametrize("before", range(6))
def test_the_beginning_ends_between_what_people_take_for_characters(one: str, before: int) -> None:
    text = "x" * before + one * BEGINNING_CHARACTERS
    begun = beginning(replace(MESSAGE, text=text)).removesuffix(" …")
    assert begun == "x" * before + one * ((BEGINNING_CHARACTERS - before) // len(one))
