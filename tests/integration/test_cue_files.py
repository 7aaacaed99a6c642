"""Cues of a workspace are kept like directives: versions, files that are followed, and nothing that is lost."""

from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.message import Role, Scope
from grounding.strategy import problem_in
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from promptpolicy.policy import InvalidDirective, Kind, Place, Slot
from promptpolicy.publishing import Publisher

ACME = Scope("acme")
CUES = Slot(Place(ACME), Kind.CUES)
GOOD = '[add]\ndocuments = ["netlist"]'
BAD = '[add]\ndocumentz = ["netlist"]'
CHECKS = {Kind.CUES: problem_in}


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def publisher(redis: Redis, tmp_path: Path) -> FileSyncPublisher:
    return FileSyncPublisher(Directives(redis, timeout_seconds=5), words, 400, DirectiveTree(tmp_path), CHECKS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "workspaces" / "acme" / "context"
    folder.mkdir(parents=True)
    return folder / "CUES.toml"


async def held(publisher: Publisher) -> list[str]:
    return [one.text for one in await publisher.directives.load(ACME) if one.slot.kind is Kind.CUES]


async def test_a_file_of_cues_holds_from_the_next_import_on(publisher: FileSyncPublisher, file: Path) -> None:
    file.write_text(GOOD)
    await publisher.import_workspace(ACME)

    assert await held(publisher) == [GOOD]


async def test_a_bad_file_is_named_and_the_last_good_cues_stay(publisher: FileSyncPublisher, file: Path) -> None:
    file.write_text(GOOD)
    await publisher.import_workspace(ACME)
    file.write_text(BAD)
    with capture_logs() as events:
        done = await publisher.import_workspace(ACME)

    assert await held(publisher) == [GOOD]
    assert "documentz is no kind of cue" in done.rejected["workspaces/acme/context/CUES.toml"]
    assert [event["event"] for event in events] == ["directive.rejected"]
    assert file.read_text() == BAD


async def test_what_is_published_over_a_bad_file_leaves_it_beside(publisher: FileSyncPublisher, file: Path) -> None:
    file.write_text(BAD)
    await publisher.publish(CUES, GOOD, author="a:1", origin="api")

    assert file.read_text().strip() == GOOD
    assert file.with_name("CUES.toml.rejected").read_text() == BAD


async def test_bad_cues_are_not_published(publisher: FileSyncPublisher) -> None:
    with pytest.raises(InvalidDirective, match="documentz is no kind of cue"):
        await publisher.publish(CUES, BAD, author="a:1", origin="api")

    assert await held(publisher) == []


async def test_cues_are_no_part_of_how_the_model_must_behave(publisher: FileSyncPublisher) -> None:
    await publisher.publish(CUES, GOOD, author="a:1", origin="api")
    directives = await publisher.directives.load(ACME)

    assert policy.measure(Role.MEMBER, directives, words) == policy.measure(Role.MEMBER, (), words)
