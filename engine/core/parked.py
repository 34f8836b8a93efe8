"""What concerns users whose page is not in memory yet, in order of arrival. Limited together with the posts that wait for a commit."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from engine.core.batch import Attach
from engine.core.commit import Pending
from engine.core.pressure import MESSAGE_BYTES


class Parked:
    """Per mailbox key: (link session, record or post), oldest first. `posts` and `bytes` count the posts among them."""

    def __init__(self) -> None:
        self.posts = 0
        self.bytes = 0
        self._waiting: dict[str, list[tuple[str, Struct | Pending]]] = {}
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

    def take(self, key: str) -> list[tuple[str, Struct | Pending]]:
        """The page is there: what waited for it."""
        waiting = self._waiting.pop(key, [])
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
        for waiting in self._waiting.values():
            for entry in waiting:
                if entry[0] == session and isinstance(entry[1], Attach) and entry[1].conn == conn:
                    waiting.remove(entry)
                    return

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
    return len(pending.post.body) + MESSAGE_BYTES
