"""What ran in this process and is over leaves its memory."""

from __future__ import annotations

import gc
import weakref

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
