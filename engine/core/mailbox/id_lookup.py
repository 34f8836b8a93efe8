"""Resolves message ids sent by a client to sequence numbers.

An id may be pending twice: storage drops publishers' ids after a day, a message is kept for three, and an id made by the engine is stored
only while it is recent. An id from a connection means the messages in flight, exhausted or early on it. Any other id was delivered before
the shard failed, and its number is not recorded: it means the oldest, because messages are delivered in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox


def oldest_of(mailbox: Mailbox, ids: Iterable[str]) -> dict[str, int]:
    """Return the oldest number in memory of each of these ids; omits ids without one.

    For callers without a connection, and for a refusal, which is of one message.
    """
    wanted = set(ids)
    oldest = {id: seq for id in wanted if (seq := mailbox.recent.get(id, (0,))[0])}
    for seq, message in chain(mailbox.dying.items(), mailbox.hot.items()):
        if message.envelope.id in wanted:
            oldest[message.envelope.id] = min(seq, oldest.get(message.envelope.id, seq))
    return oldest


def seqs_shown(mailbox: Mailbox, ids: Iterable[str], by: Attachment) -> list[int]:
    """Return all numbers of these ids in flight, exhausted or early on a connection, and the oldest number of each other id, ascending."""
    wanted = set(ids)
    shown = {
        seq: message.envelope.id for seq in by.flight if (message := mailbox.hot.get(seq)) is not None and message.envelope.id in wanted
    }
    if by.exhausted:
        shown |= {seq: id for seq, (_, id) in by.exhausted.items() if id in wanted}
    if by.early:
        shown |= {seq: id for seq, (_, id) in by.early.items() if id in wanted and mailbox.is_pending(seq)}
    left = wanted.difference(shown.values())  # nearly always empty
    return sorted([*shown, *oldest_of(mailbox, left).values()] if left else shown)
