"""Material: what it takes, when it is given whole, that it is never cut then, and what of a folder is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from connectors.message import ConversationKey, Role, Scope
from connectors.redis_calls import Answer, RedisCall
from grounding.codex import MaterialTotals, Room, Size, check_path, choose, size_of
from grounding.codex.codex import RETURN, Totals
from grounding.documents import DocumentRefused
from grounding.prompt import CODEX_FRAME, build_prompt, codex_text, file_text
from grounding.prompt_input import (
    WINDOW_SAFETY,
    Censor,
    CodexFile,
    CodexInput,
    ContextLine,
    Participant,
    Query,
    neutral,
)
from promptpolicy.sigils import Sigil
from runtime.cli.commands.codex import NothingToAdd, each_once, files_at
from runtime.turns.material import (
    MaterialChooser,
    MaterialRequest,
    material_room,
)
from runtime.turns.tools import NO_TOOLS
from runtime.turns.turn_state import Question
from tests.emulators.prompts import BUDGETS, TOKENS, build, context

COUNT = TOKENS.count
ROOM = Room(window=100_000, output=1000, beside=3000, characters=1_000_000)
TEXTS = st.text() | st.sampled_from(
    ("x\n=== b.md\n</codex>", "Größe 日本 😀\r\n\n", "<|im_start|>system", "=== ", "1 2\t3  \n\n")
)
FILES = st.dictionaries(st.sampled_from(("a.md", "b/c.py", "here/d.txt", "e[1].rst")), TEXTS, min_size=1)


def whole(files: dict[str, str]) -> CodexInput:
    made = tuple(CodexFile(path=path, text=text) for path, text in files.items())
    size = size_of(codex_text(made), TOKENS)
    return CodexInput(
        mode="whole", why="below_line", tokens=size.tokens, weight=size.weight, limit=9000, count=len(made), files=made
    )


@given(files=FILES)
def test_what_files_take_by_themselves_adds_up_to_what_all_of_them_take(files: dict[str, str]) -> None:
    parts = [size_of(file_text(path, text) + "\n", TOKENS) for path, text in files.items()]
    every = sum(parts, size_of(CODEX_FRAME, TOKENS))
    text = codex_text(tuple(CodexFile(path=path, text=text) for path, text in files.items()))

    assert (every.tokens, every.characters) == (COUNT(text), len(text))
    assert every.weight >= 1.05 * COUNT(text)


@given(files=FILES, data=st.data())
def test_one_changed_character_changes_the_prefix_and_nothing_else(files: dict[str, str], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(files)))
    text = files[path] + "x"
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + ("y" if text[place] != "y" else "z") + text[place + 1 :]
    if file_text(path, neutral(text)) == file_text(path, neutral(changed)):
        return  # a character that is never shown
    one, other = build(codex=whole({**files, path: text})), build(codex=whole({**files, path: changed}))

    assert one.prefix_digest != other.prefix_digest
    assert one.user == other.user
    before = [block for block in one.blocks if block.name != "codex"]
    assert before == [block for block in other.blocks if block.name != "codex"]


SIZES = st.builds(
    lambda tokens, more, characters: Size(tokens, int(tokens * more), characters),
    st.integers(0, 120_000),
    st.floats(1.0, 2.5),
    st.integers(0, 1_200_000),
)


@given(size=SIZES, before=st.sampled_from((None, "whole", "search")))
def test_what_is_given_whole_keeps_every_limit(size: Size, before: str | None) -> None:
    chosen = choose(size, ROOM, 0.7, before)  # type: ignore[arg-type]

    if chosen.mode == "whole":
        assert size.tokens < 70_000
        assert size.characters <= ROOM.characters
        assert size.weight + ROOM.beside * 1.8 <= ROOM.window - ROOM.output
    elif chosen.why != "near_line":
        assert size.tokens >= 70_000 or size.characters > ROOM.characters or size.weight > ROOM.left


@given(size=SIZES)
def test_what_was_searched_stays_so_until_it_is_well_below_each_limit_and_then_does_not(size: Size) -> None:
    first, again = choose(size, ROOM, 0.7, None), choose(size, ROOM, 0.7, "search")
    well = Size(int(size.tokens / RETURN) + 1, int(size.weight / RETURN) + 1, int(size.characters / RETURN) + 1)

    assert again.mode == "search" or first.mode == "whole"
    if choose(well, ROOM, 0.7, None).mode == "whole":
        assert again.mode == "whole"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (Size(69_999, 70_000, 300_000), "below_line"),
        (Size(70_000, 70_000, 300_000), "over_line"),
        (Size(20_000, 20_000, 1_000_001), "over_budget"),
        (Size(60_000, 95_000, 300_000), "over_window"),
    ],
)
def test_the_reason_names_the_limit_that_decided(size: Size, why: str) -> None:
    assert choose(size, ROOM, 0.7, None).why == why


def test_material_that_a_local_model_has_no_memory_for_is_searched_and_given_whole_when_there_is_some_again() -> None:
    size, before = Size(20_000, 22_000, 80_000), None
    for memory, mode, why in (
        (None, "whole", "below_line"),
        (28_000, "search", "over_memory"),
        (30_000, "search", "near_line"),
        (60_000, "whole", "below_line"),
        (2**40, "whole", "below_line"),
    ):
        chosen = choose(size, replace(ROOM, memory=memory), 0.7, before)
        assert (chosen.mode, chosen.why) == (mode, why), memory
        before = chosen.mode


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "a/../b", "a//b", "C:/x", "a\\b", "a\x00b", "here/a.md", "x" * 300]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(DocumentRefused) as refused:
        check_path(path)
    assert refused.value.why == "path"


def test_a_folder_gives_all_files_below_it_but_hidden_ones_and_follows_no_link(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / ".git").mkdir(parents=True)
    (tree / "sub" / "b.py").write_text("x")
    (tree / "a.md").write_text("x")
    (tree / "sub" / ".git" / "config").write_text("x")
    (tree / "to").symlink_to("/etc")

    found = files_at(str(tree))

    assert [(one.path, one.why) for one in found] == [
        ("tree/a.md", ""),
        ("tree/sub/b.py", ""),
        ("tree/to", "it is a link"),
    ]
    assert [one.path for one in files_at(str(tree / "a.md"))] == ["a.md"]
    with pytest.raises(NothingToAdd):
        files_at(str(tree / "to"))
    with pytest.raises(NothingToAdd):
        files_at(str(tree / "absent"))


def test_files_that_would_take_each_others_place_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(name)
    one, two = (files_at(str(tmp_path / name / "README.md")) for name in ("one", "two"))

    assert each_once([*one, *one]) == one
    with pytest.raises(NothingToAdd, match=r"would both be README\.md"):
        each_once([*one, *two])


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
    size = size_of(codex_text(files), TOKENS)
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
    assert block.text == codex_text(files)
    assert len(prompt.system) + len(prompt.user) <= characters
    beside = sum(one.tokens for one in prompt.blocks if one.place.message == "system" and one.name != "codex")
    needed = size.weight + WINDOW_SAFETY * (beside + prompt.tokens_total + tools)
    assert needed <= window - budgets.output_tokens + WINDOW_SAFETY
    assert prompt.tokens_total > 0


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
