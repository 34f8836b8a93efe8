"""Which messages a client means when it names them by their ids.

An id may be pending twice: storage forgets the ids of publishers after a day, a message waits for three, and an id that the engine made is
known while it is recent only. A connection means what is in flight on it. What is not, it was shown before its shard died or the
connection stalled, and nobody knows which: the oldest, because messages are shown in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox


def oldest_of(mailbox: Mailbox, ids: Iterable[str]) -> dict[str, int]:
    """The oldest number of each of these ids, as far as memory knows one. For those who have no connection, and for a refusal, which is
    of one message."""
    wanted = set(ids)
    oldest = {id: seq for id in wanted if (seq := mailbox.recent.get(id, (0,))[0])}
    for seq, message in chain(mailbox.dying.items(), mailbox.hot.items()):
        if message.envelope.id in wanted:
            oldest[message.envelope.id] = min(seq, oldest.get(message.envelope.id, seq))
    return oldest


def seqs_shown(mailbox: Mailbox, ids: Iterable[str], by: Attachment) -> list[int]:
    """All numbers of these ids that are in flight on a connection, and the oldest of each of the others, ascending."""
    wanted = set(ids)
    shown = {
        seq: message.envelope.id for seq in by.flight if (message := mailbox.hot.get(seq)) is not None and message.envelope.id in wanted
    }
    left = wanted.difference(shown.values())  # nearly always nothing
    return sorted([*shown, *oldest_of(mailbox, left).values()] if left else shown)
