"""Settings: the environment over the file over the defaults, and every mistake told at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config import ConfigurationError, load, reference
from config.load import REMOVED
from config.settings import GROUNDING_NUMBERS, TOPICS, Settings

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


def write(folder: Path, text: str) -> Path:
    file = folder / "bot.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_environment_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, 'http_port = 9000\nllm_model = "openai/a"\n[routes]\n"telegram:-1" = "acme"\n')

    settings = load({"AGENT_RUNTIME_LLM_MODEL": "openai/b"}, file).settings

    assert (settings.http_port, settings.llm_model, settings.turn_lease_seconds) == (9000, "openai/b", 15)
    assert settings.routes == {"telegram:-1": "acme"}


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "http_port = 9000")

    assert load({"AGENT_RUNTIME_CONFIG": str(file)}).settings.http_port == 9000


def test_three_mistakes_are_reported_together_with_name_value_and_what_was_expected() -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(
            {
                "AGENT_RUNTIME_HTTP_PORT": "eighty",
                "AGENT_RUNTIME_REDIS_URL": "http://user:hunter2@host",
                "AGENT_RUNTIME_ACCESS_POLICY": "everybody",
                "AGENT_RUNTIME_HTP_PORT": "1",
            }
        )

    told = refused.value.problems
    assert len(told) == 4
    assert any("AGENT_RUNTIME_HTTP_PORT='eighty'" in line and "integer" in line for line in told)
    assert any("AGENT_RUNTIME_REDIS_URL=**********" in line and "redis://" in line for line in told)
    assert any("ACCESS_POLICY='everybody'" in line and "'pairing'" in line for line in told)
    assert any("AGENT_RUNTIME_HTP_PORT" in line and "Did you mean AGENT_RUNTIME_HTTP_PORT?" in line for line in told)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_no_toml_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load({}, write(tmp_path, "http_port = = 1"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load({}, tmp_path / "missing.toml")


@pytest.mark.parametrize("value", ["0", "-3", "many", "", "1.5", "9" * 400, "٣"])
def test_a_grounding_number_that_is_no_positive_integer_falls_back_and_is_named(value: str) -> None:
    variables = [f"AGENT_RUNTIME_{name.upper()}" for name in GROUNDING_NUMBERS]
    assert len(variables) == 13
    loaded = load(dict.fromkeys(variables, value))

    for name in GROUNDING_NUMBERS:
        assert getattr(loaded.settings, name) == Settings.model_fields[name].default
    assert sorted(fallen.variable for fallen in loaded.defaulted_numbers) == sorted(variables)


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = load({"AGENT_RUNTIME_ADMIN_TOKEN": "swordfish", "AGENT_RUNTIME_LLM_API_KEY": "sk-swordfish"}).settings

    assert "swordfish" not in repr(settings)
    assert "swordfish" not in str(settings.model_dump())


def test_an_empty_variable_unsets() -> None:
    assert load({"AGENT_RUNTIME_REDIS_URL": ""}).settings.redis_url is None


def test_a_blank_value_unsets_in_the_file_too_so_that_no_token_is_ever_blank(tmp_path: Path) -> None:
    settings = load({"AGENT_RUNTIME_LLM_MODEL": "  "}, write(tmp_path, 'admin_token = ""\nhttp_host = " "')).settings

    assert (settings.admin_token, settings.http_host, settings.llm_model) == (None, "127.0.0.1", None)


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "9" * 20])
def test_no_time_is_longer_than_what_clocks_and_stores_can_hold(value: str) -> None:
    times = [name.upper() for name in Settings.model_fields if name.endswith(("_seconds", "_days"))]
    with pytest.raises(ConfigurationError) as refused:
        load({f"AGENT_RUNTIME_{name}": value for name in times})
    assert len(refused.value.problems) == len(times) > 5


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('routes = "acme"', "expected a TOML table"),
        ('[routes]\nslack = "acme"', "expected connector:place, e.g. slack:T123"),
        ('[routes]\n"slack:T1" = "Acme!"', "expected a workspace's id"),
        ('access_admins = ["lena"]', "expected connector:user_id, e.g. telegram:42"),
        ("data_dir = 5", "expected the path of a folder"),
        ("HTTP_PORT = 8499", "in a file, write http_port"),
        ('delivery_placeholder = "…"', "this setting is gone"),
        ('retrieval_fusion = "rrf"', "this setting is gone, and its default always holds; remove it"),
        ("codex_file_max_bytes = 9", "this setting is gone; set AGENT_RUNTIME_DOCUMENT_MAX_BYTES instead"),
        ('answer_bots = "perhaps"', "expected true or false"),
        ('llm_tools = "alway"', "'alway': expected 'auto', 'always' or 'never'. Did you mean always?"),
        ('queue_mode = "Interrupt"', "Did you mean interrupt?"),
        ("[sigils.reader]\nscopes = []\nextra = 1", "SIGILS[reader][extra]=1: no such key; see"),
        ("[sigils.reader]", "SIGILS[reader][scopes] is missing: expected a value"),
    ],
)
def test_what_was_expected_is_said_in_words_of_the_documentation(tmp_path: Path, written: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load({}, write(tmp_path, written))

    assert [said in problem for problem in refused.value.problems] == [True]


def test_lists_are_comma_separated() -> None:
    settings = load({"AGENT_RUNTIME_ACCESS_ADMINS": "telegram:1, http:lena ,"}).settings

    assert settings.access_admins == ("telegram:1", "http:lena")


def test_every_setting_is_described_and_the_page_is_as_declared() -> None:
    descriptions = [one for topic in TOPICS for one in reference.setting_descriptions(topic).items()]
    assert [name for name, text in descriptions if not text] == []
    assert sorted(name for name, _ in descriptions) == sorted(Settings.model_fields)
    assert DOCS.read_text(encoding="utf-8") == reference.markdown()


def test_no_page_and_no_message_names_a_setting_that_is_gone() -> None:
    root = DOCS.parents[1]
    texts = [*root.glob("docs/**/*.md"), root / "README.md"]
    texts += [path for room in ("connectors", "grounding", "runtime") for path in (root / room).rglob("*.py")]
    gone = re.compile(rf"\b(?:AGENT_RUNTIME_)?(?:{'|'.join(name.upper() for name in REMOVED)})\b")
    named = [f"{path.name}: {found[0]}" for path in texts for found in gone.finditer(path.read_text("utf-8"))]
    assert named == []


URLS = [name for name in Settings.model_fields if name.endswith(("_url", "_base"))]
SCHEMES = {"redis_url": "redis", "discord_gateway_url": "ws"}


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("host:notaport", "a port from 1 to 65535"),
        ("host:99999/", "a port from 1 to 65535"),
        ("host:0", "a port from 1 to 65535"),
        ("host:٣", "a port from 1 to 65535"),
        ("bot:hunter2@host:notaport", "a port from 1 to 65535"),
        ("", "expected a host"),
        (":80", "expected a host"),
        ("a..b", "expected a host"),
        ("::1", "in brackets"),
        ("[::1", "in brackets"),
        ("bot:hunter2@my host", "without spaces"),
    ],
)
def test_no_url_is_taken_whose_host_or_port_cannot_be_used(name: str, rest: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load({f"AGENT_RUNTIME_{name.upper()}": f"{SCHEMES.get(name, 'http')}://{rest}"})

    (problem,) = refused.value.problems
    assert problem.startswith(f"AGENT_RUNTIME_{name.upper()}=")
    assert said in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize(
    "rest", ["host", "host:65535", "bot:hun%20ter2@host:1/", "[::1]:80", "[::1]", "müller.example"]
)
def test_hosts_ports_and_addresses_are_taken_as_they_are_written(name: str, rest: str) -> None:
    url = f"{SCHEMES.get(name, 'http')}://{rest}"

    found = getattr(load({f"AGENT_RUNTIME_{name.upper()}": url}).settings, name)

    assert (found if isinstance(found, str) else found.get_secret_value()) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://a:7000,b:7001,[::1]:7002", ""),
        ("redis+cluster://a:7000,", "expected a host"),
        ("redis+cluster://a:7000,b:seven", "a port from 1 to 65535"),
        ("redis+sentinel://bot:hunter2@a,b:26379/main/2?tls=true", ""),
        ("redis+sentinel://a,b", "the name of the service"),
        ("redis+sentinel://a,b/main/two", "the number of a database"),
        ("redis://a:1,b:2", "a port from 1 to 65535"),
        ("redis://host/two", "the number of a database"),
        ("unix:///run/redis.sock", ""),
        ("unix://", "the path of a socket"),
        ("localhost:6379", "a URL starting with redis:// or rediss://"),
    ],
)
def test_a_store_may_have_several_hosts_a_service_and_a_database(url: str, said: str) -> None:
    try:
        load({"AGENT_RUNTIME_REDIS_URL": url})
        found = ""
    except ConfigurationError as error:
        (found,) = error.problems

    assert (said in found) if said else (found == "")
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://bot:hunter2@host:x", "'http://**********@host:x'"),
        ("bot:hunter2@host:1", "'**********@host:1'"),
        ("http://host:x/?key=hunter2", "'http://host:x/?**********'"),
    ],
)
def test_what_is_secret_in_a_url_is_masked_and_the_rest_shown(given: str, shown: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load({"AGENT_RUNTIME_QDRANT_URL": given})

    assert refused.value.problems[0].startswith(f"AGENT_RUNTIME_QDRANT_URL={shown}: expected ")


def test_a_slack_bot_needs_a_way_for_events_to_come() -> None:
    """Named with all the others."""
    slack = {"AGENT_RUNTIME_SLACK_BOT_TOKEN": "xoxb-1"}
    with pytest.raises(ConfigurationError) as refused:
        load({**slack, "AGENT_RUNTIME_HTTP_PORT": "eighty", "AGENT_RUNTIME_SLACK_SIGNING_SECRET": " "})

    told = refused.value.problems
    assert [problem.partition("=")[0] for problem in told] == [
        "AGENT_RUNTIME_HTTP_PORT",
        "AGENT_RUNTIME_SLACK_BOT_TOKEN",
    ]
    assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in told[1]
    assert "AGENT_RUNTIME_SLACK_SIGNING_SECRET" in told[1]
    assert "xoxb-1" not in told[1]
    assert load({**slack, "AGENT_RUNTIME_SLACK_APP_TOKEN": "xapp-1"}).settings.slack_app_token is not None
    assert load({**slack, "AGENT_RUNTIME_SLACK_SIGNING_SECRET": "s"}).settings.slack_signing_secret is not None


def test_a_binding_to_an_unknown_sigil_is_named_with_all_other_mistakes(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'http_port = "eighty"\n[sigils.reader]\nscopes = "all"\n[sigil_bindings]\n"role:viewer" = "raeder"\n'
        '"rolle:member" = "reader"\n"role:member" = "reader"\n',
    )
    with pytest.raises(ConfigurationError) as refused:
        load({}, file)

    told = refused.value.problems
    assert len(told) == 4
    assert [line for line in told if "raeder" in line] == [
        "AGENT_RUNTIME_SIGIL_BINDINGS[role:viewer]='raeder': no such sigil; "
        "expected one of admin, member, reader, viewer"
    ]
