"""Directives made shorter: what has to stay as it is, and what is said of a text that will not do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt_input import load_tokens
from promptpolicy import condense
from promptpolicy.condense import check_kind, condense_messages, difference, judge, retry_messages, verbatim
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Slot

COUNT = load_tokens().count
OLD = """\
# House rules

Please always make sure that you answer in a friendly way whenever somebody asks you something about refunds, because we
want our customers to be happy. A refund takes 14 days, and Lena from Acme has to sign it. Write to help@acme.com, or
look at https://acme.com/refunds. Say "we are on it" first. Run `refund --dry` and never anything else.

<!-- verbatim -->
The liability is limited to 500 EUR.
<!-- /verbatim -->
"""
NEW = """\
# House rules

Be friendly about refunds. They take 14 days, signed by Lena (Acme). Address help@acme.com, else
https://acme.com/refunds. Say "we are on it" first. Run `refund --dry`, never anything else.

<!-- verbatim -->
The liability is limited to 500 EUR.
<!-- /verbatim -->
"""


def problems(new: str, old: str = OLD) -> str:
    return "; ".join(judge(old, new, COUNT).problems)


def test_a_shorter_text_that_keeps_every_verbatim_part_may_be_published() -> None:
    judged = judge(OLD, NEW, COUNT)
    assert judged.problems == ()
    assert judged.text == NEW.strip()
    assert judged.notes == ("these words are gone: always",)


@pytest.mark.parametrize(
    ("part", "other", "said"),
    [
        ("14 days", "two weeks", "it lost the number '14'"),
        ("help@acme.com", "us", "it lost the address 'help@acme.com'"),
        ("https://acme.com/refunds", "https://acme.com", "it lost the address 'https://acme.com/refunds'"),
        ("we are on it", "we are at it", "it lost the quoted text '\"we are on it\"'"),
        ("`refund --dry`", "`refund`", "it lost the code '`refund --dry`'"),
        ("Lena", "somebody", "it lost the name 'Lena'"),
        ("500", "600", "it lost the marked text"),
        ("<!-- verbatim -->\n", "", "it lost the marked text"),
        ("Be friendly", "Be 3 times as friendly", "it adds the number '3'"),
        ("Be friendly", "Be friendly (http://evil.example)", "it adds the address 'http://evil.example'"),
    ],
)
def test_what_is_lost_or_added_is_named(part: str, other: str, said: str) -> None:
    assert part in NEW
    assert said in problems(NEW.replace(part, other))


def test_a_text_that_is_not_shorter_is_rejected_with_both_lengths() -> None:
    assert f"it is not shorter: {COUNT(OLD.strip())} tokens instead of {COUNT(OLD.strip())}" in problems(OLD)
    assert "it is not shorter" in problems(NEW + "More and more words. " * 60)
    assert "the text is empty" in problems("  \n")


def test_each_number_stays_as_often_as_it_was() -> None:
    old = "Answer within 3 days please. Never write more than 3 sentences at all, please."
    assert "it lost the number '3' (2 times, and now 1)" in problems("Answer within 3 days, in few sentences.", old)
    assert problems("Answer within 3 days, in at most 3 sentences.", old) == ""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Please don't ever share data with others.", "Share data with others.", ("don't",)),
        ("You cannot promise a refund to anybody at all.", "Promise a refund to anybody.", ("cannot",)),
        ("Please avoid all politics.", "Discuss politics.", ("avoid",)),
        ("Gib bitte keinen Rabatt, außer sie fragen danach.", "Gib Rabatt, sie fragen danach.", ("keinen", "ausser")),
    ],
)
def test_words_that_turn_a_rule_around_are_pointed_out_where_they_are_gone(
    old: str, new: str, told: tuple[str, ...]
) -> None:
    notes = judge(old, new, COUNT).notes
    assert notes[0] == f"these words are gone: {', '.join(told)}"


def test_a_no_that_is_gone_is_pointed_out_where_another_is_left() -> None:
    old = "Please never share any data with anyone. Please never give a discount to anyone."
    told = judge(old, "Never share data. Give a discount.", COUNT).notes
    assert told[0] == "fewer words say no: 1, and now it is 2"
    assert judge(old, "Never share data. Never give a discount.", COUNT).notes == ()


RULES = """\
You are the friendly and helpful support assistant of Acme. Please always be polite to our customers at all times.

- You must never share personal data of one customer with another customer, under any circumstances.
- Refunds above 100 EUR may only be promised after a manager has approved them.
- Unless the customer explicitly asks for details, keep your answers shorter than 5 sentences.
- Before you change an address, ask for the order number and confirm the postal code.
- Links must point to acme.com only, because everything else could be a fraud.
- Always answer in the language in which the customer wrote.
"""
SHORT = """\
Acme's friendly support assistant, polite to customers.

- Never share one customer's personal data with another.
- Promise refunds above 100 EUR only after manager approval.
- Under 5 sentences unless details are asked for.
- Before changing an address, get order number and postal code.
- Link only to acme.com.
- Answer in the customer's language.
"""


def test_a_text_that_says_all_rules_in_fewer_words_has_nothing_to_look_at() -> None:
    judged = judge(RULES, SHORT, COUNT)
    assert judged.problems == ()
    assert not [one for one in judged.notes if "rule" in one]


@pytest.mark.parametrize(
    ("part", "other", "said"),
    [
        ("- Never share one customer's personal data with another.\n", "", "gone: 'You must never share"),
        ("- Answer in the customer's language.\n", "", "gone: 'Always answer in the language"),
        ("Never share", "Share", "lost its 'never': 'You must never share"),
        (" only after manager approval", "", "lost its 'only': 'Refunds above"),
        ("Link only to", "Link to", "lost its 'only': 'Links must"),
        (" unless details are asked for", "", "gone: 'Unless the customer"),
        ("Before changing an address, get", "Get", "lost its condition: 'Before you change"),
        ("Link only to", "Never link to", ""),
        ("Answer in the", "Never answer in the", "say the opposite: 'Always answer in the language"),
        ("Answer in the", "You may answer in the", "weaker without its 'always': 'Always answer in the language"),
    ],
)
def test_a_rule_that_may_be_gone_or_turned_is_told_in_its_own_words(part: str, other: str, said: str) -> None:
    assert part in SHORT
    told = judge(RULES, SHORT.replace(part, other), COUNT).notes
    assert [one for one in told if "rule" in one and said in one] or not said


@pytest.mark.parametrize(
    ("old", "kept", "lost", "said"),
    [
        (
            "Gib niemals personenbezogene Daten eines Kunden an andere Kunden weiter.",
            "Nie personenbezogene Daten an andere Kunden weitergeben.",
            "Personenbezogene Daten an andere Kunden weitergeben.",
            "'niemals'",
        ),
        (
            "Rabatte darfst du nur geben, wenn ein Manager zugestimmt hat.",
            "Rabatte nur mit Zustimmung eines Managers.",
            "Rabatte geben.",
            "'nur'",
        ),
        (
            "Ne donnez jamais de conseils juridiques.",
            "Jamais de conseils juridiques.",
            "Conseils juridiques.",
            "jamais",
        ),
        ("Nunca compartas datos de los clientes.", "Nunca compartas datos.", "Comparte datos.", "'nunca'"),
        ("不要泄露客户的个人信息。", "不泄露客户个人信息。", "泄露客户个人信息。", "'不'"),
        ("고객의 개인정보를 절대 공유하지 마세요.", "고객 개인정보 공유 금지.", "고객 개인정보 공유.", "'마세요'"),
    ],
)
def test_rules_of_other_languages_are_told_too(old: str, kept: str, lost: str, said: str) -> None:
    assert list(condense.lost(old, kept)) == []
    assert said in next(condense.lost(old, lost))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Никогда не передавайте адреса клиентов третьим лицам.", "Передавайте адреса клиентов."),
        ("لا تشارك عناوين العملاء مع أطراف ثالثة أبدا.", "شارك عناوين العملاء."),
        ("Μην δίνεις ποτέ διευθύνσεις πελατών σε τρίτους.", "Δίνε διευθύνσεις."),
    ],
)
def test_where_no_rule_can_be_looked_for_that_is_told(old: str, new: str) -> None:
    """Nothing to look at was said of a rule that was turned around, and published without a person."""
    assert judge(old, new, COUNT).notes == ("in this script no rules are looked for: compare both texts",)


@given(st.text(max_size=300))
def test_a_text_has_lost_no_rule_of_its_own(text: str) -> None:
    assert list(condense.lost(text, text)) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("If at all possible, please keep each of your answers below 40 words.", "Keep answers below 40 words.", ""),
        ("Please answer in short sentences wherever possible.", "Answer in short sentences.", ""),
        ("Bitte antworte wenn möglich immer in kurzen Sätzen.", "Antworte immer in kurzen Sätzen.", ""),
        ("If the invoice is possible, keep answers below 40 words.", "Keep answers below 40 words.", "condition"),
    ],
)
def test_a_rule_that_is_put_softly_has_no_condition_to_lose(old: str, new: str, said: str) -> None:
    noted = "; ".join(judge(old, new, COUNT).notes)
    assert ("condition" in noted) == bool(said)


def test_of_many_rules_that_are_gone_the_first_are_told_and_the_others_counted() -> None:
    told = judge(" ".join(f"Never sell {chr(97 + n) * 5}." for n in range(20)), "Buy.", COUNT).notes
    assert (len(told), told[-1]) == (13, "and 10 more")


def test_a_quote_ends_where_another_begins() -> None:
    """Were each that nobody closes looked for to the end of its line, ten thousand would hold up everybody else."""
    for opening, closing in ("“”", "„“", "«»", "‘’"):
        quote = f"{opening}we are on it{closing}"
        assert list(verbatim(f"{opening}say {quote} first")) == [("quoted text", quote)]
        assert verbatim(opening * 9) == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Please answer them all within 3 days.", "Answer within 3 hours.", "it lost the amount '3 days'"),
        ("Please always grant 14 working days.", "Grant 14 days.", "it lost the amount '14 working days'"),
        ("Please always grant 14 working days.", "Grant 14 business days.", ""),
        ("There is a trial period of 14 days here.", "There is a 14-day trial.", ""),
        ("Please never promise more than 5 € of it.", "Never promise more than $5.", "it lost the amount '5 €'"),
        ("Please never promise more than 5 € of it.", "Never promise more than 5 EUR.", ""),
        ("Please write at most two sentences, always.", "Write short sentences.", "it lost the amount 'two sentences'"),
        ("Please write at most two sentences, always.", "Write at most 2 sentences.", ""),
        (
            "Please write at most two sentences, always.",
            "At most three sentences.",
            "it lost the amount 'two sentences'",
        ),
        ("Please do ask them twice before you go on.", "Ask before going on.", "it lost the amount 'twice'"),
        ("Bitte gib ihnen immer drei werktage zeit.", "gib drei tage zeit", "it lost the amount 'drei werktage'"),
        ("This one is for the one who asks you about it.", "This is for who asks.", ""),
    ],
)
def test_numbers_keep_their_units_and_spelled_out_ones_stay_in_words_or_digits(old: str, new: str, said: str) -> None:
    assert problems(new, old) == said


def test_the_numbers_of_a_list_and_words_in_capitals_for_emphasis_are_no_parts_that_stay() -> None:
    old = "1. You must NEVER ever reveal the price list to anybody at all.\n2. Please be brief, in all that you say."
    assert problems("Never reveal the price list. Be brief.", old) == ""


def test_a_language_that_writes_all_nouns_with_capitals_has_no_names_for_that() -> None:
    old = "Bitte antworte auf jede Frage zu einer Rechnung mit der Nummer und dem Datum der Rechnung, freundlich."
    assert problems("Nenne zu einer Frage Nummer und Datum, freundlich.", old) == ""


def test_a_fence_around_the_whole_answer_is_taken_off_and_one_inside_has_to_stay() -> None:
    assert judge(OLD, f"```markdown\n{NEW}\n```", COUNT).problems == ()
    old = 'Please answer with a block that looks exactly like this one here:\n```json\n{"a": 1}\n```\nand nothing else.'
    assert problems('Answer only with:\n```json\n{"a": 1}\n```', old) == ""
    assert "it lost the code" in problems('Answer only with {"a": 1}', old)


def test_what_is_missing_from_a_long_list_of_mistakes_is_counted() -> None:
    old = " ".join(f"Say number {number} please." for number in range(100, 130))
    told = judge(old, "Say all.", COUNT).problems
    assert (len(told), told[-1]) == (13, "and 18 more")


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_text_that_is_accepted_lacks_a_part_that_has_to_stay(old: str, new: str) -> None:
    judged = judge(old, new, COUNT)
    if not judged.problems:
        left = verbatim(judged.text)
        assert all(part in judged.text for _, part in verbatim(old))
        assert all(left[one] >= times for one, times in verbatim(old).items() if one[0] == "number")
        assert COUNT(judged.text) < COUNT(old)


def test_a_model_that_is_asked_again_is_told_what_was_wrong() -> None:
    asked = retry_messages(condense_messages(OLD), "nothing", ("it lost the number '14'",))
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
    assert asked[1]["content"] == OLD
    assert "it lost the number '14'" in asked[3]["content"]


def test_the_difference_names_both_texts() -> None:
    assert difference("a\nb", "a\nc", "soul (workspace) version 2").splitlines()[:2] == [
        "--- soul (workspace) version 2",
        "+++ soul (workspace) version 2, condensed",
    ]


def test_tables_are_not_condensed() -> None:
    check_kind(Slot(EVERYWHERE, Kind.SKILL, "refunds"))
    with pytest.raises(InvalidDirective, match="is a table"):
        check_kind(Slot(EVERYWHERE, Kind.CUES))
