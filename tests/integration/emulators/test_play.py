"""``python -m tests.emulators``: somebody plays with the bot by a script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from runtime.embedded import socket_path
from tests.emulators.play.telegram import TelegramPlay
from tests.emulators.play.world import Crew

ROOT = Path(__file__).parents[3]


def played(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What came of *script*, given by standard input."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNTIME_")}
    environment["AGENT_RUNTIME_DEEP_EMBEDDING_MODEL"] = "none"
    return subprocess.run(
        [sys.executable, "-m", "tests.emulators", *options],
        cwd=ROOT, env=environment, input=script, capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def test_somebody_talks_to_the_bot_on_three_platforms(data_dir: Path) -> None:
    """And sees the answers; in the end everything that was started has ended."""
    (data_dir / "quay.md").write_text("# The quay\n\nIt is closed on Sundays.\n")
    script = f"""
# in private
the boat is called Petrel
/wait
/expect You said: the boat is called Petrel
/on slack #general
@bot are you there?
/wait
/thread 4
and here?
/wait
/expect and here?
/on discord dm
/as Bo
/help
/usage
/wait
/expect not answered anything here
/send {data_dir / "quay.md"} what is this?
/wait
/delete 99
/react 👍
/see
> telegram Eve #general @bot over here
/on telegram #general
/wait
"""
    done = played(script, "--fake-model", "--data-dir", str(data_dir))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = done.stdout
    assert "#1 telegram @Ann  Ann: the boat is called Petrel" in told
    assert "slack #general ⤷  bot: You said: are you there?" in told
    assert "discord @Bo  bot (only Bo sees it): I have not answered anything here yet." in told
    assert "there is no #99" in told
    assert "Bo: [file quay.md] what is this?" in told
    assert "Bo puts 👍 on #" in told
    assert "telegram #general  bot: You said: over here" in told
    assert "/on PLATFORM" in told
    assert not socket_path(data_dir, "runtime.sock").exists()


def test_a_script_ends_with_what_it_expected() -> None:
    assert played("/expect Ahoy\n", "--no-bot", "slack").returncode == 1


def test_without_a_bot_the_settings_for_ones_own_are_told() -> None:
    """What cannot be done is said, and is no failure."""
    done = played("/pause 0\n/react 👍\n", "--no-bot", "telegram", "discord")
    told = done.stdout
    assert done.returncode == 0
    assert "export AGENT_RUNTIME_TELEGRAM_API_BASE=http://127.0.0.1:" in told
    assert "export AGENT_RUNTIME_DISCORD_GATEWAY_URL=ws://127.0.0.1:" in told
    assert "SLACK" not in told


def test_a_bot_whose_folder_was_kept_takes_nothing_for_a_repeat() -> None:
    """What is said on Telegram has other ids than what was said in the game before."""
    before = int(time.time())
    assert TelegramPlay(Crew()).emulator.first_message >= before


def test_an_unknown_platform_is_an_error_of_usage() -> None:
    done = played("", "matrix")
    assert done.returncode == 2
    assert "there are telegram, slack, discord" in done.stderr
