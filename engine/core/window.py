"""Aggregation windows: the same kind of thing for one user, within a time, becomes one notification.

A window belongs to a user and a collapse key. It opens with the first message of its key, and ends a fixed time after that:

    no window --first message--> OPEN  --each message--> OPEN  --its time is over--> closed: at most one notification

    held      (default)   the first message waits too. At the end: nothing else came -> the message itself; else a summary
    leading               the first message is delivered at once. At the end: nothing else came -> nothing; else a summary of the
                          others, which `replaces` the first one

A summary has the members of the newest message, and `count`, `actors` (the first `ACTORS_MAX` different ones), `first_ts`, `last_ts`,
and `text` when the publisher gave a template for it: `{count} people liked {target}` (`engine.core.templates`).

Once, under retries and crashes. Three things together:

- An id counts once. A window knows the digests of its newest `IDS_MAX` ids and answers DUPLICATE; ids beyond those are remembered by
  storage like every caller's id, which the shard asks in the same step as it journals (a window is never longer than that memory).
- Deciding and changing are two steps. `offer` and `close` only say what would happen and give a record; `apply` makes it happen, and
  is all that replay does. So what was not journalled did not happen, and replay repeats no decision, which depend on the time.
- Records of a user are numbered. A page says up to which number it has them, so replay applies each exactly once.

A notification that a window sends has an id made of the window, so that sending it again after a crash is a duplicate as any other.

Bounds: `windows_max` open windows per user; a message that would open one more is delivered at once, unmerged. At most the newest
body, the first actors and the newest ids are kept, whatever the count.

The shard owns the windows of its users: `offer` where a post gets its number, `close` when `next_ms` has come (its timer is volatile:
after a restart the page tells `next_ms`, and what is overdue closes at once), records in the group with the messages they cause,
`apply` at commit and at replay. `copy` before a group is built, kept until it is committed: a refused group never was.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from engine.core.templates import Scope, parse_template

ACTORS_MAX: Final = 5
IDS_MAX: Final = 256
DIGEST_BYTES: Final = 8


class Outcome(IntEnum):
    """What becomes of a message that names a collapse key."""

    HELD = 0  # it opened a window and waits
    MERGED = 1  # it counts in an open window
    DELIVER = 2  # it is delivered now: it opened a leading window
    UNMERGED = 3  # it is delivered now, and no window knows of it: the user has too many
    DUPLICATE = 4  # its id counts already


class Item(Struct, frozen=True, kw_only=True):
    """A message on its way into a window.

    Args:
        collapse: the key.
        digest: DIGEST_BYTES over its id.
        at_ms: when it was accepted.
        window_ms: how long the window is that it would open.
        leading: deliver the first message at once.
        text: template of the summary's text, "" for none.
        body: its JSON members, see `engine.core.message`.
    """

    collapse: str
    digest: bytes
    at_ms: int
    window_ms: int
    leading: bool
    text: str
    body: bytes


class Counted(Struct, frozen=True, array_like=True, tag=11, gc=False):
    """Record: a message counts in a window, which it opens when there is none. `key` is the mailbox's."""

    key: str
    number: int
    collapse: str
    digest: bytes
    at_ms: int
    window_ms: int
    leading: bool
    text: str
    body: bytes


class Ended(Struct, frozen=True, array_like=True, tag=12, gc=False):
    """Record: a window is closed; what it sends is in the same group."""

    key: str
    number: int
    collapse: str


class Window(Struct, array_like=True):
    """An open window. `count` messages, the first of a leading one not included."""

    opened_ms: int
    closes_ms: int
    leading: bool
    text: str
    first_id: str
    count: int
    first_ms: int
    last_ms: int
    actors: list[bytes]  # JSON
    digests: list[bytes]  # newest last
    body: bytes  # of the newest message; empty while a leading window has no other


class Sent(Struct, frozen=True):
    """What a closed window sends: a notification with this id and body. `replaces` is the id it stands in the place of, or ""."""

    id: str
    body: bytes
    replaces: str = ""


class Windows(Struct, array_like=True):
    """The open windows of one user, by collapse key, in the order of their opening; part of the user's page.

    `applied` is the number of the last record applied.
    """

    applied: int = 0
    open: dict[str, Window] = {}

    @property
    def next_ms(self) -> int:
        """When the next window is to be closed; 0 when none is open."""
        return min((window.closes_ms for window in self.open.values()), default=0)

    def due(self, now_ms: int) -> list[str]:
        """The collapse keys of windows whose time is over, the longest overdue first. Close them before anything is offered."""
        over = [(window.closes_ms, collapse) for collapse, window in self.open.items() if window.closes_ms <= now_ms]
        return [collapse for _, collapse in sorted(over)]

    def offer(self, key: str, item: Item, windows_max: int) -> tuple[Outcome, Counted | None]:
        """What a message would do, and the record that makes it so. Changes nothing.

        Args:
            key: the mailbox's.
        """
        window = self.open.get(item.collapse)
        if window is not None and item.digest in window.digests:
            return Outcome.DUPLICATE, None
        if window is None and len(self.open) >= windows_max:
            return Outcome.UNMERGED, None
        record = Counted(key, self.applied + 1, item.collapse, item.digest, item.at_ms, item.window_ms, item.leading, item.text, item.body)
        if window is not None:
            return Outcome.MERGED, record
        return (Outcome.DELIVER if item.leading else Outcome.HELD), record

    def close(self, key: str, collapse: str) -> tuple[Sent | None, Ended]:
        """What an open window sends at its end, None for nothing, and the record that ends it. Changes nothing."""
        window = self.open[collapse]
        return _sent(collapse, window), Ended(key, self.applied + 1, collapse)

    def apply(self, record: Counted | Ended) -> bool:
        """Make a record so; False when it is so already."""
        if record.number <= self.applied:
            return False
        self.applied = record.number
        if isinstance(record, Ended):
            self.open.pop(record.collapse, None)
            return True
        window = self.open.get(record.collapse)
        if window is None:
            self.open[record.collapse] = _opened(record)
        else:
            _count(window, record)
        return True

    def copy(self) -> Windows:
        """Another one that changes by itself."""
        return Windows(
            self.applied,
            {
                collapse: msgspec.structs.replace(window, actors=window.actors.copy(), digests=window.digests.copy())
                for collapse, window in self.open.items()
            },
        )


def _opened(record: Counted) -> Window:
    window = Window(
        opened_ms=record.at_ms,
        closes_ms=record.at_ms + record.window_ms,
        leading=record.leading,
        text=record.text,
        first_id=str(_members(record.body).get("id", "")),
        count=0,
        first_ms=record.at_ms,
        last_ms=record.at_ms,
        actors=[],
        digests=[],
        body=b"",
    )
    if record.leading:
        window.digests.append(record.digest)
    else:
        _count(window, record)
    return window


def _count(window: Window, record: Counted) -> None:
    if not window.count:
        window.first_ms = record.at_ms
    window.count += 1
    window.last_ms = max(window.last_ms, record.at_ms)
    window.body = record.body
    window.digests.append(record.digest)
    del window.digests[:-IDS_MAX]
    if len(window.actors) < ACTORS_MAX:
        actor = bytes(msgspec.json.decode(b"{%b}" % record.body, type=_Actor).actor)
        if actor != b"null" and actor not in window.actors:
            window.actors.append(actor)


class _Actor(Struct):
    actor: Raw = Raw(b"null")


def _sent(collapse: str, window: Window) -> Sent | None:
    if not window.count:
        return None
    if window.count == 1 and not window.leading:
        return Sent(window.first_id, window.body)
    members = _members(window.body)
    id_ = f"{window.first_id}+{window.opened_ms}"
    members |= {
        "id": id_,
        "count": window.count,
        "actors": [Raw(actor) for actor in window.actors],
        "first_ts": window.first_ms,
        "last_ts": window.last_ms,
    }
    if window.text:
        members["text"] = str(parse_template(window.text).render(Scope(msgspec.json.decode(msgspec.json.encode(members)), {})))
    replaces = window.first_id if window.leading else ""
    if replaces:
        members["replaces"] = replaces
    members["collapse"] = collapse
    return Sent(id_, msgspec.json.encode(members)[1:-1], replaces)


def _members(body: bytes) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.json.decode(b"{%b}" % body)
    return members


_windows: Final = msgspec.msgpack.Decoder(Windows)
encode_windows: Final = msgspec.msgpack.Encoder().encode
"""Windows as a page keeps them."""


def decode_windows(blob: bytes) -> Windows:
    """Windows as a page keeps them. Raises what `engine.core.batch.UNREADABLE` lists when they are corrupt."""
    return _windows.decode(blob)
