"""What a turn is asked, under which rules, and what its reply says of itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from config.settings import EXTRACTIVE, Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Scope, Source, StoreUnavailable
from connectors.redis_calls import RedisCall
from grounding.pipeline import Decision, StrategyChooser, TurnLayers
from grounding.prompt import ContextTooLarge
from grounding.prompt_input import Censor, Passage, TailEntry, load_tokens
from grounding.retrieval import Found
from grounding.tools import Toolbox
from promptpolicy.policy import EVERYWHERE, Directive, InvalidDirective, Kind, Place, Slot
from promptpolicy.sigils import Sigil
from runtime.formatters import Formatters
from runtime.llm import Completion, ModelUnavailable, ToolCall
from runtime.turns import replies
from runtime.turns.batch import Batch, Envelope
from runtime.turns.events import outcome
from runtime.turns.manifest import compare_manifests
from runtime.turns.material import ChosenMaterial
from runtime.turns.prompt import PromptBuilder
from runtime.turns.tools import NO_TOOLS, OfferedTools, ToolContext, Tooling
from runtime.turns.turn_state import Question
from tests.emulators.toolbox import Desk

KEY = ConversationKey("acme", "telegram", "-100")
MESSAGE = InboundMessage("telegram", "-100", "m1", Author("1", "Ann"), "which file holds the pricing policy?")
RULE = Directive(Slot(EVERYWHERE, Kind.SYSTEM), 1, "Speak of harbours only.")
TOKENS = load_tokens()


def batch(*messages: tuple[InboundMessage, Role]) -> Batch:
    return Batch(KEY, "t1", 1, tuple(Envelope(message, role, 1000.0) for message, role in messages), Fence("", ""))


class Rules:
    """Directives of a store that is there, or away."""

    away = False

    def stamps_call(self, scope: Scope) -> RedisCall[list[str]]:
        def stamps(_: object) -> list[str]:
            if self.away:
                raise StoreUnavailable("away")
            return []

        return RedisCall((), stamps)

    async def load(self, scope: Scope, stamps: Sequence[str]) -> tuple[Directive, ...]:
        return (RULE,)

    def last_loaded(self, scope: Scope) -> tuple[Directive, ...] | None:
        return (RULE,)


class Layers:
    """A pipeline that found *passages*, while *censors* are in force."""

    def __init__(self, passages: tuple[Passage, ...] = (), censors: tuple[Censor, ...] = ()) -> None:
        self.passages = passages
        self.censors = censors

    def begin(self, *_: object) -> "Layers":
        return self

    async def last_messages(self) -> tuple[TailEntry, ...]:
        return ()

    async def gather(self, text: str, decision: Decision, *_: object, **more: object) -> TurnLayers:
        passages = self.passages if decision.choice.wants_documents else ()
        return TurnLayers(passages=passages, censors=self.censors)


class Pipelines:
    """A client of Redis that is asked nothing."""

    def pipeline(self, **_: object) -> "Pipelines":
        return self

    async def __aenter__(self) -> "Pipelines":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        return []


class Window:
    """A model of which only the window is asked."""

    async def window_tokens(self, first: str | None = None) -> int:
        return 8192


class NoTools:
    """Nothing is offered."""

    async def offer(self, question: Question, **more: Any) -> OfferedTools:
        return NO_TOOLS

    def sigil(self, question: Question) -> Sigil:
        return Sigil("nobody", ())


class NoDocuments:
    """Documents among which nothing is found."""

    async def awake(self, scope: Scope) -> None: ...

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        return Found(query)


class NoMaterial:
    """Nothing is attached."""

    def read(self, *_: object) -> None: ...

    async def attach(self, totals: None, turn: Any) -> ChosenMaterial:
        return ChosenMaterial(turn.offer)


def prompting(rules: Rules | None = None, layers: Layers | None = None) -> PromptBuilder:
    return PromptBuilder(
        Settings(),
        cast("Any", Pipelines()),
        deciding=StrategyChooser(cast("Any", NoDocuments()), 1.0, vocabulary=False),  # by cues alone
        pipeline=cast("Any", layers or Layers()),
        directives=cast("Any", rules or Rules()),
        model=cast("Any", Window()),
        tooling=cast("Any", NoTools()),
        formatters=Formatters((), timeout_seconds=1),
        attaching=cast("Any", NoMaterial()),
        tokens=TOKENS,
    )


@pytest.mark.parametrize("roles", [(Role.ADMIN, Role.MEMBER), (Role.MEMBER, Role.ADMIN)])
def test_of_several_authors_the_least_allowed_one_decides(roles: tuple[Role, Role]) -> None:
    bo = replace(MESSAGE, message_id="m2", author=Author("2", "Bo"), text="and for me?")
    asked = Question.of(batch((MESSAGE, roles[0]), (bo, roles[1])))

    assert asked.role is Role.MEMBER
    assert [one.user for one in asked.authors] == ["telegram:1", "telegram:2"]
    assert "Ann" in asked.query.text
    assert "Bo" in asked.query.text
    assert "Ann" not in asked.text


def test_a_conversation_is_direct_only_if_all_of_it_is() -> None:
    direct = replace(MESSAGE, direct=True)

    assert Question.of(batch((direct, Role.MEMBER))).direct
    assert not Question.of(batch((direct, Role.MEMBER), (MESSAGE, Role.MEMBER))).direct


def test_of_a_stopped_answer_the_halves_of_a_character_become_one() -> None:
    assert replies.cut_short("so \ud83d" + "\ude00 \ud83d", "m").text == "so \U0001f600 \ufffd …"


def test_in_a_group_a_reply_hangs_at_the_last_message_it_answers_and_directly_at_none() -> None:
    later = replace(MESSAGE, message_id="m2")

    assert replies.unexpected_error(batch((MESSAGE, Role.MEMBER), (later, Role.MEMBER))).reply_to == "m2"
    assert replies.unexpected_error(batch((replace(MESSAGE, direct=True), Role.MEMBER))).reply_to is None


async def test_only_passages_that_the_model_was_shown_are_sources_and_each_once() -> None:
    found = (
        Passage(source="a.md", heading="Plans", text="The harbour plan costs 12.", score=0.9),
        Passage(source="a.md", heading="Plans", text="The ocean plan costs 40.", score=0.8),
        Passage(source="b.md", heading="", text="Boats are blue.", score=0.7),
        Passage(source="c.md", heading="", text="Beyond the three that are shown.", score=0.6),
    )
    one = batch((MESSAGE, Role.MEMBER))
    built = await prompting(layers=Layers(found)).build(Question.of(one), "t1")
    reply = replies.answer(one, built, Completion("12", "fake"))

    assert reply.sources == (Source("a.md", "Plans"), Source("b.md", ""))


async def test_sources_are_what_the_reply_cites_and_what_it_cites_in_vain_is_marked_and_counted() -> None:
    found = (
        Passage(source="a.md", heading="Plans", text="The harbour plan costs 12.", score=0.9),
        Passage(source="b.md", heading="", text="Boats are blue.", score=0.7),
    )
    one = batch((MESSAGE, Role.MEMBER))
    built = await prompting(layers=Layers(found)).build(Question.of(one), "t1")
    said = Completion("Blue [b.md], and 12 [prices.md › Old].", "fake")
    reply = replies.answer(one, built, said)

    assert reply.text == "Blue [b.md], and 12 [prices.md › Old ⚠ unverified]."
    assert reply.sources == (Source("b.md", ""),)
    told = outcome(reply, said, built)
    assert told["sources"] == [{"source": "b.md", "heading": ""}]
    assert told["given"] == [{"source": "a.md", "heading": "Plans"}, {"source": "b.md", "heading": ""}]
    assert told["citations"] == {"cited": 1, "invented": 1}


async def test_who_only_quotes_has_used_nothing_that_it_does_not_cite() -> None:
    found = (Passage(source="a.md", heading="Plans", text="The harbour plan costs 12.", score=0.9),)
    one = batch((MESSAGE, Role.MEMBER))
    built = await prompting(layers=Layers(found)).build(Question.of(one), "t1")

    assert replies.answer(one, built, Completion("Nothing answers this.", EXTRACTIVE)).sources == ()
    assert replies.answer(one, built, Completion("12 [a.md › Plans]", EXTRACTIVE)).sources == (Source("a.md", "Plans"),)


@pytest.mark.parametrize(("text", "hinted"), [(MESSAGE.text, True), ("hi", False), ("tell me a joke", False)])
async def test_a_reply_that_nobody_waits_for_needs_no_acknowledgement(text: str, hinted: bool) -> None:
    message = replace(MESSAGE, text=text, reply_hint="Begin with an acknowledgement.")
    built = await prompting().build(Question.of(batch((message, Role.MEMBER))), "t1")

    assert ("acknowledgement" in built.prompt.user) is hinted


async def test_an_apology_quotes_and_a_reply_names_nothing_of_the_documents_that_a_censor_stops() -> None:
    found = (
        Passage(source="a.md", heading="Plans", text="The plan is called Blue Heron.", score=0.9),
        Passage(source="b.md", heading="The blue heron", text="It costs 12.", score=0.8),
        Passage(source="c.md", heading="", text="Boats are blue.", score=0.7),
    )
    censor = Censor(id="c", severity="block", text="Never name it", trigger="blue heron")
    one = batch((MESSAGE, Role.MEMBER))
    built = await prompting(layers=Layers(found, (censor,))).build(Question.of(one), "t1")
    away = ModelUnavailable("away", why="timeout", model="m")
    sorry = replies.apology(one, built, away, "The plan is called Blue Heron. [a.md › Plans]")
    quoting = replies.apology(one, built, away, "Boats are blue. [c.md]")
    reply = replies.answer(one, built, Completion("It costs 12.", "fake"))

    assert (sorry.text, sorry.sources) == (away.user_text, ())
    assert quoting.text == f"{away.user_text} {replies.QUOTED}\n\nBoats are blue. [c.md]"
    assert quoting.sources == (Source("c.md", ""),)
    assert Source("b.md", "The blue heron") not in reply.sources
    assert Source("c.md", "") in reply.sources


def test_an_apology_names_commands_as_people_can_write_them_there() -> None:
    """Slack keeps the slash to itself."""
    one = batch((replace(MESSAGE, command_mark="!"), Role.MEMBER))
    sorry = replies.too_large(one, ContextTooLarge("records", 9000, 8000))
    assert "`!memory` lists it, `!memory retire ID` ends one" in sorry.text


async def test_while_the_store_is_away_the_rules_that_held_last_still_hold() -> None:
    rules = Rules()
    rules.away = True
    built = await prompting(rules).build(Question.of(batch((MESSAGE, Role.MEMBER))), "t1")

    assert RULE.text in built.prompt.system
    assert [part.block for part in built.context.degraded] == ["identity"]


class Remembered(Rules):
    """Directives that were changed since this process looked last."""

    async def load(self, scope: Scope, stamps: Sequence[str]) -> tuple[Directive, ...]:
        cues = Slot(Place(Scope("acme")), Kind.CUES)
        return (RULE, Directive(cues, 1, '[add]\ndocuments = ["netlist"]'))


async def test_cues_that_were_just_changed_hold_in_this_very_turn_and_stay_out_of_the_prompt() -> None:
    message = replace(MESSAGE, text="is it in the netlist?")
    built = await prompting(Remembered()).build(Question.of(batch((message, Role.MEMBER))), "t1")

    assert built.context.reason == "workspace_retrieval_cue"
    assert "netlist" not in built.context.identity


class FromLater(Rules):
    """Cues that a newer release published."""

    async def load(self, scope: Scope, stamps: Sequence[str]) -> tuple[Directive, ...]:
        return (Directive(Slot(Place(Scope("acme")), Kind.CUES), 1, "[later]"),)


async def test_cues_that_this_release_cannot_read_leave_those_that_ship() -> None:
    with capture_logs() as events:
        built = await prompting(FromLater()).build(Question.of(batch((MESSAGE, Role.MEMBER))), "t1")

    assert built.context.reason == "workspace_retrieval_cue"
    assert events[0]["event"] == "cues.unreadable"


async def test_a_dry_run_has_the_text_of_a_draft_in_place_of_the_directive() -> None:
    workspace = Slot(Place(Scope("acme")), Kind.SOUL)
    question = Question.of(batch((MESSAGE, Role.MEMBER)))
    drafts = {RULE.slot: "  Speak of boats only.\n", workspace: "Be brief."}
    built = await prompting().build(question, "", drafts=drafts)
    cleared = await prompting().build(question, "", drafts={RULE.slot: None})

    assert RULE.text not in built.prompt.system
    assert "Speak of boats only.\n" in built.prompt.system
    assert built.context.identity_versions == ("global/system@0", "workspace/soul@0")
    assert RULE.text not in cleared.prompt.system
    assert RULE.text in (await prompting().build(question, "")).prompt.system


async def test_a_draft_of_cues_decides_the_strategy_of_a_dry_run() -> None:
    question = Question.of(batch((replace(MESSAGE, text="is it in the netlist?"), Role.MEMBER)))
    cues = Slot(Place(Scope("acme")), Kind.CUES)
    built = await prompting().build(question, "", drafts={cues: '[add]\ndocuments = ["netlist"]'})

    assert built.context.reason == "workspace_retrieval_cue"
    with pytest.raises(InvalidDirective, match=r"cues \(workspace\): .*nonsense"):
        await prompting().build(question, "", drafts={cues: "[nonsense]"})


async def test_no_turn_is_answered_with_a_draft_and_a_draft_of_another_place_is_refused() -> None:
    question = Question.of(batch((MESSAGE, Role.MEMBER)))
    elsewhere = Slot(Place(Scope("acme", "telegram:-200")), Kind.SYSTEM)

    with pytest.raises(ValueError, match="live"):
        await prompting().build(question, "t1", drafts={RULE.slot: "Speak of boats only."})
    with pytest.raises(InvalidDirective, match="telegram:-100"):
        await prompting().build(question, "", drafts={elsewhere: "Speak of boats only."})


class NoCheckpoints:
    """Stores nothing; every call is begun for the first time."""

    async def begin_tool(self, batch: Batch, number: int, place: int) -> bool:
        return True

    async def save_tool_result(self, *parts: Any) -> None: ...


async def test_a_tool_that_does_not_end_is_given_up_and_the_model_is_told() -> None:
    desk = Desk(held=asyncio.Event())
    tools = {tool.name: tool for tool in desk.toolbox()}
    tooling = Tooling(
        Settings(),
        Toolbox(*tools.values()),
        cast("Any", Window()),
        cast("Any", NoCheckpoints()),
        TOKENS,
        timeout_seconds=0.05,
    )
    asked = batch((MESSAGE, Role.ADMIN))
    turn = ToolContext(asked, Question.of(asked), cast("Any", SimpleNamespace(censors=())), ())
    call = ToolCall("c1", "note", '{"words": "x"}')
    (result,) = await tooling.run(turn, OfferedTools(tools), [call], 1000, {})
    assert (result.ok, result.why) == (False, "timeout")
    assert "longer than 0.05 s" in result.text


def block(name: str, text: str, *, used: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "tokens": len(text.split()),
        "budget": 10,
        "used": used,
        "sha256": f"sha of {text}",
        "why": "",
    }


def turn(turn_id: str, *blocks: dict[str, Any], user: str = "Hello", **other: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": user}]
    return {
        "turn_id": turn_id,
        "strategy": "none",
        "reason": "no_retrieval_cue",
        "context_id": "http:default",
        "model": "openai/fake",
        "tokens_total": 1,
        "prompt_sha256": f"sha of {user}",
        "degraded": [],
        "blocks": list(blocks),
        "messages": messages,
        "sources": [],
        "context": {"frame": {"name": "question"}, "layout": "prefix_stable", "identity_versions": []},
        "outcome": {},
        **other,
    }


def test_a_turn_compared_with_itself_differs_in_nothing() -> None:
    one = turn("t1", block("identity", "Be kind."), block("query", "Hello"))
    found = compare_manifests(one, one)
    assert found["identical"] is True
    assert found["changed"] == {}
    assert [part["change"] for part in found["blocks"]] == ["same", "same"]
    assert found["diff"] == ""


def test_blocks_that_came_went_and_changed_are_told_apart() -> None:
    before = turn("t1", block("identity", "a"), block("tail", "b"), block("query", "c"), block("hint", "", used=False))
    after = turn("t2", block("identity", "a"), block("retrieved", "d e"), block("query", "f"), user="Bye")
    found = compare_manifests(before, after)
    assert {part["name"]: part["change"] for part in found["blocks"]} == {
        "identity": "same",
        "tail": "removed",
        "query": "changed",
        "retrieved": "added",
    }
    assert next(part["tokens"] for part in found["blocks"] if part["name"] == "retrieved") == [0, 2]


def test_what_was_decided_otherwise_and_the_lines_that_differ_are_named() -> None:
    before = turn("t1", user="Hello\nthere")
    after = turn("t2", user="Hello\nyou", strategy="qmd", reason="workspace_retrieval_cue")
    found = compare_manifests(before, after)
    assert found["identical"] is False
    assert found["changed"] == {
        "strategy": ["none", "qmd"],
        "reason": ["no_retrieval_cue", "workspace_retrieval_cue"],
    }
    assert "-there" in found["diff"]
    assert "+you" in found["diff"]
    assert "Be kind." not in found["diff"]
