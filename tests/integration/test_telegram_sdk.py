"""aiogram as the runtime imports it, against aiogram as it imports itself: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

USE = """
from aiogram import methods, types
from aiogram.methods.base import Response

PERSON = {"id": 7, "is_bot": False, "first_name": "Lena"}
SAID = {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}, "from": PERSON, "text": "hello",
        "entities": [{"type": "text_mention", "offset": 0, "length": 5, "user": PERSON}]}
SAID["reply_to_message"] = dict(SAID, photo=[{"file_id": "f", "file_unique_id": "u", "width": 1, "height": 1}])
ANSWER = {"ok": True, "result": SAID}
made = [
    types.Update.model_validate({"update_id": 1, "message": SAID}),
    types.Update.model_validate({"update_id": 2, "callback_query": {"id": "1", "from": PERSON, "chat_instance": "c"}}),
    types.ChatMemberUpdated.model_validate({"chat": SAID["chat"], "from": PERSON, "date": 1,
        "old_chat_member": {"status": "left", "user": PERSON},
        "new_chat_member": {"status": "member", "user": PERSON}}),
    methods.SendMessage(chat_id=1, text="a", reply_parameters=types.ReplyParameters(message_id=1)),
    methods.SetMessageReaction(chat_id=1, message_id=1, reaction=[types.ReactionTypeEmoji(emoji="!")]),
    methods.SetMyCommands(commands=[types.BotCommand(command="a", description="b")]),
    Response[types.Message].model_validate(ANSWER),
    Response[list[types.Update]].model_validate({"ok": True, "result": [{"update_id": 1, "message": SAID}]}),
    Response[types.StickerSet].model_validate({"ok": True, "result":
        {"name": "n", "title": "t", "sticker_type": "regular", "stickers": []}}),
]
for one in made:
    print(type(one).__name__, one)
"""


def _ran(*lines: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_is_built_later_reads_and_says_the_same() -> None:
    """Updates, methods and answers, also of types that the import did not build."""
    assert _ran("from connectors.telegram import sdk", "sdk.load()", USE) == _ran(USE)


def test_the_import_builds_what_is_used_and_nothing_else() -> None:
    built = "[one.__pydantic_complete__ for one in (types.Update, types.Message, types.StickerSet)]"
    lines = ("from connectors.telegram import sdk", "sdk.load()", "from aiogram import types", f"print({built})")
    assert _ran(*lines) == "[True, True, False]\n"


def test_other_models_can_be_built_meanwhile() -> None:
    """A name that a model's own surroundings define is found as ever."""
    assert "True" in _ran(
        "from connectors.telegram import sdk",
        "from pydantic import BaseModel",
        "def made():",
        "    class Outer(BaseModel):",
        "        inner: 'Inner'",
        "    class Inner(BaseModel):",
        "        value: int",
        "    BaseModel.model_rebuild = classmethod(sdk._not_aiograms)",
        "    Outer.model_rebuild()",
        "    return Outer(inner={'value': 1})",
        "print(made().inner.value == 1)",
    )
