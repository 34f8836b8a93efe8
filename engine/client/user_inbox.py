"""The inbox of a user: every message that was accepted for them and is not gone, with its marks (docs/PROTOCOL-RECEIVING.md, "Inbox").

Pages and marks are requests of their own, so an inbox can be read without a connection. Marking is idempotent, and so is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from engine.client.frames import Counts, Message
from engine.client.publish_results import body_of
from engine.client.retried_requests import RetriedRequests

Mark = Literal["read", "unread", "seen", "archive", "unarchive", "pin", "unpin"]
MARKS: tuple[Mark, ...] = get_args(Mark)


class InboxMessage(Message):
    """A message in an inbox. It is not acknowledged by `ack()`, but by being marked as read or archived.

    Attributes:
        accepted_at: when the engine took it, milliseconds since the epoch.
        acknowledged: by any device; a message that is not may still be delivered.
        read, seen, archived, pinned: its marks.
    """

    accepted_at: int = 0
    acknowledged: bool = False
    read: bool = False
    seen: bool = False
    archived: bool = False
    pinned: bool = False


class InboxPage(Struct):
    """Some messages of an inbox, the newest first.

    Attributes:
        unread, unseen: of the whole inbox, without what is archived.
        revision: of these counts; it only grows. See `Counts`.
        before: pass it for the next page; None at the end.
    """

    messages: list[InboxMessage]
    unread: int
    unseen: int
    revision: int
    before: int | None = None


class Marked(Counts):
    """The counts after a mark. `unknown`: ids that the inbox does not have."""

    unknown: list[str] = msgspec.field(default_factory=list)


async def fetch_inbox(requests: RetriedRequests, **query: Any) -> InboxPage:
    """One page. `query`: the parameters of `GET /v1/inbox`; what is None or False is left out.

    Raises:
        Refused: a parameter is not valid, or the engine keeps no inboxes; Unauthorized, Forbidden: the token.
        Unreachable: no engine answered.
    """
    given = {name: "true" if value is True else value for name, value in query.items() if value is not None and value is not False}
    answer = await requests.send("GET", "/v1/inbox" + (f"?{urlencode(given)}" if given else ""), b"")
    return msgspec.json.decode(body_of(answer), type=InboxPage)


async def mark_inbox(requests: RetriedRequests, mark: Mark, ids: Sequence[str] | None, upto: int | None, all: bool) -> Marked:
    """Mark messages, by exactly one of `ids`, `upto` and `all`; durable on return.

    Raises:
        Refused: not exactly one, or one that is not valid, or the engine keeps no inboxes; Unauthorized, Forbidden: the token.
        Unreachable: no engine answered.
    """
    chosen = {"ids": None if ids is None else list(ids), "upto": upto, "all": all or None}
    body = {name: value for name, value in chosen.items() if value is not None}
    answer = await requests.send("POST", f"/v1/inbox/{mark}", msgspec.json.encode(body))
    return msgspec.json.decode(body_of(answer), type=Marked)
