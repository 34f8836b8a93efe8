"""The inbox of a user: every message that was accepted for them and is not gone, with its marks (docs/PROTOCOL-RECEIVING.md, "Inbox").

Pages and marks are requests of their own, so an inbox can be read without a connection. Marking is idempotent, and so is retried.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from engine.client.frames import Counts, Message
from engine.client.retried_requests import RetriedRequests, with_query

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


async def fetch_inbox(requests: RetriedRequests, **parameters: Any) -> InboxPage:
    """A page, by the parameters of `GET /v1/inbox`."""
    return await requests.fetch(InboxPage, "GET", with_query("/v1/inbox", **parameters))
