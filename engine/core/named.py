"""Which messages a client means when it names them by their ids.

An id may be pending twice: storage forgets the ids of publishers after a day, a message waits for three, and an id that the engine made is
known while it is recent only. Who acknowledges one has seen what its connection was sent; whatever comes behind that is another message,
and settling it unseen would lose it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.core.flight import Connection
from engine.core.mailbox import Mailbox


def seqs_of(mailbox: Mailbox, ids: Iterable[str]) -> list[int]:
    """One number for each of these ids, as far as memory knows it, ascending: the oldest, for nobody knows what a client without a
    connection was shown, and a refusal is of one message."""
    oldest = {id: seq for id in ids if (seq := mailbox.recent.get(id, (0,))[0])}
    wanted = set(ids)
    for seq, message in chain(mailbox.dying.items(), mailbox.hot.items()):
        if message.id in wanted:
            oldest[message.id] = min(seq, oldest.get(message.id, seq))
    return sorted(oldest.values())


def seqs_shown(mailbox: Mailbox, ids: Iterable[str], by: Connection) -> list[int]:
    """All numbers of these ids that a connection was sent, as far as memory knows them, ascending."""
    wanted, seqs, found = set(ids), list[int](), set[str]()
    for seq in by.flight:  # nearly always all of them
        message = mailbox.hot.get(seq)
        if message is not None and message.id in wanted:
            seqs.append(seq)
            found.add(message.id)
    for id in wanted - found:
        seq = mailbox.recent.get(id, (0,))[0]
        if 0 < seq <= by.sent:
            seqs.append(seq)
            found.add(id)
    if left := wanted - found:
        pending = chain(mailbox.dying.items(), mailbox.hot.items())
        seqs += [seq for seq, message in pending if seq <= by.sent and message.id in left]
    return sorted(seqs)
