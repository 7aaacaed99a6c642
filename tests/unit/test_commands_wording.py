"""What replies are made of holds whatever stands in it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.text import parse_markdown
from connectors.text.markdown import Code, Paragraph, ParsedMarkdown
from grounding.prompt_input import DegradedBlock, Prompt
from runtime.billing import ModelUsage
from runtime.commands import code, escape_markdown
from runtime.commands.registry import bullet_list, code_block
from runtime.commands.turns import explanation, totals
from runtime.turns.manifest import Manifest
from tests.emulators.prompts import build, context


def shown(form: ParsedMarkdown) -> str:
    (block,) = form
    assert isinstance(block.content, Paragraph)
    return "".join(span.text for span in block.content.spans)


printable = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), min_size=1)


@given(printable.filter(lambda text: text.strip()))
def test_a_span_shows_exactly_what_it_holds(text: str) -> None:
    assert shown(parse_markdown(code(text))) == " ".join(text.split())


@given(st.text(st.sampled_from("`~a \n>#-"), max_size=60))
def test_no_line_of_a_text_closes_its_block(text: str) -> None:
    form = parse_markdown(code_block(text) + "\n\nafter")

    assert len(form) == 2
    assert isinstance(form[0].content, Code)


@given(printable.filter(lambda text: text.strip()))
def test_a_name_cannot_set_anything(name: str) -> None:
    assert shown(parse_markdown(f"by {escape_markdown(name)}.")) == f"by {' '.join(name.split())}."


def test_a_list_is_a_line_for_each() -> None:
    assert bullet_list(["a", "b"]) == "- a\n- b"


def manifest(prompt: Prompt, outcome: dict[str, Any], **changes: Any) -> Manifest:
    rows = tuple({"name": block.name, "tokens": block.tokens, "used": bool(block.text)} for block in prompt.blocks)
    return Manifest("t1", "2026-11-21T10:00:00Z", context(**changes), "0", "0", prompt.tokens_total, rows, outcome)


def test_a_turn_is_explained_without_a_word_of_its_prompt() -> None:
    source = {"source": "pricing.md", "heading": "Plans"}
    told = explanation(manifest(build(), {"model": "openai/x", "sources": [source]}))

    assert "I looked at: the workspace's documents." in told
    assert "Because: the message asks for the workspace's documents." in told
    assert "`pricing.md › Plans`" in told
    assert "`openai/x`" in told
    for text in ("basic plan", "blue", "pricing policy?", "You are a helper"):
        assert text not in told


def test_the_tokens_of_a_prompt_are_told_so_that_they_add_up() -> None:
    """Those of the system text with the others: what is said to be in all is the sum of what is listed."""
    prompt = build()
    told = explanation(manifest(prompt, {}))

    whole = sum(block.tokens for block in prompt.blocks if block.text)
    assert whole > prompt.tokens_total
    assert f"; {whole} in all." in told


def test_citations_of_nothing_that_was_given_are_told() -> None:
    told = explanation(manifest(build(), {"citations": {"cited": 0, "invented": 2}}))

    assert "2 citations match no source" in told
    one = explanation(manifest(build(), {"citations": {"cited": 0, "invented": 1}}))
    assert "1 citation matches no source" in one
    assert "no source" not in explanation(manifest(build(), {"citations": {"cited": 1, "invented": 0}}))


def test_what_a_turn_did_without_and_how_it_failed_is_told() -> None:
    degraded = (DegradedBlock(block="retrieved", why="index_unavailable"),)
    told = explanation(manifest(build(), {"error_code": "model_timeout"}, degraded=degraded, passages=()))

    assert "retrieved (index\\_unavailable)" in told
    assert "`model_timeout`" in told
    assert "no passage" not in told
    assert "no passage" in explanation(manifest(build(), {}, passages=()))


def test_a_workspaces_usage_is_a_line_for_each_model() -> None:
    told = totals([ModelUsage("openai/x", 3, 2, 12_345, 100, 50, 1.5), ModelUsage("local/y", 1, 1, 10, 0, 5)])

    assert "`openai/x`: 2 replies, 3 calls, 12,345 prompt tokens (100 cached), 50 completion tokens, $1.50" in told
    assert "`local/y`" in told
    assert totals([]) == "This workspace has not used anything yet."
