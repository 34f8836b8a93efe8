"""What concerns users whose page is not in memory yet, in order of arrival. Limited together with the posts that wait for a commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from engine.core.commit.group import Pending
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.wire.records import Ack, AckIds, Attach, Nack, Written

BEHIND_MAX: Final = 1000
"""What waits for one page, with acknowledgements among it: some 100 KB."""


class PageWait:
    """Per mailbox key: (link session, record or post), oldest first. `posts` and `bytes` count the posts among them."""

    def __init__(self) -> None:
        self.posts = 0
        self.bytes = 0
        self._waiting: dict[str, list[tuple[str, Struct | Pending]]] = {}
        self._attaching: dict[tuple[str, int], str] = {}  # (link session, connection) -> key under which its Attach waits
        self._pages_wanted: dict[str, None] = {}

    def add(self, key: str, session: str, what: Struct | Pending) -> None:
        """It waits for the page of `key`, which is wanted from now on."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = waiting = []
            self._pages_wanted[key] = None
        waiting.append((session, what))
        if isinstance(what, Pending):
            self.posts += 1
            self.bytes += _size(what)
        elif isinstance(what, Attach):
            self._attaching[session, what.conn] = key

    def behind(self, session: str, record: Ack | AckIds | Nack | Written) -> None:
        """Of a connection that is not attached: if its Attach waits here, this waits behind it. Beyond the limit it is dropped: an
        acknowledgement that is lost causes a repeat."""
        key = self._attaching.get((session, record.conn))
        if key is not None and len(self._waiting[key]) < BEHIND_MAX:
            self._waiting[key].append((session, record))

    def take(self, key: str) -> list[tuple[str, Struct | Pending]]:
        """The page is there: what waited for it."""
        waiting = self._waiting.pop(key, [])
        for session, what in waiting:
            if isinstance(what, Attach):
                self._attaching.pop((session, what.conn), None)
        self._forget_posts(what for _, what in waiting if isinstance(what, Pending))
        return waiting

    def take_posts(self, keys: Iterable[str] | None = None) -> list[Pending]:
        """The posts that wait for these pages, or for any; everything else goes on waiting."""
        taken: list[Pending] = []
        for key in list(self._waiting if keys is None else keys):
            waiting = self._waiting.get(key, [])
            taken.extend(what for _, what in waiting if isinstance(what, Pending))
            self._waiting[key] = [entry for entry in waiting if not isinstance(entry[1], Pending)]
        self._forget_posts(taken)
        return taken

    def _forget_posts(self, posts: Iterable[Pending]) -> None:
        for post in posts:
            self.posts -= 1
            self.bytes -= _size(post)

    def forget(self, session: str, conn: int) -> None:
        """The connection ended before its user's page was read."""
        key = self._attaching.pop((session, conn), None)
        if key is not None:
            self._waiting[key] = [entry for entry in self._waiting[key] if entry[0] != session or getattr(entry[1], "conn", None) != conn]

    @property
    def wants_pages(self) -> bool:
        """Is there a page to read?"""
        return bool(self._pages_wanted)

    def take_pages_wanted(self) -> list[str]:
        """Keys whose page is to be read."""
        wanted = list(self._pages_wanted)
        self._pages_wanted.clear()
        return wanted

    def want_again(self, keys: Iterable[str]) -> None:
        """These pages could not be read."""
        self._pages_wanted.update(dict.fromkeys(keys))


def _size(pending: Pending) -> int:
    return len(pending.post.envelope.body) + MESSAGE_BYTES
