"""Drafts in a real Redis: never live, conflicts with both texts, and the rule of the second person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from connectors.message import Scope
from promptpolicy.directives import Directives
from promptpolicy.drafts import ApprovalNeeded, DraftMoved, DraftState, NoSuchDraft
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Place, Slot
from promptpolicy.publishing import Publisher, VersionMoved

ACME = Scope("acme")
HOME = Place(ACME)
SYSTEM = Slot(HOME, Kind.SYSTEM)
LENA, TOM = "telegram:77", "telegram:78"


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def publisher(redis: Redis) -> Publisher:
    return Publisher(Directives(redis, timeout_seconds=5), words, 400)


async def texts(publisher: Publisher) -> list[str]:
    return [directive.text for directive in await publisher.directives.load(ACME)]


async def test_a_draft_is_never_live_and_its_version_keeps_note_and_draft(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "Answer in English.", author=LENA, origin="api")
    draft = await publisher.create_draft(SYSTEM, "Answer in German.", author=LENA, origin="api", note="for Bonn")
    assert await texts(publisher) == ["Answer in English."]
    assert await publisher.directives.drafts(HOME, SYSTEM) == [draft]
    assert "+Answer in German." in await publisher.draft_diff(draft)
    done = await publisher.publish_draft(HOME, draft.id, author=LENA, expected_revision=1)
    assert await texts(publisher) == ["Answer in German."]
    assert (done.version.version, done.version.note, done.version.draft) == (2, "for Bonn", draft.id)
    assert done.replaced is not None
    assert done.replaced.text == "Answer in English."
    assert "-Answer in English." in done.diff
    assert await publisher.directives.drafts(HOME) == []
    closed = await publisher.directives.draft(HOME, draft.id)
    assert (closed.state, closed.version) == (DraftState.PUBLISHED, 2)


async def test_a_draft_on_a_moved_base_is_refused_with_both_texts_and_can_be_merged(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, "mine", author=LENA, origin="api")
    await publisher.publish(SYSTEM, "theirs", author=TOM, origin="command")
    with pytest.raises(VersionMoved) as raised:
        await publisher.publish_draft(HOME, draft.id, author=LENA, expected_revision=1)
    newest = raised.value.newest
    assert newest is not None
    assert (newest.text, newest.author, raised.value.text) == ("theirs", TOM, "mine")
    assert (await publisher.directives.draft(HOME, draft.id)).text == "mine"
    await publisher.change_draft(HOME, draft.id, "both", author=LENA, expected_revision=1, base=1)
    await publisher.publish_draft(HOME, draft.id, author=LENA, expected_revision=2)
    assert await texts(publisher) == ["both"]


async def test_of_two_who_change_one_draft_the_second_gets_both_texts(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, "one", author=LENA, origin="api")
    both = await asyncio.gather(
        publisher.change_draft(HOME, draft.id, "lena", author=LENA, expected_revision=1),
        publisher.change_draft(HOME, draft.id, "tom", author=TOM, expected_revision=1),
        return_exceptions=True,
    )
    (moved,) = [one for one in both if isinstance(one, DraftMoved)]
    assert {moved.theirs.text, moved.text} == {"lena", "tom"}
    assert moved.theirs.revision == 2


async def test_of_two_who_publish_one_draft_one_succeeds(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, "one", author=LENA, origin="api")
    both = await asyncio.gather(
        *(publisher.publish_draft(HOME, draft.id, author=author, expected_revision=1) for author in (LENA, TOM)),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in both) == 1
    assert len(await publisher.directives.history(SYSTEM)) == 1


async def test_a_discarded_draft_can_be_read_but_not_published(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, "one", author=LENA, origin="api")
    await publisher.discard_draft(HOME, draft.id, author=TOM, expected_revision=1, reason="too short")
    with pytest.raises(DraftMoved, match="discarded"):
        await publisher.publish_draft(HOME, draft.id, author=LENA, expected_revision=2)
    assert (await publisher.directives.draft(HOME, draft.id)).reason == "too short"


async def test_a_draft_belongs_to_its_workspace_and_goes_with_it(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, "one", author=LENA, origin="api")
    for other in (Place(Scope("other")), EVERYWHERE):
        with pytest.raises(NoSuchDraft):
            await publisher.directives.draft(other, draft.id)
    await publisher.directives.forget_workspace(ACME)
    with pytest.raises(NoSuchDraft):
        await publisher.directives.draft(HOME, draft.id)


async def test_where_a_second_person_is_needed_every_change_waits_for_one(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "one", author=LENA, origin="api")
    await publisher.publish(SYSTEM, "two", author=LENA, origin="api")
    assert await publisher.directives.set_two_person(HOME, True, LENA)
    for change in (
        publisher.publish(SYSTEM, "three", author=LENA, origin="command"),
        publisher.rollback(SYSTEM, 1, author=LENA, origin="command"),
        publisher.clear(SYSTEM, author=LENA, origin="command"),
    ):
        with pytest.raises(ApprovalNeeded):
            await change
    assert await texts(publisher) == ["two"]
    waiting = {draft.text: draft for draft in await publisher.directives.drafts(HOME)}
    assert set(waiting) == {"three", "one", None}
    rollback = waiting["one"]
    with pytest.raises(ApprovalNeeded) as again:
        await publisher.publish_draft(HOME, rollback.id, author=LENA, expected_revision=1)
    done = await publisher.publish_draft(HOME, rollback.id, author=TOM, expected_revision=again.value.draft.revision)
    assert (done.version.author, done.version.approver, done.version.restores) == (LENA, TOM, 1)
    assert await texts(publisher) == ["one"]


async def test_a_change_of_a_waiting_draft_needs_approval_anew(publisher: Publisher) -> None:
    await publisher.directives.set_two_person(HOME, True, LENA)
    with pytest.raises(ApprovalNeeded) as raised:
        await publisher.publish(SYSTEM, "good", author=LENA, origin="api")
    draft = raised.value.draft
    await publisher.change_draft(HOME, draft.id, "bad", author=LENA, expected_revision=draft.revision)
    with pytest.raises(DraftMoved):
        await publisher.publish_draft(HOME, draft.id, author=TOM, expected_revision=draft.revision)
    assert await texts(publisher) == []


async def test_the_rule_of_one_workspace_is_not_that_of_another_and_ends_by_two_persons(publisher: Publisher) -> None:
    directives = publisher.directives
    await directives.set_two_person(HOME, True, LENA)
    await publisher.publish(Slot(Place(Scope("other")), Kind.SYSTEM), "free", author=LENA, origin="api")
    await publisher.publish(Slot(EVERYWHERE, Kind.SYSTEM), "free", author=LENA, origin="api")
    assert await directives.set_two_person(HOME, False, LENA)
    assert await directives.set_two_person(HOME, False, LENA)
    assert await directives.two_person(HOME) == (True, LENA)
    assert not await directives.set_two_person(HOME, False, TOM)
    await publisher.publish(SYSTEM, "free", author=LENA, origin="api")


async def test_an_edited_file_waits_as_one_draft_until_it_is_approved_or_discarded(
    redis: Redis, tmp_path: Path
) -> None:
    publisher = FileSyncPublisher(Directives(redis, timeout_seconds=5), words, 400, DirectiveTree(tmp_path))
    path = tmp_path / "workspaces" / "acme" / "context" / "SYSTEM_PROMPT.md"
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    await publisher.import_all()
    await publisher.directives.set_two_person(HOME, True, LENA)
    path.write_text("two\n")
    for _ in range(3):
        done = await publisher.import_all()
    (why,) = done.rejected.values()
    assert "second person" in why
    (note,) = await publisher.refused(HOME)
    assert "approve" in note.advice
    (draft,) = await publisher.directives.drafts(HOME)
    assert await texts(publisher) == ["one"]
    await publisher.publish_draft(HOME, draft.id, author=TOM, expected_revision=draft.revision)
    assert await texts(publisher) == ["two"]
    assert (await publisher.import_all()).rejected == {}
    assert path.read_text() == "two\n"
    path.write_text("three\n")
    await publisher.import_all()
    (draft,) = await publisher.directives.drafts(HOME)
    await publisher.discard_draft(HOME, draft.id, author=TOM, expected_revision=draft.revision, reason="rude")
    (why,) = (await publisher.import_all()).rejected.values()
    assert "rude" in why
    assert await publisher.directives.drafts(HOME) == []
    assert await texts(publisher) == ["two"]


async def test_a_draft_that_says_what_is_live_is_not_published(publisher: Publisher) -> None:
    draft = await publisher.create_draft(SYSTEM, None, author=LENA, origin="api")
    with pytest.raises(InvalidDirective, match="says the same already"):
        await publisher.publish_draft(HOME, draft.id, author=LENA, expected_revision=1)
