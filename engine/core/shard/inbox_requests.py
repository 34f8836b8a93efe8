"""Requests of edges about a user's inbox, the reads of storage that they need, and the counts for connections that want them.

Edges ask the shard, not storage: the newest messages are only in the shard's memory, what the user has marked is there, and the entries of
the offline stream are meaningless without it. A read takes the numbers and flags at once; bodies that are not in memory are read from the
stream by a task of their own, so that neither commits nor deliveries wait for it:

    asked -> answered at once          every body is in memory
          -> waiting -> under way -> answered
                                  -> "unavailable": storage did not answer
          -> rejected                `inbox_reads_max` wait already

A number whose entry is not there has left the stream without the shard's knowledge (it was trimmed for its bytes): it leaves the inbox.

A mark is a journal record like every change of a user (`engine.core.shard.user_requests`). Marking as read, or as archived, what is
pending acknowledges it, also when the record is replayed: the acknowledgement's own record may come later than the answer.

Counts: a connection that wants them is sent them when it begins, and at most once per tick when they have changed. Their revision is
the shard's epoch in the upper bits and a counter below: it grows with every change and with every new owner of the user, so it never
goes back, whatever a crash has lost. The page has it for when the same shard evicts the mailbox and reads it again.

Crash: reads and waiting marks are lost and unanswered, so their edges repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.commit.user_step import UserChange, acknowledged_by
from engine.core.journal.journal_records import Marked, StoredMessage, recalled
from engine.core.mailbox.id_lookup import oldest_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import Message
from engine.core.shard.mailbox_store import MailboxStore, StreamRead
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import (
    CONFLICT,
    NOT_FOUND,
    OK,
    OVERLOADED,
    UNAVAILABLE,
    Counts,
    InboxIs,
    InboxMarked,
    InboxRow,
    MarkInbox,
    ReadInbox,
    Rejected,
)

_EPOCH_SHIFT: Final = 10
"""Bits of a revision below the epoch, about the time in ms when the owner took over (`engine.store.epoch`): a user's counts would
have to change a million times a second to reach the next owner's. Below 2^53, so a JSON number, until the year 2250."""

_RETRY_MS: Final = 1000

_BACKLOG_MAX: Final = 256
"""Pending entries of the offline stream from the newest body that a page lacks to the oldest: those between them, which the inbox may not
have, are read too."""


class InboxRead(Struct):
    """A page of an inbox of which some bodies are in the offline stream, in `range`."""

    session: str
    answer: InboxIs
    missing: dict[int, InboxRow]  # by number; rows of the answer without a body
    range: StreamRead


class InboxRequests:
    """Handles the requests of one shard. Answers go into the shard's output.

    Attributes:
        epoch: the newest that this incarnation has taken, for the shard or for a slot.
        data_epoch: of the cursors that answers have.
    """

    def __init__(self, config: Config, mailbox_store: MailboxStore, output: ShardOutput, data_epoch: str) -> None:
        self._config = config
        self._mailbox_store = mailbox_store
        self._output = output
        self.reads_wanted: Final[list[InboxRead]] = []
        self.epoch = 0
        self.data_epoch = data_epoch

    # -- reads --------------------------------------------------------------------------------------------------------

    def read(self, mailbox: Mailbox, session: str, record: ReadInbox) -> None:
        """Answer a read, now or when the bodies are read."""
        if not self._config.inbox_max:
            self._output.to_edges.append((session, InboxIs(record.ref, NOT_FOUND)))
            return
        answer = InboxIs(record.ref, OK, epoch=self.data_epoch)
        answer.unread, answer.unseen, answer.revision = self._counts(mailbox)
        inbox = mailbox.inbox
        if inbox is None:
            self._output.to_edges.append((session, answer))
            return
        limit = min(record.limit, self._config.inbox_page_max)
        chosen = inbox.select(record.before or mailbox.head + 1, limit + 1, record.view)
        if len(chosen) > limit:
            answer.before = chosen[limit - 1]
        missing: dict[int, InboxRow] = {}
        for seq in chosen[:limit]:
            message = mailbox.kept(seq)
            row = InboxRow(seq, inbox.flags(seq), not mailbox.is_pending(seq), 0, b"")
            answer.rows.append(row)
            if message is None:
                missing[seq] = row
            else:
                _fill(row, message)
        _cut_at_backlog(mailbox, answer, missing)
        if not missing:
            self._send(session, answer)
        elif len(self.reads_wanted) >= self._config.inbox_reads_max:
            self._output.to_edges.append((session, Rejected(record.ref, OVERLOADED, "too many reads of inboxes wait", _RETRY_MS)))
        else:
            self.reads_wanted.append(InboxRead(session, answer, missing, StreamRead(mailbox.key, min(missing), max(missing))))

    def take_reads(self, count_max: int) -> list[InboxRead]:
        """Removes and returns the next reads; answer them with `read_done` or `read_failed`."""
        taken = self.reads_wanted[:count_max]
        del self.reads_wanted[:count_max]
        return taken

    def read_failed(self, reads: Iterable[InboxRead]) -> None:
        """Storage did not answer."""
        for read in reads:
            self._output.to_edges.append((read.session, InboxIs(read.answer.ref, UNAVAILABLE)))

    def read_done(self, reads: Sequence[InboxRead], found: Iterable[Iterable[StoredMessage]]) -> None:
        """The ranges were read: `found` is what the streams have of each."""
        for read, entries in zip(reads, found, strict=True):
            missing = read.missing
            for stored in entries:
                if stored.seq in missing and (message := recalled(stored, self._mailbox_store.log)) is not None:
                    _fill(missing.pop(stored.seq), message)
            if missing:
                read.answer.rows = [row for row in read.answer.rows if row.seq not in missing]
                mailbox = self._mailbox_store.mailboxes.get(read.range.key)
                if mailbox is not None:
                    self._lose(mailbox, missing)
            self._send(read.session, read.answer)

    def _lose(self, mailbox: Mailbox, seqs: Iterable[int]) -> None:
        """The stream does not have these: what is not in memory either is gone, and leaves the inbox."""
        for seq in seqs:
            if mailbox.inbox is None or mailbox.kept(seq) is not None:
                continue
            if mailbox.is_cold(seq):
                mailbox.lose(seq, seq)
            else:
                mailbox.inbox.remove(seq, seq)
        self._mailbox_store.mark(mailbox)
        self._mailbox_store.counts_changed(mailbox)

    def _send(self, session: str, answer: InboxIs) -> None:
        """Send the rows that fit; the others begin the next page."""
        size = 0
        for index, row in enumerate(answer.rows):
            size += len(row.body)
            if size > self._config.inbox_page_bytes_max and index:
                answer.before = answer.rows[index - 1].seq
                del answer.rows[index:]
                break
        self._output.to_edges.append((session, answer))

    # -- marks --------------------------------------------------------------------------------------------------------

    def mark(self, mailbox: Mailbox, session: str, record: MarkInbox) -> UserChange | None:
        """The change that a mark is; it is answered when that is durable. None when there is nothing to change: it is answered."""
        if not self._config.inbox_max:
            self._output.to_edges.append((session, InboxMarked(record.ref, NOT_FOUND)))
            return None
        if record.epoch not in ("", self.data_epoch):  # it is late, or repeated: its numbers are of other messages now
            self._output.to_edges.append((session, InboxMarked(record.ref, CONFLICT)))
            return None
        inbox = mailbox.inbox
        known: dict[str, int] = {}
        if record.ids and inbox is not None:
            known = {id: seq for id, seq in oldest_of(mailbox, record.ids).items() if inbox.holds(seq)}
            wanted = set(record.ids) - known.keys()
            known |= {message.envelope.id: seq for seq, message in inbox.unwritten.items() if message.envelope.id in wanted}
        done = InboxMarked(record.ref, OK, unknown=[id for id in record.ids if id not in known])
        seqs: set[int] = set()
        if inbox is not None:
            seqs.update(inbox.upto(mailbox.head if record.upto < 0 else record.upto))
            seqs.update(known.values(), (seq for seq in record.seqs if inbox.holds(seq)))
        if seqs:
            marked = Marked(mailbox.key, record.mark, record.on, sorted(seqs))
            return UserChange(mailbox, session, marked, done, InboxMarked(record.ref, UNAVAILABLE))
        done.unread, done.unseen, done.revision = self._counts(mailbox)
        self._output.to_edges.append((session, done))
        return None

    def marked(self, mailbox: Mailbox, record: Marked, done: InboxMarked) -> list[int]:
        """The mark is journalled and applied: completes the answer, and returns the numbers that it acknowledges."""
        self._mailbox_store.counts_changed(mailbox)
        done.unread, done.unseen, done.revision = self._counts(mailbox)
        return acknowledged_by(mailbox, record)

    # -- counts -------------------------------------------------------------------------------------------------------

    def _counts(self, mailbox: Mailbox) -> tuple[int, int, int]:
        floor = self.epoch << _EPOCH_SHIFT
        if mailbox.inbox is None:
            return 0, 0, floor
        if mailbox.inbox.revise(floor):
            self._mailbox_store.mark(mailbox)  # or a mailbox that is evicted and read again would give the revision a second time
        return (*mailbox.inbox.counts(), mailbox.inbox.revision)

    def attached(self, mailbox: Mailbox, session: str, conn: int) -> None:
        """A connection that wants the counts has begun."""
        if self._config.inbox_max:
            self._output.to_edges.append((session, Counts(conn, *self._counts(mailbox))))

    def tick(self) -> None:
        """Send the counts that have changed."""
        due, self._mailbox_store.counts_due = self._mailbox_store.counts_due, {}
        for mailbox in due.values():
            wanting = [connection.conn for connection in mailbox.connections.values() if connection.counts]
            if wanting and mailbox.inbox is not None:
                counts = self._counts(mailbox)
                if counts[2] != mailbox.inbox.sent_revision:
                    mailbox.inbox.sent_revision = counts[2]
                    self._output.to_edges.extend((session, Counts(conn, *counts)) for session, conn in wanting)


def _cut_at_backlog(mailbox: Mailbox, answer: InboxIs, missing: dict[int, InboxRow]) -> None:
    """Leave rows behind a long backlog to the next page: the stream is read as one range."""
    if not missing or mailbox.cold is None:
        return
    first, last = mailbox.cold
    newest = min(max(missing), last)
    for index, row in enumerate(answer.rows):
        if row.seq in missing and newest - max(row.seq, first) >= _BACKLOG_MAX:
            answer.before = answer.rows[index - 1].seq
            for left in answer.rows[index:]:
                missing.pop(left.seq, None)
            del answer.rows[index:]
            return


def _fill(row: InboxRow, message: Message) -> None:
    row.accepted_ms = message.accepted_ms
    row.body = bytes(message.envelope.body)
