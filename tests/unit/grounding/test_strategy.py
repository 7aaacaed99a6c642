"""What a message needs is decided by what it says, as words and phrases; a workspace may have cues of its own."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.evaluation import Message
from grounding.evaluation.strategy import load_messages
from grounding.retrieval import MEASURED_CHUNKS
from grounding.strategy import (
    LANGUAGES,
    InvalidCues,
    Strategy,
    choose,
    choose_by_relevance,
    cues_of,
    is_small_talk,
    joined_cues,
    leaning,
    leans_on,
    problem_in,
    search_text,
    tail_of,
    without_courtesy,
    words_of,
)
from grounding.strategy.cues import KINDS
from grounding.strategy.languages import MAX_PHRASES
from grounding.strategy.strategy import ASSISTANT_LOG_ODDS, LEANING_LOG_ODDS, MATCH_LOG_ODDS

SMALL_TALK = """
hi|Hello!|hey there|Good morning|good evening, bot|Hello Lena!|hi team|hello again|yo|sup
thanks|Thank you so much!|thanks a lot for your help|many thanks, that helps|ok|OK, cool|great|perfect, thanks
got it|sounds good|how are you?|How are you today?|what's up|are you there?|bye|see you later|have a nice day
hello.me again|ok.is that all|👍|🎉🎉|!!!|:-)|no worries|nice to meet you|how fast are you|thx|ok thanks bye
"""
TAIL = """
as we discussed, go ahead with the second option|continue from where we left off|what did we decide?
what did I ask you before?|remind me what we agreed|do you remember my dog's name?|You said it would be ready
what was my last question|say that again|like I said, it has to be blue|what changed?|summarize this conversation
recap our discussion|as you mentioned, it is too slow|where were we?|following up on this|previous answer was wrong
last time you used a table|what did you say earlier?|did I tell you my name?|let's continue|carry on
going back to what I said|what's my name?|our conversation was useful, keep it short|earlier you gave me three options
we agreed on blue, right?|what have we covered so far|I told you that already|pick up where we stopped
thanks, continue|go on|ok, carry on please|recap|what changed since we spoke?|use the previous one|I asked you before
"""
DOCUMENTS = """
thanks, which file holds the pricing policy?|where is readme?|what changed in the docs?|what is our refund policy?
hello, what do the docs say about refunds?|open the readme|see the runbook for this|is there documentation for it
what does our handbook say about holidays|check https://example.com/pricing please|look at example.com
what's in notes.md|compare a.txt and b.txt|which document explains onboarding|search the project for tokens
find the file with the deploy steps|pricing?|what are the policies|in the workspace there is something on that
is it in the knowledge base|the repository is confusing|hi, which page covers it?|read CHANGELOG.md
where is the config file|look up the refund page|our documents mention it|what does the release notes say
see t.me/acme|what is on shop.acme.it|main.rs does not compile
hey bot, what's the pricing for teams|ok, and the refund policy?|thanks! what about the docs?
"""
IMPLICIT = """
what does the path in this folder mean?|how is the project organised at the moment|can you list every file we have here
which folder should I put this in?|does this project have any open items
"""
NEITHER = """
set this up before Friday|how does my profile login work?|what is the capital of France?|write a haiku about rain
How do I bake bread at home?|tell me a joke|translate this to German: good night|I finished earlier than you
remember to buy milk|remember that refunds take a while|How do I follow up with a customer?|write to lena@example.com
what is 2 + 2?|yes please|no|the answer is 42|e.g. this one|explain recursion|is it raining?|why is the sky blue?
good question|how do I tie a tie|the profiler shows nothing|I am logged out|a filet of fish|docker keeps crashing
should I go on a diet?|what's new in Python 3.12?|what changed in the React 19 release?|recap the movie Inception
I asked my boss for a raise, what now?|do earlier versions of Python have it?|a previously owned car
how many pages does a novel have?|is a manual gearbox cheaper?|how has the weather been so far
we need an apathetic reply|prepared before lunch|my beforehand work|help me|who won the world cup in 1990?
I'm done.so what do I do now|Sounds good.To be clear, no|yes.no problem with me|what is node.js?|next.js or vue.js
r = requests.get(url), then r.json() fails|is asp.net dead?|one last question, is it far?
the last time I was in Rome it rained
who is the pathologist on call today at the hospital?|hypothetically, should we move to a bigger office?
"""
BOTH = {
    "as we discussed, which file holds the pricing policy?": Strategy.QMD,
    "you said the docs cover it, where?": Strategy.QMD,
    "what did we decide about pricing?": Strategy.TAIL,
    "do you remember what the refund policy says?": Strategy.TAIL,
}


def messages(block: str) -> list[str]:
    return [message for line in block.strip().splitlines() for message in line.split("|")]


@pytest.mark.parametrize("text", messages(SMALL_TALK))
def test_small_talk_needs_nothing(text: str) -> None:
    choice = choose(text)

    assert (choice.strategy, choice.reason) == (Strategy.NONE, "small_talk")
    assert not choice.wants_history
    assert not choice.wants_documents


@pytest.mark.parametrize("text", messages(TAIL))
def test_a_continuity_cue_asks_for_the_conversation_and_no_documents(text: str) -> None:
    choice = choose(text)

    assert (choice.strategy, choice.reason) == (Strategy.TAIL, "chat_memory_cue")
    assert choice.wants_history
    assert not choice.wants_documents


@pytest.mark.parametrize("text", messages(DOCUMENTS))
def test_a_workspace_cue_asks_for_documents(text: str) -> None:
    choice = choose(text)

    assert (choice.strategy, choice.reason) == (Strategy.QMD, "workspace_retrieval_cue")
    assert choice.wants_documents


@pytest.mark.parametrize("text", messages(IMPLICIT))
def test_a_question_about_things_of_a_workspace_asks_for_documents(text: str) -> None:
    choice = choose(text)

    assert (choice.strategy, choice.reason) == (Strategy.QMD, "implicit_workspace_question")


@pytest.mark.parametrize("text", messages(NEITHER))
def test_everything_else_asks_for_no_search(text: str) -> None:
    choice = choose(text)

    assert (choice.strategy, choice.reason) == (Strategy.NONE, "no_retrieval_cue")
    assert not choice.wants_documents
    assert not choice.wants_history


@pytest.mark.parametrize(("text", "named_after"), BOTH.items())
def test_a_message_that_needs_both_gets_both(text: str, named_after: Strategy) -> None:
    choice = choose(text)

    assert choice.strategy is named_after
    assert choice.wants_history
    assert choice.wants_documents


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_message_has_a_reason_of_its_own(text: str) -> None:
    assert choose(text).reason == "empty"


LEANING = Path(__file__).parents[2] / "data" / "leaning.jsonl"
EXPLICIT = load_messages(Path(__file__).parents[2] / "data" / "explicit_cues.jsonl")


@pytest.mark.parametrize("message", EXPLICIT, ids=lambda message: repr(message.text))
def test_an_explicit_cue_is_understood(message: Message) -> None:
    choice = choose(message.text, joined_cues(message.languages))

    assert (choice.strategy.value, choice.reason) == (message.strategy, message.reason)
    assert (choice.wants_history, choice.wants_documents) == (message.needs_history, message.needs_documents)


def test_cues_of_other_languages_cost_english_nothing() -> None:
    """A workspace that chooses all languages still decides English messages as before."""
    everything = joined_cues(LANGUAGES)
    english = [message for message in EXPLICIT if not message.languages]
    changed = [message.text for message in english if choose(message.text, everything) != choose(message.text)]

    assert changed == []


UNDECIDED = choose("is the moon made of cheese?")


@pytest.mark.parametrize(("assistant", "more"), [(False, 0.0), (True, ASSISTANT_LOG_ODDS)])
@pytest.mark.parametrize(("leans", "less"), [(False, 0.0), (True, LEANING_LOG_ODDS)])
@pytest.mark.parametrize(("above", "documents"), [(0.01, True), (-0.01, False), (-math.inf, False)])
def test_a_message_without_cues_wants_documents_that_speak_of_it(
    assistant: bool, more: float, leans: bool, less: float, above: float, documents: bool
) -> None:
    choice = choose_by_relevance(
        UNDECIDED,
        MATCH_LOG_ODDS + more - less + above,
        leans=leans,
        passages=MEASURED_CHUNKS,
        addresses_assistant=assistant,
    )

    assert (choice.wants_history, choice.wants_documents) == (leans, documents)
    if leans:
        assert (choice.strategy, choice.reason) == (Strategy.TAIL, "leans_on_conversation")
    else:
        assert choice.reason == ("workspace_match" if documents else "no_retrieval_cue")


def test_a_message_without_cues_leans_on_what_was_said_before_it() -> None:
    """Its words decide, the history has a say, and without a history nothing leans."""
    messages = [
        (bool(line["needs_history"]), line["text"], tail_of((turn["role"], turn["text"]) for turn in line["history"]))
        for line in map(json.loads, LEANING.read_text(encoding="utf-8").splitlines())
    ]
    right = [leans_on(text, before) is leans for leans, text, before in messages]

    assert sum(right) >= 0.85 * len(right)
    assert all(leaning(text, ()) == -math.inf for _, text, _ in messages)


@pytest.mark.parametrize("text", ["und für Studenten?", "et pour les étudiants", "¿y para estudiantes?"])
def test_a_message_leans_in_the_languages_that_a_workspace_speaks(text: str) -> None:
    before = tail_of([("user", "Was kostet das Museum?"), ("assistant", "Acht Euro.")])
    assert leans_on(text, before, joined_cues(("german", "french", "spanish")))


@given(st.text(max_size=400))
def test_any_text_gets_exactly_one_choice(text: str) -> None:
    choice = choose(text)

    assert choice == choose(text)
    assert choice.wants_documents or choice.strategy is not Strategy.QMD


@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from([*messages(SMALL_TALK), *messages(TAIL), *messages(DOCUMENTS), *messages(IMPLICIT), "", " "]),
        max_size=3,
    ).map(" ".join)
)
def test_whether_a_message_is_small_talk_is_the_same_asked_alone(text: str) -> None:
    assert is_small_talk(text) == choose(text).small_talk


@given(st.sampled_from(messages(SMALL_TALK)), st.sampled_from(messages(DOCUMENTS)))
def test_politeness_never_hides_a_question(greeting: str, question: str) -> None:
    assert choose(f"{greeting}. {question}").wants_documents


def test_a_megabyte_of_words_is_decided_by_its_beginning() -> None:
    assert choose("where is the readme? " + "blah " * 200_000).strategy is Strategy.QMD


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ("which file explains pricing?", "pricing?"),
        ("thanks, which file holds the pricing policy?", "the pricing policy?"),
        ("what do the docs say about refund windows", "what do the about refund windows"),
        ("what do the docs say about the files field", "what do the about the files field"),
        ("where is readme?", "where is readme?"),
        ("which file?", "which file?"),
        ("Wie hoch ist die Gebühr?", "Wie hoch ist die Gebühr?"),
    ],
)
def test_a_search_is_for_what_is_asked_not_for_the_word_file(text: str, searched: str) -> None:
    assert search_text(text) == searched


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("good morning, how much is it?", "how much is it?"),
        ("Thanks a lot! Could you please tell me when it opens?", "when it opens?"),
        ("thank you, and who approves it?", "who approves it?"),
        ("hello I would like to know how long it is", "how long it is"),
        ("Good Friday: is it open?", "Good Friday: is it open?"),
        ("can you fly first class?", "can you fly first class?"),
        ("tell me a joke", "tell me a joke"),
        ("and for students?", "and for students?"),
        ("good morning", "good morning"),
        ("", ""),
    ],
)
def test_courtesy_before_a_question_is_no_part_of_it(text: str, asked: str) -> None:
    assert without_courtesy(text) == asked


@given(st.text(max_size=300))
def test_a_search_never_becomes_empty_nor_longer(text: str) -> None:
    assert bool(search_text(text).strip()) == bool(text.strip())
    assert len(search_text(text)) <= len(text)


def test_a_long_run_of_hyphens_is_decided_at_once() -> None:
    """Where a name with dots may begin is looked for once in a run of letters and hyphens, not at each of them."""
    started = time.process_time()
    choose("-" * 20_000)

    assert time.process_time() - started < 0.5
    assert choose("see --my-notes.md please").reason == "workspace_retrieval_cue"


FILE = """
languages = ["german"]
[add]
documents = ["price book", "Netlist"]
[remove]
documents = ["policy"]
"""


def test_a_file_adds_removes_and_chooses_languages() -> None:
    cues = cues_of((FILE,))

    assert choose("is it in the price book?", cues).wants_documents
    assert choose("open the NETLIST", cues).wants_documents
    assert choose("Was steht im Handbuch?", cues).wants_documents
    assert not choose("what is our policy?", cues).wants_documents
    assert choose("what is our policy?").wants_documents


def test_the_more_specific_file_has_the_last_word() -> None:
    assert choose("our policy?", cues_of((FILE, '[add]\ndocuments = ["policy"]'))).wants_documents


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("languages = [", "no TOML"),
        ("documents: price book", 'no TOML, such as add.documents = ["price book"]'),
        ('languages = "german"', "languages must be a list"),
        ('languages = ["klingon"]', "'klingon' does not ship: use french, german, spanish"),
        ('languages = [["german"]]', "['german'] does not ship"),
        ("x = " + "[" * 20_000, "brackets in brackets"),
        ("x = " + "1" * 5000, "no TOML"),
        ("[add]\ndocuments = ['C++']", "'C++' would be seen in every 'c'"),
        ("[add]\ndocumentz = ['x']", "add.documentz is no kind of cue: use small_talk"),
        ("[add]\ndocuments = 'x'", "add.documents must be a list of phrases"),
        ("[add]\ndocuments = [3]", "add.documents: 3 is no text"),
        ("[add]\ndocuments = ['!?']", "'!?' holds no word"),
        (f"[add]\ndocuments = ['{'x' * 101}']", "more than 100 characters"),
        ("add = 3", "add must be a table"),
        ("[extra]\nx = 1", "'extra' is unknown: use languages, [add] and [remove]"),
        (f"[add]\ndocuments = {['x'] * (MAX_PHRASES + 1)}", f"more than {MAX_PHRASES} phrases"),
    ],
)
def test_a_bad_file_is_refused_with_what_would_do(text: str, said: str) -> None:
    assert said in problem_in(text)
    with pytest.raises(InvalidCues):
        cues_of((text,))


def test_all_that_is_wrong_is_said_together() -> None:
    problem = problem_in("x = 1\nlanguages = ['klingon']\n[add]\ny = ['z']")

    assert "'x' is unknown" in problem
    assert "klingon" in problem
    assert "add.y" in problem


def test_case_and_accents_make_no_difference() -> None:
    assert words_of("¿DÓNDE está l'équipe d’accord?") == ("donde", "esta", "l", "equipe", "d", "accord")
    assert words_of("It's what's-his-name, weißt") == ("it's", "what's-his-name", "weisst")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phrase_of_a_language_that_ships_can_be_matched(language: str) -> None:
    cues = LANGUAGES[language]

    assert all(words_of(phrase) for kind in KINDS for phrase in getattr(cues, kind))
