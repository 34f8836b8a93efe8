"""Nacks of cold messages: they take effect when the offline stream was read, since a dead letter needs the body.

An acknowledgement by HTTP (`Settle`) waits likewise for those of its ids that memory lacks while there are cold messages: its answer says
that they do not come again. It needs no body, so a cold message of a known number is settled at once.

The states of one nacked id of a mailbox:

    hot                -> dead letter queued (`MailboxStore.refuse`)
    cold, or unknown   -> waits here; a read is wanted. When a read is done:
                            now hot                       -> dead letter queued
                            still cold, or unknown        -> waits here for the next read
                            unknown, all of it was read   -> over
    settled, or gone   -> over: confirmed at once, nothing is left to nack

A connection's records keep their order: behind a nack that waits, its later acknowledgements and nacks wait too, or a cumulative
acknowledgement would settle the nacked message as handled. Records of other connections do not wait.

Crash, or the end of the link session: the queue is lost. None of its nacks was confirmed, so the edge repeats them on its next link
session, before the acknowledgements that followed them; a nack without a connection (`Refuse`) is repeated likewise. A read that fails is
wanted again; the queue stays.

Limits: `BEHIND_MAX` records behind the waiting nacks of one mailbox; further ones are dropped, as when a link is lost: a dropped
acknowledgement causes a repeat, a dropped nack is never confirmed. Waiting nacks themselves are at most one per connection attached, and
`connections.REQUESTS_MAX` without one.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.core.mailbox.id_lookup import oldest_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.page_wait import BEHIND_MAX
from engine.core.wire.records import Ack, AckIds, Nack


class Queued(Struct):
    """A record that waits, of this link session.

    Attributes:
        first: the stream is to be read for it from this number on.
        read: all cold numbers up to it were read for it.
    """

    session: str
    record: Ack | AckIds | Nack
    first: int = 0
    read: int = 0


class NackQueue:
    """The nacks of one shard that wait for a read, and the records that wait behind them.

    `waiting` is by mailbox key, and nearly always empty: test it before calling `holds_back` on a hot path.

    Args:
        mailbox_store: queues the dead letters and the reads.
        window: numbers per read. The id of a nack may be of any cold message: plain SSE has more than a window of them on the way.
    """

    def __init__(self, mailbox_store: MailboxStore, window: int) -> None:
        self.waiting: dict[str, list[Queued]] = {}
        self._mailbox_store = mailbox_store
        self._window = window

    def holds_back(self, mailbox: Mailbox, session: str, record: Ack | AckIds | Nack) -> bool:
        """Queue the record if a nack of its connection waits. False: there is none, apply the record now."""
        waiting = self.waiting.get(mailbox.key)
        if waiting is None or all(before.session != session or before.record.conn != record.conn for before in waiting):
            return False
        if len(waiting) < BEHIND_MAX:
            waiting.append(Queued(session, record))
        return True

    def nack(self, mailbox: Mailbox, session: str, record: Nack, *, read: int = 0) -> list[str]:
        """Queue dead letters of the hot messages, and the nack of the cold ones until they are read.

        Args:
            read: all cold numbers up to it were read for the nack. An id that is unknown after the last of them has no pending message.

        Returns:
            The ids that are over: to be confirmed at once.
        """
        over, cold = self._mailbox_store.refuse(mailbox, record.ids, record.reason, (session, record.conn))
        return over + self._wait(mailbox, session, record, cold, read)

    def settle(self, mailbox: Mailbox, session: str, record: AckIds, *, read: int = 0) -> tuple[list[int], list[str]]:
        """Queue the acknowledgement of ids that cold messages may have, until they are read. `read` as for `nack`.

        Returns:
            The numbers that are acknowledged, ascending, and the ids that are over: the ids of these, and those without a pending message.
        """
        found = oldest_of(mailbox, record.ids)
        unknown = [id for id in record.ids if id not in found]
        return sorted(found.values()), [*found, *self._wait(mailbox, session, record, unknown, read)]

    def _wait(self, mailbox: Mailbox, session: str, record: AckIds | Nack, ids: list[str], read: int) -> list[str]:
        """Queue the record with these of its ids until their messages are read. Returns the ids that no message can have any more."""
        if not ids or mailbox.cold is None:
            return ids
        over: list[str] = []
        known = oldest_of(mailbox, ids)
        if read >= mailbox.cold[1]:
            over = [id for id in ids if id not in known]
            ids = [id for id in ids if id in known]
        if ids:
            first = min(known.values()) if all(id in known for id in ids) else max(mailbox.cold[0], read + 1)
            waiting = self.waiting.setdefault(mailbox.key, [])
            waiting.append(Queued(session, msgspec.structs.replace(record, ids=ids), first, read))
            # For the oldest, which is never one that waits behind another: those that come meanwhile must not begin its search anew.
            self._mailbox_store.want_read(mailbox, waiting[0].first, self._window)
        return over

    def take(self, mailbox: Mailbox, first: int, last: int) -> list[Queued]:
        """Empty the mailbox's queue, since the numbers `first`..`last` of its stream were read.

        Returns:
            The records in order, to be applied again (each goes back if a nack of its connection waits again), with the `read` to call
            `nack` or `settle` with: as before when it was not the range that the record waits for.
        """
        waiting = self.waiting.pop(mailbox.key, [])
        for queued in waiting:
            if first <= queued.first <= last:
                queued.read = last
        return waiting

    def connections_ended(self, mailbox: Mailbox) -> None:
        """The mailbox's last connection ended: only nacks without a connection, whose `conn` is negative, are still to be confirmed."""
        waiting = self.waiting.get(mailbox.key)
        if waiting is not None:
            waiting[:] = [queued for queued in waiting if queued.record.conn < 0]
            if not waiting:
                del self.waiting[mailbox.key]
