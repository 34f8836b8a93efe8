"""The connections attached to one shard, and the ACKs and nacks of their clients.

An edge attaches its connections under its link session. When the session ends they are detached, and the edge attaches them again under its
next session (`Attach.resume`), with the last number each was sent. The mailboxes of attached connections are in memory.

Messages settled by ACK, cursor or dead letter are journalled by the next group (`take_handled`). A crash before that loses the settlement,
and the messages are delivered again.

Who is online, and who may come back by itself, is decided by `engine.core.shard.presence`. A user is active by coming, not by coming back
(`Mailbox.seen_ms`): a client on a bad network, or one whose edge was drained, would otherwise look like a person at the screen.

A nack takes effect when the dead-letter stream has the message. The edge is sent `NacksStored` then, and repeats the nack under each new
link session until it is. Before that neither journal nor page has the message as settled, whatever the client acknowledges after it
(`journal_records.settled_numbers`). The nack of a message that is not in memory waits for a read (`engine.core.shard.nack_queue`).

A nack by HTTP (`Refuse`) has no connection: `~ref`, a negative number, stands in its place. It is answered when its last id is confirmed.
So is an acknowledgement by HTTP (`Settle`): ids that memory lacks wait for a read as those of nacks do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.commit.broadcast_step import BroadcastStep
from engine.core.journal.journal_records import Handled, settled_numbers
from engine.core.mailbox.attachment import Attachment, Conn
from engine.core.mailbox.id_lookup import seqs_shown
from engine.core.mailbox.mailbox import Mailbox, Settlement
from engine.core.mailbox.retry import EdgeRoundTrip
from engine.core.shard.delivery import Delivery
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.mailbox_store import DeadLetter, MailboxStore
from engine.core.shard.nack_queue import NackQueue
from engine.core.shard.output import SessionEvent, ShardOutput
from engine.core.shard.presence import OFFLINE, SUSPECT, Client, Presence
from engine.core.wire.outcomes import Outcome
from engine.core.wire.records import (
    OVERLOADED,
    POLL,
    Ack,
    AckIds,
    Attach,
    Detach,
    Fault,
    Hangup,
    Moved,
    Nack,
    NacksStored,
    Probe,
    Probed,
    Refuse,
    Rejected,
    Rejoin,
    Settle,
    Show,
    Shown,
    Welcome,
    Written,
)
from engine.core.wire.records import Settled as SettledRecord

_NONE_ATTACHED: Final[Mapping[int, tuple[Mailbox, Attachment]]] = {}

REQUESTS_MAX: Final = 1000
"""Requests to acknowledge or refuse messages that wait for storage at once."""

_RETRY_MS: Final = 1000


class _Request(Struct):
    """A `Settle` or `Refuse` that is not answered yet: ids that are not over."""

    key: str
    ids: set[str]


class Connections:
    """All attached connections of one shard. Answers go into the shard's output."""

    def __init__(
        self,
        config: Config,
        mailbox_store: MailboxStore,
        broadcast_step: BroadcastStep,
        delivery: Delivery,
        output: ShardOutput,
        data_epoch: str,
        unknown: Callable[[str, Ack | AckIds | Nack | Written | Rejoin], None],
        inbox_counts: InboxCounts,
    ) -> None:
        self._inbox_counts = inbox_counts
        self._mailbox_store = mailbox_store
        self._delivery = delivery
        self._broadcast_step = broadcast_step
        self._output = output
        self._config = config
        self._retry = mailbox_store.retry
        self.data_epoch = data_epoch
        self._sessions: dict[str, dict[int, tuple[Mailbox, Attachment]]] = {}
        self._paths: dict[str, EdgeRoundTrip] = {}  # by link session
        self.acked: Final[dict[str, Mailbox]] = {}  # with settlements that no group carries yet
        self._acked_since_ms = 0
        self._refused: dict[str, list[int]] = {}  # of these mailboxes: what left the inbox as a dead letter
        self._nack_queue = NackQueue(mailbox_store, config.window)
        self._requests: dict[Conn, _Request] = {}  # by link session and `~ref`
        self.presence = Presence(config.offline_after_ms, config.suspects_max)
        self._unknown = unknown  # called with records of connections that are not attached, or not yet

    # -- connections --------------------------------------------------------------------------------------------------

    def opened(self, session: str) -> None:
        """An edge's link session began."""
        self._sessions[session] = {}
        self._paths[session] = EdgeRoundTrip()
        self._delivery.opened(session)

    def closed(self, session: str, now_ms: int) -> None:
        """An edge's link session ended: detach its connections."""
        for conn in list(self._sessions.get(session, ())):
            self.detach(session, Detach(conn, 1006), now_ms)
        self._sessions.pop(session, None)
        self._paths.pop(session, None)
        self._requests = {conn: request for conn, request in self._requests.items() if conn[0] != session}
        self._delivery.closed(session)

    def data_epoch_changed(self, data_epoch: str, now_ms: int) -> None:
        """Storage has lost data: end all connections, so that clients reconnect with their cursors and are sent the gap."""
        self.data_epoch = data_epoch
        for session, connections in self._sessions.items():
            for conn in list(connections):
                self._output.to_edges.append((session, Hangup(conn, 1012, "the epoch has changed")))
                self.detach(session, Detach(conn, 1012), now_ms)

    @property
    def count(self) -> int:
        return sum(map(len, self._sessions.values()))

    def attached(self) -> list[tuple[Mailbox, Attachment]]:
        """All connections, each with its mailbox, as of now."""
        return [found for connections in self._sessions.values() for found in connections.values()]

    def attach(self, mailbox: Mailbox, session: str, record: Attach, now_ms: int) -> None:
        """Attach a new connection, or one that outlived its link session (`record.resume`)."""
        connections = self._sessions.get(session)
        if connections is None:
            return  # the link session ended while the page was read
        if record.resume and record.cursor_epoch != self.data_epoch:
            # Storage has lost data: the client reconnects with the old cursor, and is sent the gap.
            self._output.to_edges.append((session, Hangup(record.conn, 1012, "the epoch has changed")))
            return
        mailbox.active_ms = now_ms
        self._begin_anew(session, record.conn, now_ms)
        found, back = self.presence.attached(mailbox.key)
        if found != SUSPECT and not record.resume:
            mailbox.left_ms, mailbox.seen_ms = mailbox.seen_ms, now_ms
        resumed = "new"
        if record.cursor_epoch:
            resumed = "gap"
            if record.cursor_epoch == self.data_epoch and 0 <= record.cursor_seq <= mailbox.head:
                resumed = "ok"
                settlement = mailbox.settle_through(record.cursor_seq, None, now_ms, self._retry)
                if settlement.news:
                    if not record.resume:
                        mailbox.seen_ms = now_ms
                    self.settled(mailbox, settlement, None, now_ms)
        conn, path = (session, record.conn), self._paths[session]
        connection = Attachment(
            conn,
            record.kind,
            record.session,
            record.device,
            mailbox.floor,
            now_ms,
            record.topics,
            path,
            counts=record.counts,
            early=record.early,
        )
        while len(mailbox.connections) >= self._config.connections_per_user_max:
            oldest = next(iter(mailbox.connections))
            self._output.to_edges.append((oldest[0], Hangup(oldest[1], 4409, "too many connections of this user")))
            self.detach(oldest[0], Detach(oldest[1], 4409), now_ms)
        mailbox.connections[connection.conn] = connection
        connections[record.conn] = (mailbox, connection)
        client = _client(connection)
        self._session_event("connect", mailbox.key, client, now_ms, online=True if found == OFFLINE else None)
        if back:
            self._session_event("back", mailbox.key, client, now_ms)
        waits = self._broadcast_step.attached(mailbox, connection, now_ms, record.since_ms if record.resume else None)
        if record.resume:
            self._readopt(mailbox, connection, record.sent, now_ms)
        else:
            # A poll ends at once if `head` is its cursor: count the broadcasts that are about to be adopted.
            head = mailbox.head + (waits and record.kind == POLL)
            welcome = Welcome(record.conn, head, resumed, mailbox.oldest_pending(), self.data_epoch)
            self._output.to_edges.append((session, welcome))
        if record.counts:
            self._inbox_counts.attached(mailbox, session, record.conn)
        self._delivery.send(mailbox, connection, now_ms)

    def _begin_anew(self, session: str, conn: int, now_ms: int) -> None:
        """If it is attached, it is announced once more: the user moved away and came back before its edge heard of the first move."""
        found = self._sessions[session].pop(conn, None)
        if found is None:
            return
        mailbox, connection = found
        mailbox.detach(connection.conn)
        self._broadcast_step.detached(mailbox)
        self.presence.detached(mailbox.key, _client(connection), 0, now_ms)

    def _readopt(self, mailbox: Mailbox, connection: Attachment, sent: int, now_ms: int) -> None:
        """Put the messages up to `sent` in flight again, as far as they are in memory.

        Cold ones are sent again, on connections with retries.
        """
        sent = connection.looked = min(sent, mailbox.head)  # no early copies of these
        if mailbox.cold and connection.retries:
            sent = min(sent, mailbox.cold[0] - 1)
        connection.sent = connection.untold = max(connection.sent, sent)  # numbers may have been lost after they were sent
        for seq in sorted(seq for seq in mailbox.hot if seq <= sent):
            connection.fly(mailbox.hot[seq], now_ms)
        if connection.flight:
            self._delivery.watch(mailbox, now_ms)

    def detach(self, session: str, record: Detach, now_ms: int) -> bool:
        """Detach a connection; returns whether it was attached."""
        found = self._sessions.get(session, {}).pop(record.conn, None)
        if found is None:
            return False
        mailbox, connection = found
        mailbox.detach(connection.conn)
        if not mailbox.connections:
            self._nack_queue.connections_ended(mailbox)
        self._broadcast_step.detached(mailbox)
        mailbox.active_ms = now_ms
        client = _client(connection)
        self._session_event("disconnect", mailbox.key, client, now_ms, record.code)
        change = self.presence.detached(mailbox.key, client, record.code, now_ms)
        if change:
            self._session_event(change, mailbox.key, client, now_ms, record.code, online=False if change == OFFLINE else None)
        if not mailbox.connections:
            self._delivery.forget((mailbox.key,))
            if mailbox.hot:
                self._mailbox_store.mark_urgent(mailbox)
            elif mailbox.head > mailbox.start or mailbox.user_state is not None:
                self._mailbox_store.mark(mailbox)  # the page keeps when the user was seen; users without messages or state have none
            self._mailbox_store.unused(mailbox)
        return True

    def end_all(self, mailbox: Mailbox, now_ms: int) -> None:
        """End all connections of a user who was erased: the user is offline, and no client is expected."""
        for session, conn in list(mailbox.connections):
            self._output.to_edges.append((session, Hangup(conn, 4403, "the user was erased")))
            self.detach(session, Detach(conn, 1000), now_ms)
        if self.presence.forget(mailbox.key):
            self._session_event(OFFLINE, mailbox.key, Client(), now_ms, 1000, online=False)
        self._nack_queue.waiting.pop(mailbox.key, None)
        self._output.to_edges.extend((session, SettledRecord(~number)) for session, number in self._take_requests({mailbox.key}))
        self.acked.pop(mailbox.key, None)
        self._refused.pop(mailbox.key, None)

    def release(self, slots: Container[int], mailboxes: Collection[Mailbox], version: int) -> None:
        """Another shard gets these users: detach their connections. Their edges announce them there, by this version of the slot map.

        Who is online stays in storage.
        """
        for mailbox in mailboxes:
            for session, conn in list(mailbox.connections):
                self._output.to_edges.append((session, Moved(-1, conn, version)))
                del self._sessions[session][conn]
                mailbox.detach((session, conn))
                self._broadcast_step.detached(mailbox)
            self._nack_queue.waiting.pop(mailbox.key, None)
        requests = self._take_requests({mailbox.key for mailbox in mailboxes})
        self._output.to_edges.extend((session, Moved(~number, -1, version)) for session, number in requests)
        self.presence.release(slots)

    def _take_requests(self, keys: Container[str]) -> list[Conn]:
        taken = [conn for conn, request in self._requests.items() if request.key in keys]
        for conn in taken:
            del self._requests[conn]
        return taken

    def forget(self, keys: Iterable[str]) -> None:
        """Settlements of these mailboxes need no group: their pages have them."""
        for key in keys:
            self.acked.pop(key, None)
            self._refused.pop(key, None)

    def rejoin(self, session: str, record: Rejoin, now_ms: int) -> None:
        """A renewed token changes of which topics the connection is a member. What the mailbox has adopted already stays in it."""
        found = self._sessions.get(session, {}).get(record.conn)
        if found is None:
            self._unknown(session, record)
            return
        mailbox, connection = found
        self._broadcast_step.rejoined(mailbox, connection, record.topics, now_ms)

    def tick(self, now_ms: int) -> None:
        """Find the users whose clients did not come back in time."""
        for key, expected in self.presence.expire(now_ms):
            self._session_event(OFFLINE, key, expected.client, now_ms, expected.code, online=False)

    def _session_event(self, event: str, key: str, client: Client, now_ms: int, code: int = 0, *, online: bool | None = None) -> None:
        self._output.session_events.append(
            SessionEvent(event, key, client.session, client.device, client.edge, client.transport, now_ms, code, online)
        )
        if self._output.outcomes is not None:
            reason = f"code: {code}" if code else ""
            session, device, transport, node = client.session, client.device, client.transport, client.edge
            self._output.outcomes.add(
                Outcome(key, now_ms, event, reason=reason, session=session, device=device, transport=transport, node=node)
            )

    def show(self, session: str, record: Show, _now_ms: int) -> None:
        """Pass frames on to the connections of their users, and answer the edge that sent them."""
        mailboxes = self._mailbox_store.mailboxes
        by_session: dict[str, list[tuple[int, bytes]]] = {}
        for key, frame in record.frames:
            mailbox = mailboxes.get(key)
            if mailbox is not None:
                for there, conn in mailbox.connections:
                    by_session.setdefault(there, []).append((conn, frame))
        own = by_session.pop(session, [])
        self._output.to_edges.append((session, Shown(record.kind, own, True)))
        self._output.to_edges.extend((there, Shown(record.kind, frames)) for there, frames in by_session.items())

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def ack(self, session: str, record: Ack, now_ms: int) -> None:
        found = self._sessions.get(session, _NONE_ATTACHED).get(record.conn)
        if found is None:
            self._unknown(session, record)
            return
        mailbox, connection = found
        if self._nack_queue.waiting and self._nack_queue.holds_back(mailbox, session, record):
            return
        seq = record.seq
        if not 0 <= seq <= mailbox.head:
            detail = f"nothing beyond {mailbox.head} was sent, {seq} cannot be acknowledged"
            self._output.to_edges.append((session, Fault(record.conn, "unknown_seq", detail)))
            return
        mailbox.seen_ms = now_ms
        self.settled(mailbox, mailbox.settle_through(seq, connection, now_ms, self._retry), connection, now_ms, record.client_ms)

    def ack_ids(self, session: str, record: AckIds, now_ms: int) -> None:
        found = self._sessions.get(session, _NONE_ATTACHED).get(record.conn)
        if found is not None:
            mailbox, connection = found
            if self._nack_queue.waiting and self._nack_queue.holds_back(mailbox, session, record):
                return
            mailbox.seen_ms = now_ms
            seqs = seqs_shown(mailbox, record.ids, connection)
            self._settle(mailbox, seqs, connection, now_ms, record.client_ms)
        else:
            self._unknown(session, record)

    def settle(self, mailbox: Mailbox, session: str, record: Settle, now_ms: int) -> None:
        """An acknowledgement by HTTP, without a connection: it may be late, or repeated, when numbers have begun anew."""
        error = ""
        if record.seq >= 0 and record.epoch not in ("", self.data_epoch):
            error = f"{record.seq} is a number of epoch {record.epoch}, and this is {self.data_epoch}"
        elif record.seq > mailbox.head:
            error = f"nothing beyond {mailbox.head} exists"
        if error:
            self._output.to_edges.append((session, SettledRecord(record.ref, error)))
            return
        mailbox.seen_ms = now_ms
        if record.seq >= 0:
            self.settled(mailbox, mailbox.settle_through(record.seq, None, now_ms, self._retry), None, now_ms, record.client_ms)
        if not record.ids:
            self._output.to_edges.append((session, SettledRecord(record.ref)))
        elif self._awaited(mailbox, session, record):
            self._settle_ids(mailbox, session, AckIds(~record.ref, record.ids, record.client_ms), now_ms)

    def _settle_ids(self, mailbox: Mailbox, session: str, record: AckIds, now_ms: int, *, read: int = 0) -> None:
        seqs, over = self._nack_queue.settle(mailbox, session, record, read=read)
        self._settle(mailbox, seqs, None, now_ms, record.client_ms)
        self.confirm_nacks((session, record.conn), over)

    def _awaited(self, mailbox: Mailbox, session: str, record: Settle | Refuse) -> bool:
        """Answer this request when its last id is over. False: it is refused, since too many wait."""
        if len(self._requests) >= REQUESTS_MAX:
            self._output.to_edges.append((session, Rejected(record.ref, OVERLOADED, "too many requests wait for storage", _RETRY_MS)))
            return False
        self._requests[session, ~record.ref] = _Request(mailbox.key, set(record.ids))
        return True

    def settle_seqs(self, mailbox: Mailbox, seqs: Iterable[int], now_ms: int) -> None:
        """The user has marked these pending messages as read, or archived them: they are acknowledged."""
        mailbox.seen_ms = now_ms
        self._settle(mailbox, seqs, None, now_ms)

    def _settle(self, mailbox: Mailbox, seqs: Iterable[int], by: Attachment | None, now_ms: int, client_ms: int = 0) -> None:
        if mailbox.dying:  # one that is settled leaves the inbox
            self._mailbox_store.counts_changed(mailbox)
        self.settled(mailbox, mailbox.settle(seqs, by, now_ms, self._retry), by, now_ms, client_ms)

    def settled(self, mailbox: Mailbox, settled: Settlement, by: Attachment | None, now_ms: int, client_ms: int = 0) -> None:
        self.acked[mailbox.key] = mailbox
        if not self._acked_since_ms:
            self._acked_since_ms = now_ms
        self._delivery.settled(mailbox, settled, by, now_ms, client_ms)
        if self._broadcast_step.full:
            self._broadcast_step.settled(mailbox)

    def nack(self, session: str, record: Nack, now_ms: int) -> None:
        found = self._sessions.get(session, _NONE_ATTACHED).get(record.conn)
        if found is None:
            self._unknown(session, record)
            return
        mailbox, connection = found
        if self._nack_queue.waiting and self._nack_queue.holds_back(mailbox, session, record):
            return
        self._nack(mailbox, session, record)
        self._delivery.send(mailbox, connection, now_ms)

    def refuse(self, mailbox: Mailbox, session: str, record: Refuse) -> None:
        """A nack by HTTP, without a connection."""
        if self._awaited(mailbox, session, record):
            self._nack(mailbox, session, Nack(~record.ref, record.ids, record.reason))

    def _nack(self, mailbox: Mailbox, session: str, record: Nack, *, read: int = 0) -> None:
        over = self._nack_queue.nack(mailbox, session, record, read=read)
        if over:
            self.confirm_nacks((session, record.conn), over)

    def read_done(self, mailbox: Mailbox, first: int, last: int, now_ms: int) -> None:
        """The cold messages `first`..`last` are in memory: apply the records that waited for them."""
        if not self._nack_queue.waiting:
            return
        for queued in self._nack_queue.take(mailbox, first, last):
            session, record, read = queued.session, queued.record, queued.read
            if record.conn not in self._sessions.get(session, ()) and (session, record.conn) not in self._requests:
                continue  # its edge repeats it on the next link session, unless the client has left
            if isinstance(record, Ack):
                self.ack(session, record, now_ms)
            elif isinstance(record, AckIds) and record.conn < 0:
                self._settle_ids(mailbox, session, record, now_ms, read=read)
            elif isinstance(record, AckIds):
                self.ack_ids(session, record, now_ms)
            elif not self._nack_queue.holds_back(mailbox, session, record):
                self._nack(mailbox, session, record, read=read)

    def dead_lettered(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        """The dead-letter stream has these messages: confirm their nacks and settle them."""
        for letter in self._mailbox_store.dead_lettered(letters):
            for conn in letter.by:
                self.confirm_nacks(conn, [letter.message.envelope.id])
            mailbox = self._mailbox_store.mailboxes[letter.key]
            if self._output.outcomes is not None:
                message = letter.message
                reason = f"refused: {letter.reason}" if letter.reason else "refused"
                self._output.outcomes.add(Outcome(letter.key, now_ms, "dead_lettered", message.envelope.id, message.seq, reason=reason))
            self._refused.setdefault(letter.key, []).append(letter.message.seq)
            self._settle(mailbox, [letter.message.seq], None, now_ms)

    def confirm_nacks(self, conn: Conn, ids: list[str]) -> None:
        """The nacks are durable, or have no pending message: notify the connection's edge, unless its session is over."""
        session, number = conn
        if (request := self._requests.get(conn)) is not None:
            request.ids.difference_update(ids)
            if not request.ids:
                del self._requests[conn]
                self._output.to_edges.append((session, SettledRecord(~number)))
        elif number in self._sessions.get(session, ()):
            self._output.to_edges.append((session, NacksStored(number, ids)))

    def written(self, session: str, record: Written, now_ms: int) -> None:
        found = self._sessions.get(session, _NONE_ATTACHED).get(record.conn)
        if found is not None:
            mailbox, connection = found
            connection.written(mailbox.hot, record.seq)
            self._delivery.send(mailbox, connection, now_ms)
            self._mailbox_store.written(mailbox)
        else:
            self._unknown(session, record)

    def probe(self, mailbox: Mailbox, session: str, record: Probe, now_ms: int) -> None:
        """Answer what the user's presence is. A suspect user's client is expected for longer by it."""
        self._output.to_edges.append((session, Probed(record.ref, self.presence.probed(mailbox.key, record.client, now_ms), mailbox.head)))

    # -- for the journal ---------------------------------------------------------------------------------------------

    def handled_due(self, now_ms: int) -> bool:
        """Whether the oldest settlement has waited `ack_journal_ms`, and is due for a group of its own."""
        return bool(self.acked) and now_ms - self._acked_since_ms >= self._config.ack_journal_ms

    def take_handled(self) -> list[Handled]:
        """Removes and returns the settlements, for the next group; to be given back by `handled_again` if it is refused."""
        handled = []
        for key, mailbox in self.acked.items():
            floor, acked = settled_numbers(mailbox)
            handled.append(Handled(key, floor, acked, refused=self._refused.pop(key, [])))
        self.acked.clear()
        self._acked_since_ms = 0
        return handled

    def handled_again(self, handled: Sequence[Handled]) -> None:
        """The group with these settlements was refused: the next group carries them."""
        mailboxes = self._mailbox_store.mailboxes
        for record in handled:
            if record.key in mailboxes:
                self.acked[record.key] = mailboxes[record.key]
                if record.refused:
                    self._refused.setdefault(record.key, []).extend(record.refused)


def _client(connection: Attachment) -> Client:
    return Client(connection.session, connection.device, connection.conn[0].partition("/")[0], connection.kind)
