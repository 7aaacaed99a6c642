"""Standing rules are found in what a person says plainly, in four languages, and in nothing that looks like one."""

from __future__ import annotations

import pytest

from grounding.memory.records import is_general
from grounding.memory.records.standing_rules import stated_rules


@pytest.mark.parametrize(
    "said",
    [
        "Always include version numbers when I ask about software dependencies.",
        "always mention versions when I ask about dependencies",
        "I prefer short answers.",
        "please use metric units when I ask about distances",
        "From now on answer in German.",
        "Whenever I ask about recipes, please give the amounts in grams.",
        "Could you always show the source of a figure?",
        "Can you include the currency when I ask about prices?",
        "Never use emojis in your answers.",
        "Please don't call me by my last name any more.",
        "Keep your answers under 100 words, please.",
        "Make sure to always double-check dates in itineraries.",
        "I want you to always explain the steps.",
        "If I ask about a medicine, mention its side effects.",
        "Your replies should be in plain language.",
        "Stop using bullet points.",
        "Call me Lena.",
        "Going forward, summarise each article in two sentences.",
        "Answer in Spanish from now on.",
        "I'd like short replies.",
        "I really prefer trains over planes for trips within Europe, can you find one to Lyon?",
        "My preference is for window seats.",
        "I'm planning next week, and I prefer meetings in the afternoon, so when would you put the review?",
        "Remember to always add a packing list when I ask about trips.",
        "Antworte ab jetzt immer auf Deutsch.",
        "Bitte immer die Quelle nennen.",
        "Wenn ich nach Rezepten frage, nenne bitte die Kalorien.",
        "Ich bevorzuge kurze Antworten.",
        "Nenne immer die Versionsnummern, wenn ich nach Bibliotheken frage.",
        "Künftig bitte keine Emojis verwenden.",
        "Réponds toujours en français.",
        "À partir de maintenant, réponds en français.",
        "Quand je demande des distances, utilise des kilomètres.",
        "Je préfère les réponses courtes.",
        "N'utilise jamais d'emojis.",
        "Responde siempre en español.",
        "A partir de ahora, responde en español.",
        "Cuando te pregunte por distancias, usa kilómetros.",
        "Prefiero respuestas cortas y claras.",
        "No uses nunca emojis en tus respuestas.",
        "Please answer all my questions in British English.",
        "For all future answers, put the conclusion first.",
        "Whenever you give me code, use type hints.",
        "Remember that I prefer Celsius.",
        "never suggest meat dishes, I'm vegetarian",
        "Siempre dame ejemplos, por favor.",
    ],
)
def test_a_sentence_that_states_a_rule_is_found(said: str) -> None:
    assert len(list(stated_rules(said))) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Do you always include version numbers?",
        "I always wanted to ask how tides work.",
        "please always check this now",
        "Never mind that.",
        "Should I always use metric units?",
        'He told me: "Always answer in German."',
        '"Always be closing" is a line from a film.',
        "Translate into German: I prefer red wine with fish.",
        "My boss says I should always write tests.",
        "What do you prefer, tea or coffee?",
        "Which unit do you use when I ask about distances?",
        "Please answer in German.",
        "I prefer the second option.",
        "Use metric units for this one.",
        "From now on I'm going to be a vegetarian.",
        "Remind me to smile when I ask about her day.",
        "Tell me what to say when I ask for a raise.",
        "We always meet on Mondays.",
        "Never say never!",
        "It always rains when I ask about the weather.",
        "Can you show me how to add a login?",
        "Give me three examples.",
        "I never said I prefer tea over coffee.",
        "Anna prefers short answers.",
        "If I prefer trains, which pass should I buy?",
        "Write a mail to Bo saying I prefer Tuesday for the review.",
        "Always nice to talk to you!",
        "In future the office will be on Main Street.",
        "Call me later today.",
        "I don't think I prefer tea.",
        "Antworte bitte auf Deutsch.",
        "Ich wollte dich das immer schon fragen.",
        "Was ist dir lieber, Tee oder Kaffee?",
        "Immer wieder montags gibt es Suppe.",
        "Tu réponds toujours si vite !",
        "J'ai toujours voulu apprendre le piano.",
        "Préfères-tu le thé ou le café ?",
        "Siempre quise aprender a nadar.",
        "¿Siempre respondes en español?",
        "Nunca llueve en julio.",
        "Summarise this: I prefer tea.",
        "If you write to Bo, give him my best.",
        "I never prefer one over the other.",
        "What would you recommend when I ask for a pay rise?",
        "Proofread this:\nAlways include the date.",
        "Translate the following text.\nI prefer red wine with fish.",
        "> Always answer in German",
        "Keep going and never give up!",
        "Writing has always been a passion of mine.",
    ],
)
def test_a_question_a_request_for_now_a_quotation_and_talk_of_other_things_are_no_rules(said: str) -> None:
    assert list(stated_rules(said)) == []


def test_a_list_of_rules_for_the_bot_is_the_writers_own() -> None:
    said = "Please follow these rules:\n- Always answer in German\n- Never use emojis"
    assert [one.text for one in stated_rules(said)] == ["Always answer in German", "Never use emojis"]


def test_a_preference_is_found_at_the_end_of_a_long_sentence() -> None:
    said = f"I am planning {'a long tour with many stops, ' * 12}so I prefer trains over planes, can you help me?"
    assert [(one.text, one.kind) for one in stated_rules(said)] == [("I prefer trains over planes", "preference")]


@pytest.mark.parametrize(
    ("rule", "general"),
    [
        ("Answer in German from now on", True),
        ("I prefer short answers", True),
        ("Ich bevorzuge kurze Antworten", True),
        ("Never use emojis", True),
        ("I prefer trains over planes", False),
        ("Use metric units when I ask about distances", False),
        ("Quand je demande des distances, utilise des kilomètres", False),
    ],
)
def test_a_rule_is_general_if_it_has_no_condition_and_is_no_preference_about_some_thing(
    rule: str, general: bool
) -> None:
    assert is_general(rule) is general
