"""The counts of inboxes, for answers and for connections that want them.

A connection that wants them is sent them when it begins, and at most once per tick when they have changed. Their revision is the shard's
epoch in the upper bits and a counter below: it grows with every change and with every new owner of the user, so it never goes back,
whatever a crash has lost. The page has it for when the same shard evicts the mailbox and reads it again.
"""

from __future__ import annotations

from typing import Final

from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import Counts

_EPOCH_SHIFT: Final = 10
"""Bits of a revision below the epoch, about the time in ms when the owner took over (`engine.store.epoch`): a user's counts would
have to change a million times a second to reach the next owner's. Below 2^53, so a JSON number, until the year 2250."""


class InboxCounts:
    """Those of one shard.

    Attributes:
        epoch: the newest that this incarnation has taken, for the shard or for a slot.
    """

    def __init__(self, mailbox_store: MailboxStore, output: ShardOutput) -> None:
        self._mailbox_store = mailbox_store
        self._output = output
        self.epoch = 0

    def of(self, mailbox: Mailbox) -> tuple[int, int, int]:
        """How many messages are unread, how many unseen, and the revision of these counts."""
        floor = self.epoch << _EPOCH_SHIFT
        if mailbox.inbox is None:
            return 0, 0, floor
        if mailbox.inbox.revise(floor):
            self._mailbox_store.mark(mailbox)  # or a mailbox that is evicted and read again would give the revision a second time
        return (*mailbox.inbox.counts(), mailbox.inbox.revision)

    def attached(self, mailbox: Mailbox, session: str, conn: int) -> None:
        """A connection that wants the counts has begun."""
        if mailbox.inbox_limits is not None:
            self._output.to_edges.append((session, Counts(conn, *self.of(mailbox))))

    def tick(self) -> None:
        """Send the counts that have changed."""
        due, self._mailbox_store.counts_due = self._mailbox_store.counts_due, {}
        for mailbox in due.values():
            wanting = [connection.conn for connection in mailbox.connections.values() if connection.counts]
            if wanting and mailbox.inbox is not None:
                counts = self.of(mailbox)
                if counts[2] != mailbox.inbox.sent_revision:
                    mailbox.inbox.sent_revision = counts[2]
                    self._output.to_edges.extend((session, Counts(conn, *counts)) for session, conn in wanting)
