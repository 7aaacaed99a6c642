"""Who may give which command, and what is said where one cannot be run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import structlog

from connectors.connector import CommandHint
from connectors.message import AgentRuntimeError, Author, ConversationKey, InboundMessage, Role, StoreUnavailable
from runtime.commands import Commands, ParsedCommand
from runtime.commands.registry import Command, CommandRefused, Invocation
from runtime.commands.session import Help

KEY = ConversationKey("acme", "telegram", "501")
MESSAGE = InboundMessage("telegram", "501", "m1", Author("501", "Lena"), "/x")
SECONDS = 0.05

Run = Callable[[Invocation], Awaitable[str]]


async def repeat(invocation: Invocation) -> str:
    return f"{invocation.user} as {invocation.role}: {invocation.rest}"


def failing(error: Exception) -> Run:
    async def fail(_: Invocation) -> str:
        raise error

    return fail


def commands(*further: Command) -> Commands:
    return Commands(
        (
            Command("repeat", "say it again", repeat, "[text]"),
            Command("rule", "rule the place", repeat, role=Role.ADMIN),
            *further,
        ),
        SECONDS,
    )


async def said(
    word: str, rest: str = "", role: Role = Role.MEMBER, mark: str = "/", among: Commands | None = None
) -> str | None:
    return await (among or commands()).answer(ParsedCommand(word, rest, sure=False, mark=mark), KEY, MESSAGE, role)


async def test_a_command_is_given_all_that_it_needs() -> None:
    assert await said("repeat", "a\n  b") == "telegram:501 as member: a\n  b"


async def test_a_role_that_is_too_low_is_told_whose_the_command_is() -> None:
    assert await said("rule") == "Only admins can use `/rule`. Your role here is member."
    assert await said("rule", role=Role.ADMIN) == "telegram:501 as admin: "


async def test_a_misspelt_command_suggests_only_what_the_person_may_give() -> None:
    assert "`/repeat`" in str(await said("repaet"))
    assert "`/rule`" not in str(await said("rul"))
    assert "`/rule`" in str(await said("rul", role=Role.ADMIN))


async def test_an_unknown_word_with_a_bang_is_a_message_unless_it_is_misspelt() -> None:
    assert await said("important", mark="!") is None
    assert "`/repeat`" in str(await said("repat", mark="!"))
    assert not commands().claims(ParsedCommand("important", "", sure=False, mark="!"), Role.MEMBER)
    assert commands().claims(ParsedCommand("important", "", sure=False, mark="/"), Role.MEMBER)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CommandRefused("Say it otherwise."), "Say it otherwise."),
        (StoreUnavailable("redis://secret is away"), StoreUnavailable.user_text),
        (AgentRuntimeError("internals"), AgentRuntimeError.user_text),
        (ZeroDivisionError("internals"), AgentRuntimeError.user_text),
    ],
)
async def test_what_goes_wrong_is_the_reply_and_nothing_internal_is_told(error: Exception, told: str) -> None:
    among = commands(Command("fail", "fail", failing(error)))

    with structlog.testing.capture_logs() as events:
        assert await said("fail", among=among) == told
    assert [event["ok"] for event in events if event["event"] == "command.run"] == [False]
    assert ("command.broke" in [event["event"] for event in events]) is isinstance(error, ZeroDivisionError)


async def test_a_command_that_takes_too_long_is_given_up() -> None:
    async def hang(_: Invocation) -> str:
        await asyncio.Event().wait()
        return "never"

    assert "took too long" in str(await said("hang", among=commands(Command("hang", "hang", hang))))


async def test_one_event_says_which_command_was_given_and_nothing_of_what_followed() -> None:
    with structlog.testing.capture_logs() as events:
        await said("repeat", "a secret")
        await said("sekret")
    assert [(one["event"], one["word"], one["ok"]) for one in events] == [
        ("command.run", "repeat", True),
        ("command.run", "unknown", False),
    ]


def test_platforms_are_shown_the_words_and_what_they_do() -> None:
    assert commands().hints()[0] == CommandHint("repeat", "say it again", "[text]")
    assert commands().knows("rule")
    assert not commands().knows("other")


async def test_help_lists_no_more_than_the_person_may_give() -> None:
    listed = list(commands().all)
    among = Commands(Help(listed).commands(), SECONDS)

    assert "rule" not in str(await said("help", among=among))
    assert "- `/rule` rule the place" in str(await said("help", role=Role.ADMIN, among=among))
    assert "Only admins can use `/rule`" in str(await said("help", "rule", among=among))
    assert "`/repeat [text]` say it again" in str(await said("help", "/Repeat please", among=among))


async def test_where_a_platform_keeps_the_slash_to_itself_commands_are_named_as_people_can_write_them() -> None:
    """Only commands, and only as such: what is no command, or what a command shows of other things, stays."""
    show = failing(CommandRefused("Say `/rule 2`, not `/etc`: a/rule"))
    listed = list(commands(Command("show", "show", show)).all)
    among = Commands((*listed, *Help(listed).commands()), SECONDS)
    message = replace(MESSAGE, command_mark="!")

    async def told(word: str) -> str:
        return str(await among.answer(ParsedCommand(word, "", sure=False, mark="!"), KEY, message, Role.MEMBER))

    assert await told("show") == "Say `!rule 2`, not `/etc`: a/rule"
    assert await told("rule") == "Only admins can use `!rule`. Your role here is member."
    assert "Did you mean `!repeat`? `!help` lists" in await told("repaet")
    assert (await told("help")).startswith("- `!repeat [text]` say it again")
    assert (await told("help")).endswith("`!help COMMAND` explains one.")
    assert "`!` works like `/`" in str(await said("help", among=among))
