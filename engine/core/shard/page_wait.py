"""Records and posts that wait for a page to be read, in order of arrival; what the sweep of storage found; what the judge has to do.

A connection whose cursor is beyond what the mailbox has issued waits for storage too. It may have been served by the next process of this
shard, which this one does not know of yet: a gap would be told that there is not.

Posts and questions count in the limit of posts that wait for a commit; attachments are limited at the edges (`connections_max`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

from engine.core.commit.judge import Pending
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.shard.mailbox_store import JudgeDue, Swept
from engine.core.wire.records import Ack, AckIds, Attach, Explain, Nack, Rejoin, Written

_UNCOUNTED: Final = (Attach, Ack, AckIds, Nack, Written, Swept, JudgeDue)

_PAGES_MAX: Final = 1000
"""Pages read at once: 20 ms of the shard. For 50 000 absent users of one request it would do nothing else for a second."""

BEHIND_MAX: Final = 1000
"""Limit of entries that wait for one page, above which acknowledgements are dropped: some 100 KB."""


class PageWait:
    """Queue per mailbox key of (link session, record or post), oldest first. `count` and `bytes` are of the posts and questions in it.

    `pages_wanted` has the keys of the pages to read, `doubted` those of mailboxes in memory that may be another process's by now.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._waiting: dict[str, list[tuple[str, Struct | Pending]]] = {}
        self._attaching: dict[tuple[str, int], str] = {}  # (link session, connection) -> key under which its Attach waits
        self.pages_wanted: Final[dict[str, None]] = {}
        self.doubted: Final[dict[str, None]] = {}

    def add(self, key: str, session: str, what: Struct | Pending) -> None:
        """Queue `what` until the page of `key` is read, and request the page if nothing else waits for it."""
        if key not in self._waiting:
            self.pages_wanted[key] = None
        self._add(key, session, what)

    def doubt(self, key: str, session: str, attach: Attach) -> None:
        """Queue `attach` until storage has told that the mailbox, which is in memory, is still this process's."""
        if key not in self._waiting:
            self.doubted[key] = None
        self._add(key, session, attach)

    def _add(self, key: str, session: str, what: Struct | Pending) -> None:
        self._waiting.setdefault(key, []).append((session, what))
        if isinstance(what, Attach):
            self._attaching[session, what.conn] = key
        elif not isinstance(what, Swept | JudgeDue):
            self.count += 1
            self.bytes += _size(what)

    def behind(self, session: str, record: Ack | AckIds | Nack | Written | Rejoin) -> None:
        """Queue a record of a connection that is not attached behind its waiting Attach; without one, drop it.

        Beyond `BEHIND_MAX` it is dropped: a lost acknowledgement causes a repeat. A lost `Rejoin` would leave a member that the token
        does not allow, so it changes the Attach itself.
        """
        key = self._attaching.get((session, record.conn))
        if key is None:
            return
        if isinstance(record, Rejoin):
            for waiting_session, what in self._waiting[key]:
                if isinstance(what, Attach) and (waiting_session, what.conn) == (session, record.conn):
                    what.topics = record.topics
        elif len(self._waiting[key]) < BEHIND_MAX:
            self._waiting[key].append((session, record))

    def take(self, key: str) -> list[tuple[str, Struct | Pending]]:
        """Remove and return all that waits for the page of `key`, oldest first. Call when the page is in memory."""
        self.doubted.pop(key, None)
        waiting = self._waiting.pop(key, [])
        for session, what in waiting:
            if isinstance(what, Attach):
                self._attaching.pop((session, what.conn), None)
        self._discount(what for _, what in waiting if not isinstance(what, _UNCOUNTED))
        return waiting

    def take_posts(self, keys: Iterable[str] | None = None) -> list[Pending]:
        """Remove and return the posts that wait for these pages, or for any page if `keys` is None; other records stay queued."""
        taken: list[Pending] = []
        for key in list(self._waiting if keys is None else keys):
            waiting = self._waiting.get(key, [])
            taken.extend(what for _, what in waiting if isinstance(what, Pending))
            self._waiting[key] = [entry for entry in waiting if not isinstance(entry[1], Pending)]
        self._discount(taken)
        return taken

    def _discount(self, gone: Iterable[Struct | Pending]) -> None:
        for what in gone:
            self.count -= 1
            self.bytes -= _size(what)

    def keys(self) -> Collection[str]:
        """Keys of the mailboxes whose page something waits for."""
        return self._waiting.keys()

    def forget(self, session: str, conn: int) -> None:
        """Remove the records of a connection that ended before its user's page was read. No effect if its Attach does not wait."""
        key = self._attaching.pop((session, conn), None)
        if key is not None:
            self._waiting[key] = [entry for entry in self._waiting[key] if entry[0] != session or getattr(entry[1], "conn", None) != conn]

    def closed(self, session: str) -> None:
        """The link session ended: `forget` its connections. Else they would add up while pages cannot be read."""
        for there, conn in list(self._attaching):
            if there == session:
                self.forget(there, conn)

    def take_pages_wanted(self) -> list[str]:
        """Remove and return the keys of the next pages to read."""
        wanted = list(islice(self.pages_wanted, _PAGES_MAX))
        for key in wanted:
            del self.pages_wanted[key]
        return wanted

    def want_again(self, keys: Iterable[str]) -> None:
        """Request these pages again, after a failed read."""
        self.pages_wanted.update(dict.fromkeys(keys))


def _size(waiting: Struct | Pending) -> int:
    if isinstance(waiting, Pending | Explain):
        return len(waiting.post.envelope.body) + MESSAGE_BYTES
    return MESSAGE_BYTES
