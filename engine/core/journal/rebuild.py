"""Journal records that restore, from the mailboxes in memory, what storage has lost.

Storage then holds a prefix of what was written (see `engine.store.loss_detector`), and the shard has the current state of every mailbox in
memory. The records are appended to what is left of the journal; replay applies them by its usual rules: a message with a number that the
mailbox has reached is present already, a later one is added, and a number between them without a message is announced as a gap. Messages
that had left memory for the lost part of the streams cannot be restored.

The state of the judge is restored, and so are profiles and the counters of limits. The counters follow the messages, which
replay would count a second time. A page with a higher number was written later: replay leaves its counters and its inbox.

A broadcast is restored with its body, like any other message: the log may have lost it too.

Ids of restored messages are kept as long as the mailbox keeps them, not for the full time of idempotency keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from engine.core.journal.journal_records import Handled, Inboxed, Record, Remembered, StoredMessage, Topics, settled_numbers
from engine.core.mailbox.judge_state import JudgeRecord
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import TIMER_EFFECT
from engine.core.model.sealed import sealed

_encoder = msgspec.msgpack.Encoder()


def payloads(mailboxes: Iterable[Mailbox], bytes_max: int) -> Iterator[bytes]:
    """Journal entries of about `bytes_max` bytes: for each mailbox its pending messages, then its state."""
    entry: list[Record] = []
    size = 0
    for mailbox in mailboxes:
        for record in _records(mailbox):
            entry.append(record)
            size += 64
            if isinstance(record, StoredMessage):
                size += len(record.envelope.body)
            elif isinstance(record, Handled):
                size += 9 * len(record.acked)
            elif isinstance(record, JudgeRecord) and mailbox.judge_state is not None:
                size += mailbox.judge_state.size
            if size >= bytes_max:
                yield sealed(_encoder.encode(entry))
                entry, size = [], 0
    if entry:
        yield sealed(_encoder.encode(entry))


def _records(mailbox: Mailbox) -> Iterator[Record]:
    known = {seq: (id, digest) for id, (seq, digest) in mailbox.recent.items() if not id.startswith(TIMER_EFFECT)}
    timers = {seq: id.removeprefix(TIMER_EFFECT) for id, (seq, _) in mailbox.recent.items() if id.startswith(TIMER_EFFECT)}
    pending = mailbox.hot | mailbox.dying
    if mailbox.inbox is not None:
        pending = pending | mailbox.inbox.unwritten
    floor, acked = settled_numbers(mailbox)
    last, above = floor, frozenset(acked)
    for seq in sorted(pending):
        # Before the next message, or replay would announce these numbers as a gap.
        if settled := [number for number in range(last + 1, seq) if number in above]:
            yield Handled(mailbox.key, floor, settled, seq - 1)
        last = seq
        m = pending[seq]
        # A broadcast has no digest.
        digest = known[seq][1] if seq in known else b""
        envelope = msgspec.structs.replace(m.envelope, digest=digest, body=bytes(m.envelope.body))
        yield StoredMessage(mailbox.key, seq, envelope, m.expires_ms, m.accepted_ms, m.attempts, timers.get(seq, ""))
    if mailbox.topics or mailbox.log_pos:
        yield Topics(mailbox.key, mailbox.topics, mailbox.log_pos)
    yield Remembered(mailbox.key, mailbox.user_state, mailbox.seen_ms, mailbox.head)
    if mailbox.judge_state is not None:
        yield mailbox.judge_state.whole(mailbox.key)  # also an empty one: the page that is left may have more
    yield Handled(mailbox.key, floor, acked, mailbox.head)
    if mailbox.inbox is not None:
        yield Inboxed(mailbox.key, mailbox.inbox.to_stored(), mailbox.head)
