"""People mark answers by reactions, and what they marked as good is shown where something like it is asked."""

from tests.acceptance.test_telegram_chat import BO, LENA, TEAM, Chat, chat, telegram  # noqa: F401 - fixtures

ANSWER = "Moor the Petrel at the north pier, bow to the swell, with two springs."
ASKED = "how do I moor the Petrel?"


async def marked(chat: Chat, count: int) -> None:  # noqa: F811
    """Wait until so many marks were told."""
    await chat.telegram.until(lambda _: len(chat.bot.told("turn.marked")) >= count)


async def test_an_answer_that_was_liked_is_shown_where_it_is_asked_again_and_no_more_when_it_is_not(
    chat: Chat,  # noqa: F811
) -> None:
    chat.bot.model.will(ANSWER)
    await chat.hears(f"{chat.at_bot} {ASKED}", to=TEAM)
    await chat.bot.settle()
    message_id = chat.telegram.shown(TEAM)[-1].message_id
    await chat.telegram.react(TEAM.id, message_id, "👀", by=BO)
    await chat.telegram.react(TEAM.id, message_id, "👍", by=BO)
    await marked(chat, 1)

    await chat.hears(f"{ASKED} Anything about springs?", by=LENA)
    shown = chat.bot.sent["user"]
    assert "<good_answers>" in shown
    assert f"Asked: {ASKED}\n  Answered: {ANSWER}" in shown
    assert ANSWER not in chat.bot.sent["system"], "the word of one member puts nothing before everybody"
    await chat.hears("what does the harbour plan cost?", by=LENA)
    assert "<good_answers>" not in chat.bot.sent["user"]

    await chat.telegram.react(TEAM.id, message_id, "", by=BO)
    await marked(chat, 2)
    await chat.hears("/new", by=LENA)
    await chat.hears(f"{ASKED} Anything about springs?", by=LENA)
    assert "<good_answers>" not in chat.bot.sent["user"]
    assert [one["mark"] for one in chat.bot.told("turn.marked")] == ["good", "none"]
    assert ANSWER not in str(chat.bot.told("turn.marked"))
