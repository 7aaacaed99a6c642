"""What is chosen for material holds when the prompt is put together: it is never too large, and is never cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from connectors.message import ConversationKey, Role, Scope
from connectors.redis_calls import Answer, RedisCall
from grounding.codex import MaterialTotals, Room, Size, choose, size_of
from grounding.codex.codex import Totals
from grounding.prompt import build_prompt, layers
from grounding.prompt_input import (
    WINDOW_SAFETY,
    Censor,
    CodexFile,
    CodexInput,
    ContextLine,
    Participant,
    Passage,
    Query,
)
from promptpolicy.sigils import Sigil
from runtime.turns.material import (
    ChosenMaterial,
    MaterialChooser,
    MaterialRequest,
    material_room,
    merged,
)
from runtime.turns.tools import NO_TOOLS
from runtime.turns.turn_state import Question
from tests.emulators.prompts import BUDGETS, TOKENS, context

WORDS = st.sampled_from(("the harbour plan ", "12,345.6 ", "Größe 日本 ", "def f(x): return x\n"))


@settings(max_examples=60)
@given(
    window=st.integers(4000, 60_000),
    tools=st.integers(0, 800),
    identity=st.integers(0, 300),
    asked=st.integers(1, 3000),
    word=WORDS,
    times=st.integers(1, 3000),
    characters=st.integers(20_000, 200_000),
)
def test_material_that_is_given_whole_leaves_room_for_every_message(
    window: int, tools: int, identity: int, asked: int, word: str, times: int, characters: int
) -> None:
    changed = {"window_tokens": window, "tools_tokens": tools, "output_tokens": 500}
    changed |= {"prompt_characters": characters, "bounds_material": True}
    budgets = BUDGETS.model_copy(update=changed)
    told = "Be kind. " * identity
    files = (CodexFile(path="a.md", text=word * times),)
    size = size_of(layers.codex_text(files), TOKENS)
    offer = replace(NO_TOOLS, tokens=tools)
    turn = MaterialRequest(
        cast("Any", None), None, budgets, told, TOKENS.count(told), offer, (), small_talk=False, keep=False
    )
    chosen = choose(size, material_room(turn), 0.7, None)
    event(chosen.mode)
    if chosen.mode == "search":
        return
    given_whole = CodexInput(
        mode="whole", why=chosen.why, tokens=size.tokens, weight=size.weight, limit=chosen.limit, count=1, files=files
    )
    prompt = build_prompt(
        context(
            identity=told,
            budgets=budgets,
            codex=given_whole,
            query=Query(text="why is that? " * asked),
            global_context=tuple(ContextLine(number=number, content="a line " * 20) for number in range(30)),
            censors=(Censor(id="c1", severity="warn", text="never say so " * 20),),
        ),
        TOKENS,
    )

    block = prompt.block("codex")
    assert block is not None
    assert block.text == layers.codex_text(files)
    assert len(prompt.system) + len(prompt.user) <= characters
    beside = sum(one.tokens for one in prompt.blocks if one.place.message == "system" and one.name != "codex")
    needed = size.weight + WINDOW_SAFETY * (beside + prompt.tokens_total + tools)
    assert needed <= window - budgets.output_tokens + WINDOW_SAFETY
    assert prompt.tokens_total > 0


def test_the_best_of_documents_and_material_are_shown_together() -> None:
    documents = [
        Passage(source=f"{name}.md", heading="", text=name, score=score) for name, score in (("a", 0.9), ("b", 0.2))
    ]
    found = (Passage(source="c.py", heading="", text="c", score=0.5),)
    searched = CodexInput(mode="search", why="over_line", tokens=9, weight=9, limit=5, count=1)

    shown, told = merged(documents, ChosenMaterial(NO_TOOLS, searched, found), 2)

    assert [one.source for one in shown] == ["a.md", "c.py"]
    assert told is not None
    assert told.retrieved == 1
    assert merged(documents, ChosenMaterial(NO_TOOLS, searched), 2) == (tuple(documents), searched)


@pytest.mark.parametrize(("scopes", "mode"), [(("codex:read",), "whole"), (("documents:read",), "withheld")])
async def test_material_is_in_no_prompt_for_whom_the_sigil_does_not_allow_to_read_it(
    scopes: tuple[str, ...], mode: str
) -> None:
    key = ConversationKey("acme", "slack", "C1")
    author = Participant(user="slack:U1", name="Ann", role="member")
    question = Question(
        key, "What does it say?", Query(text="What does it say?"), (author,), Role.MEMBER, False, None, ""
    )
    size = size_of("the harbour plan", TOKENS)
    holding = MaterialTotals(Totals("r1", 1, 16, size), Totals())
    attaching = MaterialChooser(cast("Any", _OneFile(size)), cast("Any", _Bound(Sigil.of("some", scopes))))
    turn = MaterialRequest(question, None, BUDGETS, "Be kind.", 3, NO_TOOLS, (), small_talk=False, keep=True)

    given_in_turn = (await attaching.attach(answered(holding), turn)).input

    assert given_in_turn is not None
    assert given_in_turn.mode == mode
    assert bool(given_in_turn.files) is (mode == "whole")
    told = build_prompt(context(codex=given_in_turn), TOKENS)
    assert ("the harbour plan" in told.system) is (mode == "whole")


def answered(holding: MaterialTotals) -> Answer[MaterialTotals]:
    """What the store says of the material."""
    answer = Answer(RedisCall((("PING",),), lambda _: holding))
    answer.fill(["PONG"])
    return answer


@dataclass(frozen=True)
class _OneFile:
    """Material of one file that fits."""

    of: Size

    def size(self, holding: MaterialTotals) -> Size:
        return self.of

    async def given(self, scope: Scope, holding: MaterialTotals, room: Room, *, keep: bool) -> CodexInput:
        files = (CodexFile(path="a.md", text="the harbour plan"),)
        return CodexInput(
            mode="whole", why="below_line", tokens=self.of.tokens, weight=self.of.weight, limit=99, count=1, files=files
        )


@dataclass(frozen=True)
class _Bound:
    """What everybody may have done."""

    held: Sigil

    def sigil(self, question: Question) -> Sigil:
        return self.held
