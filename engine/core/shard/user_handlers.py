"""The seam between a shard and the requests of edges about a user that features handle, by kind of record.

A handler answers at once out of the mailbox, names the range of the offline stream that its answer lacks, or returns a change to journal
(`engine.core.shard.user_requests`). The kinds are records of the wire (`engine.core.wire.records`). A shard without the feature rejects
them, and its edges do not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from engine.config import Config
from engine.core.commit.user_step import UserChange
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.mailbox_store import MailboxStore, StreamRead


class RequestContext(Struct, frozen=True):
    """What a handler may use beside the mailbox.

    Attributes:
        session: the link session of the edge.
        presence: of the user.
        now_ms: since the epoch.
    """

    config: Config
    mailbox_store: MailboxStore
    counts: InboxCounts
    session: str
    data_epoch: str
    presence: str
    now_ms: int


class StreamAnswer(Struct):
    """An answer that waits for bodies of the offline stream, in `range`.

    Attributes:
        complete: makes the answer from what the stream has of the range.
        failed: the answer when storage does not answer.
        session: the link session that asked; the shard sets it.
    """

    range: StreamRead
    complete: Callable[[Iterable[StoredMessage]], Struct]
    failed: Struct
    session: str = ""


UserHandler = Callable[[Mailbox, Any, RequestContext], Struct | StreamAnswer | UserChange]
"""(the user's mailbox, the request, what is around) -> the answer, or how it comes about."""

UserHandlers = Mapping[type, UserHandler]
"""By the record of the request."""
