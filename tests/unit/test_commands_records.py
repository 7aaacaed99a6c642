"""What people say about the records that are kept: who may see, confirm and forget which."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from connectors.message import Author, ConversationKey, InboundMessage, Role, Scope
from grounding.memory.records import NeverDeleted, NewRecord, NoSuchRecord, Provenance, Record, State, Type
from runtime.commands.memory import FORGOT_MINE, RecordCommands
from runtime.commands.registry import CommandRefused, Invocation
from tests.emulators.records import RememberedRecords

LENA, BO = Scope("acme", None, "http:u1"), Scope("acme", None, "http:u2")
WORKSPACE = Scope("acme")


@dataclass
class Chat:
    records: RememberedRecords = field(default_factory=RememberedRecords)
    said: int = 0
    not_to_come: list[ConversationKey] = field(default_factory=list)

    async def add(self, text: str, scope: Scope = WORKSPACE, type_: Type = Type.FACT) -> Record:
        by = Provenance(author="http:u1", turn_id="t1", context_id="http:default", origin="extraction")
        return (await self.records.add(scope, NewRecord(type_, text), by)).record

    async def say(
        self,
        words: str,
        *,
        role: Role = Role.MEMBER,
        direct: bool = False,
        public: bool = True,
        user: str = "u1",
        again: bool = False,
    ) -> str:
        self.said += 0 if again else 1
        key = ConversationKey("acme", "http", "default")
        message = InboundMessage(
            "http", "default", f"m{self.said}", Author(user, "Lena"), f"/memory {words}", direct=direct, public=public
        )
        return await RecordCommands(self.records, self._let_none_come).run(Invocation(key, message, role, words))

    async def _let_none_come(self, key: ConversationKey) -> None:
        self.not_to_come.append(key)


@pytest.fixture
def chat() -> Chat:
    return Chat()


async def test_people_see_what_is_kept_about_them_and_admins_the_workspaces(chat: Chat) -> None:
    mine = await chat.add("Lena likes green.", LENA)
    shared = await chat.add("The boat is Petrel.")
    await chat.add("Bo likes blue.", BO)

    assert mine.id in await chat.say("list", direct=True)
    assert shared.id not in await chat.say("list", direct=True)
    with pytest.raises(CommandRefused, match="only admins"):
        await chat.say("list")
    assert "Petrel" in await chat.say("list", role=Role.ADMIN)
    assert "green" not in await chat.say("list", role=Role.ADMIN)
    both = await chat.say("list facts", role=Role.ADMIN, direct=True)
    assert "(yours)" in both
    assert "Petrel" in both
    assert await chat.say("list decision", direct=True) == "There are no such records."
    with pytest.raises(CommandRefused, match="The kinds are"):
        await chat.say("list toys", direct=True)


async def test_one_is_shown_whole_with_where_it_came_from(chat: Chat) -> None:
    shared = await chat.add("The boat is *Petrel*.")
    shown = await chat.say(f"show {shared.id}")
    assert "The boat is \\*Petrel\\*." in shown
    assert "found in what was said by `http:u1` in `http:default`" in shown


async def test_confirming_twice_by_the_same_message_counts_once(chat: Chat) -> None:
    shared = await chat.add("The boat is Petrel.")
    assert "Confirmed" in await chat.say(f"confirm {shared.id}")
    await chat.say(f"confirm {shared.id}", again=True)
    assert (await chat.records.get(WORKSPACE, shared.id)).confirmations == 1


async def test_outcomes_and_word_for_word_and_retiring(chat: Chat) -> None:
    decided = await chat.add("We decided to sail.", LENA, Type.DECISION)
    mine = await chat.add("Lena likes green.", LENA)
    assert "Outcome noted" in await chat.say(f"outcome {decided.id} success", direct=True)
    assert (await chat.records.get(LENA, decided.id)).state is State.REVIEWED
    with pytest.raises(CommandRefused, match="Give the outcome"):
        await chat.say(f"outcome {decided.id} great", direct=True)
    await chat.say(f"verbatim {mine.id}", direct=True)
    assert (await chat.records.get(LENA, mine.id)).verbatim
    await chat.say(f"retire {mine.id}", direct=True)
    assert (await chat.records.get(LENA, mine.id)).is_hidden


async def test_members_take_nothing_of_the_workspaces_away_and_viewers_change_nothing(chat: Chat) -> None:
    shared = await chat.add("The boat is Petrel.")
    for words in ("forget", "retire", "verbatim"):
        with pytest.raises(CommandRefused, match="Only admins"):
            await chat.say(f"{words} {shared.id}")
    with pytest.raises(CommandRefused, match="Only admins"):
        await chat.say(f"confirm {shared.id}", role=Role.VIEWER)
    assert "deleted" in await chat.say(f"forget {shared.id}", role=Role.ADMIN)
    with pytest.raises(NoSuchRecord):
        await chat.say(f"show {shared.id}", role=Role.ADMIN)


async def test_nobody_reaches_what_is_somebody_elses_not_even_an_admin_or_from_a_group(chat: Chat) -> None:
    mine = await chat.add("Lena likes green.", LENA)
    for words in ("show", "forget", "confirm"):
        with pytest.raises(NoSuchRecord):
            await chat.say(f"{words} {mine.id}", direct=True, user="u2", role=Role.ADMIN)
        with pytest.raises(NoSuchRecord):
            await chat.say(f"{words} {mine.id}")


async def test_a_viewer_may_forget_what_is_kept_about_them_one_by_one_and_all_of_it(chat: Chat) -> None:
    mine = await chat.add("Lena likes green.", LENA)
    decided = await chat.add("I decided to sail.", LENA, Type.DECISION)
    await chat.say(f"forget {mine.id}", direct=True, role=Role.VIEWER)
    with pytest.raises(NeverDeleted):
        await chat.say(f"forget {decided.id}", direct=True)
    with pytest.raises(CommandRefused, match="in a direct message"):
        await chat.say("forget all", role=Role.ADMIN)
    assert chat.not_to_come == []
    assert await chat.say("forget all", direct=True, role=Role.VIEWER) == FORGOT_MINE
    assert await chat.records.list(LENA) == []
    assert [key.context_id for key in chat.not_to_come] == ["http:default"]


async def test_a_word_without_an_id_says_what_there_is_to_say(chat: Chat) -> None:
    with pytest.raises(CommandRefused, match="/memory confirm ID"):
        await chat.say("confirm")


async def test_what_is_kept_about_a_person_is_listed_however_much_the_workspace_keeps_since(chat: Chat) -> None:
    mine = await chat.add("Lena likes green.", LENA)
    for number in range(120):
        await chat.add(f"Berth {number} is taken.")
    assert mine.id in await chat.say("list", direct=True)
    assert mine.id in await chat.say("list", direct=True, role=Role.ADMIN)


async def test_what_is_out_of_use_is_still_kept_and_listed_by_that_word(chat: Chat) -> None:
    mine = await chat.add("Lena likes green.", LENA)
    await chat.say(f"retire {mine.id}", direct=True)
    assert await chat.say("list", direct=True) == "There are no such records."
    assert mine.id in await chat.say("list retired", direct=True)


async def test_what_a_private_place_keeps_is_listed_there_alone_until_somebody_there_shares_it(chat: Chat) -> None:
    kept = await chat.add("The plant in Lyon closes.", Scope("acme", None, "place:http:default"))

    assert "(this place only)" in await chat.say("list", public=False)
    assert "Lyon" not in await chat.say("list", role=Role.ADMIN)
    for word in ("show", "share", "confirm"):
        with pytest.raises(NoSuchRecord):
            await chat.say(f"{word} {kept.id}", role=Role.ADMIN)
        with pytest.raises(NoSuchRecord):
            await chat.say(f"{word} {kept.id}", direct=True)
    with pytest.raises(CommandRefused, match="Only members"):
        await chat.say(f"share {kept.id}", public=False, role=Role.VIEWER)

    assert "whole workspace" in await chat.say(f"share {kept.id}", public=False)
    assert "Lyon" in await chat.say(f"show {kept.id}")
    assert (await chat.records.get(WORKSPACE, kept.id)).shared_by == "http:u1"
    assert "already" in await chat.say(f"share {kept.id}", public=False)
