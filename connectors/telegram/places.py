"""What this process has seen of Telegram's places and Telegram itself does not say again."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED_MESSAGES = 4096
_REMEMBERED_ALBUMS = 256


class Places:
    """In which topic a message stands (a reaction to it does not say); which albums are meant for the bot (only the
    file with the caption says so); where a group went that became a supergroup: what is on its way there still names
    the group, and is refused once by each process that did not hear of it, with the new name."""

    def __init__(self) -> None:
        self._topics: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._albums: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._moved: dict[int, int] = {}

    def stands(self, chat: int, message_id: int, topic: int | None) -> None:
        """A message stands in *topic*. The newest few thousand are remembered."""
        if topic is None:
            return
        self._topics[chat, message_id] = topic
        self._topics.move_to_end((chat, message_id))
        if len(self._topics) > _REMEMBERED_MESSAGES:
            self._topics.popitem(last=False)

    def topic_of(self, chat: int, message_id: int) -> int | None:
        """The topic in which a message stands, if that is known."""
        return self._topics.get((chat, message_id))

    def addresses(self, chat: int, album: str) -> None:
        """The *album* in *chat* is meant for the bot. The newest few hundred are remembered."""
        self._albums[chat, album] = None
        if len(self._albums) > _REMEMBERED_ALBUMS:
            self._albums.popitem(last=False)

    def is_addressed(self, chat: int, album: str) -> bool:
        """Whether a file of the *album* said that it is meant for the bot."""
        return (chat, album) in self._albums

    def moved(self, old: int, new: int) -> None:
        """The chat *old* is the chat *new* from now on."""
        self._moved[old] = new

    def now(self, chat: int) -> int:
        """What *chat* is now."""
        return self._moved.get(chat, chat)
