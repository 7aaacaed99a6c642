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
    QueueMode,
    Settled,
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
    "Places",
    "QueueMode",
    "Settled",
    "UnknownWorkspace",
    "WorkspaceInSettings",
    "Workspaces",
    "console_workspace",
    "install_sample",
    "make_document_folder",
]
