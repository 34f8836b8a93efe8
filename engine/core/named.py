"""Which messages a client means when it names them by their ids.

An id may be pending twice: storage forgets the ids of publishers after a day, a message waits for three, and an id that the engine made is
known while it is recent only. A connection means what is in flight on it. What is not, it was shown before its shard died or the
connection stalled, and nobody knows which: the oldest, because messages are shown in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.core.flight import Connection
from engine.core.mailbox import Mailbox


def seqs_of(mailbox: Mailbox, ids: Iterable[str]) -> list[int]:
    """One number for each of these ids, as far as memory knows it, ascending: the oldest. For those who have no connection, and for a
    refusal, which is of one message."""
    oldest = {id: seq for id in ids if (seq := mailbox.recent.get(id, (0,))[0])}
    wanted = set(ids)
    for seq, message in chain(mailbox.dying.items(), mailbox.hot.items()):
        if message.id in wanted:
            oldest[message.id] = min(seq, oldest.get(message.id, seq))
    return sorted(oldest.values())


def seqs_shown(mailbox: Mailbox, ids: Iterable[str], by: Connection) -> list[int]:
    """All numbers of these ids that are in flight on a connection, and one for each of the others, ascending."""
    wanted, seqs = set(ids), list[int]()
    left = set(wanted)
    for seq in by.flight:  # nearly always all of them
        message = mailbox.hot.get(seq)
        if message is not None and message.id in wanted:
            seqs.append(seq)
            left.discard(message.id)
    return sorted(seqs + seqs_of(mailbox, left)) if left else seqs
