"""What ran in this process and is over leaves its memory."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.conftest import MakeSettings
from tests.emulators.face import ADMIN, let_go_of_apps, serving_face


async def test_a_runtime_that_is_over_is_held_by_nothing_of_ours(model_settings: MakeSettings) -> None:
    """It takes some 40 MB, so that a process which opens several, as tests do, would grow by that with each."""
    async with serving_face(model_settings(admin_token=ADMIN)) as face:
        assert (await face.client.get("/v1/workspaces")).status_code == 200
        assert (await face.client.get("/openapi.json")).status_code == 200
        runtime = weakref.ref(face.runtime)
    del face

    let_go_of_apps()
    gc.unfreeze()  # where another test has served, what was there then is not looked through
    gc.collect()

    assert runtime() is None


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_turn_that_is_over_is_freed_at_once_and_not_left_to_the_garbage_collector(
    model_settings: MakeSettings, accept: str
) -> None:
    """A look for garbage holds the event loop up, and all turns with it, for as long as there is much of it."""
    async with serving_face(model_settings(admin_token=ADMIN)) as face:
        acme = await face.workspace("acme")

        async def ask(text: str) -> str:
            said = await face.client.post(f"{acme}/messages", json={"text": text}, headers={"Accept": accept})
            return said.text

        for _ in range(2):  # what is made once was made
            await ask("What is the tallest lighthouse?")
        gc.collect()
        gc.disable()
        try:
            assert "tallest lighthouse" in await ask("What is the tallest lighthouse?")
            await face.runtime.jobs.idle()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect(0)
            left = sorted({f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage})
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        ours = ("runtime.", "grounding.", "promptpolicy.", "connectors.", "litellm.")
        assert [one for one in left if one.startswith(ours)] == []
