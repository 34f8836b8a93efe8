"""What a shard still holds when storage has lost data: the records that put it back.

Storage then has a beginning of what was written (see `engine.store.loss_detector`), and the shard has every mailbox in memory as it
really is. The records are appended to the journal behind what is left of it, and replay does the rest, with its usual rules:
a message whose number the mailbox has reached is there already, one beyond it is taken, a number between them that nobody
brings is gone and will be announced as a gap. What had left memory for the lost part of the streams cannot be brought back.

Aggregation windows are put back as they are, counts and all; so are profiles, and what counts against limits, behind the messages that
replay would count a second time.

A broadcast is put back with its body, like any other message: the log may have lost it too.

Ids of rescued messages are remembered as long as the mailbox remembers them, not for the full time of idempotency keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from engine.core.journal.journal_records import Handled, Kept, Record, Remembered, StoredMessage, Topics, settled_numbers
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import FORMAT_VERSION
from engine.core.model.message import TIMER_EFFECT

_encoder = msgspec.msgpack.Encoder()


def payloads(mailboxes: Iterable[Mailbox], bytes_max: int) -> Iterator[bytes]:
    """Journal entries of about `bytes_max` bytes with everything pending in memory, then what is settled of each mailbox."""
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
            elif isinstance(record, Kept):
                size += record.windows.size
            if size >= bytes_max:
                yield FORMAT_VERSION + _encoder.encode(entry)
                entry, size = [], 0
    if entry:
        yield FORMAT_VERSION + _encoder.encode(entry)


def _records(mailbox: Mailbox) -> Iterator[Record]:
    known = {seq: (id, digest) for id, (seq, digest) in mailbox.recent.items() if not id.startswith(TIMER_EFFECT)}
    timers = {seq: id.removeprefix(TIMER_EFFECT) for id, (seq, _) in mailbox.recent.items() if id.startswith(TIMER_EFFECT)}
    pending = mailbox.hot | mailbox.dying
    floor, acked = settled_numbers(mailbox)
    told, above = floor, frozenset(acked)
    for seq in sorted(pending):
        # Before the message behind them, or replay would take these numbers for gone.
        if settled := [number for number in range(told + 1, seq) if number in above]:
            yield Handled(mailbox.key, floor, settled, seq - 1)
        told = seq
        m = pending[seq]
        # A spill of version 0 had no digest, and a broadcast counts by its id alone.
        digest = known[seq][1] if seq in known else b""
        envelope = msgspec.structs.replace(m.envelope, digest=digest, body=bytes(m.envelope.body))
        yield StoredMessage(mailbox.key, seq, envelope, m.expires_ms, m.accepted_ms, m.attempts, timers.get(seq, ""))
    if mailbox.topics or mailbox.log_pos:
        yield Topics(mailbox.key, mailbox.topics, mailbox.log_pos)
    yield Remembered(mailbox.key, mailbox.user_state, mailbox.seen_ms)
    if mailbox.windows is not None:
        yield Kept(mailbox.key, mailbox.windows)  # also with none open: what is left of a page may know of one that was closed
    yield Handled(mailbox.key, floor, acked, mailbox.head)
