"""Requests of edges about a user's inbox.

Edges ask the shard, not storage: the newest messages are only in the shard's memory, what the user has marked is there, and the entries of
the offline stream are meaningless without it. A read takes the numbers and flags at once; bodies that are not in memory are read from the
stream by a task of their own, so that neither commits nor deliveries wait for it:

    asked -> answered at once          every body is in memory
          -> waiting -> under way -> answered
                                  -> "unavailable": storage did not answer
          -> rejected                `inbox_reads_max` wait already

A number whose entry is not there has left the stream without the shard's knowledge (it was trimmed for its bytes): it leaves the inbox.

A mark is a journal record like every change of a user (`engine.core.shard.user_requests`), also when nothing here is to be marked: a shard
that has lost the user without knowing it finds nothing, and must not answer for its successor. Marking as read, or as archived, what is
pending acknowledges it, also when the record is replayed: the acknowledgement's own record may come later than the answer.

Crash: reads and waiting marks are lost and unanswered, so their edges repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from engine.core.commit.user_step import UserChange
from engine.core.journal.journal_records import Marked, StoredMessage, recalled
from engine.core.mailbox.id_lookup import oldest_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import Message
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.mailbox_store import MailboxStore, StreamRead
from engine.core.shard.user_handlers import RequestContext, StreamAnswer
from engine.core.wire.records import CONFLICT, NOT_FOUND, OK, UNAVAILABLE, InboxIs, InboxMarked, InboxRow, MarkInbox, ReadInbox

_BACKLOG_MAX: Final = 256
"""Pending entries of the offline stream from the newest body that a page lacks to the oldest: those between them, which the inbox may not
have, are read too."""


def read(mailbox: Mailbox, asked: ReadInbox, context: RequestContext) -> InboxIs | StreamAnswer:
    """A page of the inbox."""
    config = context.config
    if not config.inbox_max:
        return InboxIs(asked.ref, NOT_FOUND)
    answer = InboxIs(asked.ref, OK, epoch=context.data_epoch)
    answer.unread, answer.unseen, answer.revision = context.counts.of(mailbox)
    inbox = mailbox.inbox
    if inbox is None:
        return answer
    limit = min(asked.limit, config.inbox_page_max)
    chosen = inbox.select(asked.before or mailbox.head + 1, limit + 1, asked.view)
    if len(chosen) > limit:
        answer.before = chosen[limit - 1]
    missing: dict[int, InboxRow] = {}  # rows without a body, by number
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
        return _cut_at_bytes(answer, config.inbox_page_bytes_max)
    complete = partial(_completed, answer, missing, mailbox.key, context.mailbox_store, config.inbox_page_bytes_max)
    return StreamAnswer(StreamRead(mailbox.key, min(missing), max(missing)), complete, InboxIs(asked.ref, UNAVAILABLE))


def _completed(
    answer: InboxIs, missing: dict[int, InboxRow], key: str, store: MailboxStore, bytes_max: int, entries: Iterable[StoredMessage]
) -> InboxIs:
    """The answer with what the stream has of the range."""
    for stored in entries:
        if stored.seq in missing and (message := recalled(stored, store.log)) is not None:
            _fill(missing.pop(stored.seq), message)
    if missing:
        answer.rows = [row for row in answer.rows if row.seq not in missing]
        mailbox = store.mailboxes.get(key)
        if mailbox is not None:
            _lose(mailbox, missing, store)
    return _cut_at_bytes(answer, bytes_max)


def _lose(mailbox: Mailbox, seqs: Iterable[int], store: MailboxStore) -> None:
    """The stream does not have these: what is not in memory either is gone, and leaves the inbox."""
    for seq in seqs:
        if mailbox.inbox is None or mailbox.kept(seq) is not None:
            continue
        if mailbox.is_cold(seq):
            mailbox.lose(seq, seq)
        else:
            mailbox.inbox.remove(seq, seq)
    store.mark(mailbox)
    store.counts_changed(mailbox)


def _cut_at_bytes(answer: InboxIs, bytes_max: int) -> InboxIs:
    """The answer with the rows that fit; the others begin the next page."""
    size = 0
    for index, row in enumerate(answer.rows):
        size += len(row.body)
        if size > bytes_max and index:
            answer.before = answer.rows[index - 1].seq
            del answer.rows[index:]
            break
    return answer


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


def mark(mailbox: Mailbox, asked: MarkInbox, context: RequestContext) -> InboxMarked | UserChange:
    """The change that a mark is, or why it is none."""
    if not context.config.inbox_max:
        return InboxMarked(asked.ref, NOT_FOUND)
    if asked.epoch not in ("", context.data_epoch):  # it is late, or repeated: its numbers are of other messages now
        return InboxMarked(asked.ref, CONFLICT)
    inbox = mailbox.inbox
    known: dict[str, int] = {}
    if asked.ids and inbox is not None:
        known = {id: seq for id, seq in oldest_of(mailbox, asked.ids).items() if inbox.holds(seq)}
        wanted = set(asked.ids) - known.keys()
        known |= {message.envelope.id: seq for seq, message in inbox.unwritten.items() if message.envelope.id in wanted}
    done = InboxMarked(asked.ref, OK, unknown=[id for id in asked.ids if id not in known])
    seqs: set[int] = set()
    if inbox is not None:
        seqs.update(inbox.upto(mailbox.head if asked.upto < 0 else asked.upto))
        seqs.update(known.values(), (seq for seq in asked.seqs if inbox.holds(seq)))
    marked = Marked(mailbox.key, asked.mark, asked.on, sorted(seqs))
    count = partial(_count, mailbox, done, context.counts)
    return UserChange(mailbox, context.session, marked, done, InboxMarked(asked.ref, UNAVAILABLE), applied=count)


def _count(mailbox: Mailbox, done: InboxMarked, counts: InboxCounts) -> None:
    done.unread, done.unseen, done.revision = counts.of(mailbox)
