"""Workspaces (tenants), the platform places that belong to them, and the settings of a place.

`Workspaces` registers tenants and routes messages to them, `Places` keeps settings, `ConversationList` the
conversations of the chat page.
"""

from runtime.workspaces.conversations import ConversationList
from runtime.workspaces.places import (
    ANSWERING,
    EVERYWHERE,
    MAX_PLACE_CHARACTERS,
    QUEUE_MODES,
    Answering,
    Places,
    PlaceSettings,
    QueueMode,
)
from runtime.workspaces.workspaces import (
    SAMPLE,
    UnknownWorkspace,
    WorkspaceInSettings,
    Workspaces,
    console_workspace,
    install_sample,
    make_document_folder,
)

__all__ = [
    "ANSWERING",
    "EVERYWHERE",
    "MAX_PLACE_CHARACTERS",
    "QUEUE_MODES",
    "SAMPLE",
    "Answering",
    "ConversationList",
    "PlaceSettings",
    "Places",
    "QueueMode",
    "UnknownWorkspace",
    "WorkspaceInSettings",
    "Workspaces",
    "console_workspace",
    "install_sample",
    "make_document_folder",
]
