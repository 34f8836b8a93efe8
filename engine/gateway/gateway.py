"""One edge's state, and the only thing its routes, sockets and links talk to.

    routes  --post, settle, probe, ...----->  Requests, Calls  --records-->  links to shards and schedulers
    sockets --attach, ack, nack, detach---->  Gateway          --records-->
    routes, sockets  <--answers, messages---  Gateway, Calls   <--records--  (`from_shard`, `from_scheduler`)

It keeps connections by number, calls that await an answer, and the slot map that routes both. No message
is kept here: what is in flight lives in the shard's mailbox, what is unsent in the connection's buffer.

Order: records of a shard are handled in arrival order, so what one connection sees is in order. Messages for the same
connection that arrive in one batch leave in one frame. A broadcast for thousands of connections must not keep the others waiting, so
it is written to `fan_out_max` of them per turn of the event loop; whatever else comes for a connection takes it along, in order.

A link session that begins anew (`shard_reset`, `scheduler_reset`) knows nothing: all connections of that shard are
announced again with their cursor, all unanswered calls are repeated under their ids. `Moved` asks for a newer slot map
and routes again when it comes.

One ticker drives everything that depends on time: heartbeats and token expiry (buckets of connections by due time),
stalled clients, deadlines of calls. A timer per connection would cost more than the connection.

Limits: `connections_max` connections, then `Unavailable` before the upgrade; `publish_inflight_max` unanswered records,
then `Overloaded`. Before that, whoever would wait longer than `publish_delay_target_ms` is refused (`engine.publish.request_queue`,
`engine.publish.priority_lanes`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from engine.config import Config
from engine.core.edge.heartbeat import HeartbeatLimits
from engine.core.mailbox.broadcast_log import BodyCache
from engine.core.model.routing import SlotMap
from engine.core.wire import records as wire
from engine.errors import CorruptRecord, Unavailable
from engine.gateway.connection import Connection, PendingNacks
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.pending_calls import PendingCalls
from engine.gateway.ports import EdgeContext, PeerLinks
from engine.gateway.record_router import RecordRouter
from engine.gateway.shard_client import ShardClient
from engine.publish.broadcasts import BroadcastPublisher, BroadcastSink
from engine.publish.request_queue import RequestQueue

log = logging.getLogger(__name__)

TICK_MS: Final = 100
"""Resolution of heartbeats, stalls and deadlines. Ten wake-ups a second cost 0.1 % of a core."""

GOING_AWAY: Final = 1012

_ANSWERS: Final = frozenset(
    (
        wire.Posted,
        wire.Settled,
        wire.Probed,
        wire.Subscribed,
        wire.ProfileIs,
        wire.Explained,
        wire.Traced,
        wire.Followed,
    )
)
Messages = list[tuple[int, int, bytes]]
"""(seq, attempt, body) in sequence order."""


class Gateway:
    """The state of one edge.

    Args:
        config: the engine's settings.
        slots: the slot map as it was read at the start.
        context: time, ids and the name of this incarnation.
        links: carry records to shards and schedulers.
        broadcast_log: broadcasts are appended to it.
        metrics: counted into.
    """

    def __init__(
        self,
        config: Config,
        slots: SlotMap,
        context: EdgeContext,
        links: PeerLinks,
        broadcast_log: BroadcastSink,
        metrics: EdgeMetrics,
    ) -> None:
        self.config = config
        self.incarnation = context.incarnation
        self.wall_ms = wall_ms = context.wall_ms
        self.clock = clock = context.clock
        self.metrics = metrics
        self.heartbeat = HeartbeatLimits(config.heartbeat_ms, config.heartbeat_max_ms, config.pong_timeout_ms, config.pong_misses_max)
        self._links = links
        self._router = router = RecordRouter(config, slots, context, links)
        self.pending_calls = PendingCalls(config.publish_inflight_max, config.publish_timeout_ms, clock, router.route, router.lanes)
        self.pending_calls.know(set(slots.owners))
        self.request_queue = RequestQueue(config, clock, lambda: self.pending_calls.shards_ms, metrics.shed)
        broadcast_publisher = BroadcastPublisher(config, broadcast_log, wall_ms, clock)
        self.shard_client = ShardClient(config, context, self.pending_calls, broadcast_publisher, metrics)

        self.connections: dict[int, Connection] = {}
        self.backlog: set[Connection] = set()  # those with bytes their client has not taken
        self.draining = False
        self._next_id = 1
        self._buckets: dict[int, list[int]] = {}
        self._ticks = clock() // TICK_MS
        self._slots_wanted = 0
        self._homeless: list[int] = []  # connections whose shard said Moved
        self._shelves: dict[int, BodyCache] = {}  # by shard: bodies of broadcasts
        self._held: dict[int, tuple[int, Messages]] = {}  # by connection: shard, and broadcasts that wait for their turn
        self._releasing = False
        self._fresh: list[Connection] = []  # welcomed by the batch that is being handled

    # -- Routing. ----------------------------------------------------------------------------------------------------------
    @property
    def slots(self) -> SlotMap:
        """The newest slot map that was read."""
        return self._router.slots

    def set_slots(self, slots: SlotMap) -> None:
        """A slot map was read. A newer one re-routes connections and whatever waited for it; an older one is ignored."""
        if slots.version <= self.slots.version:
            return
        self._router.slots = slots
        self.pending_calls.know(set(slots.owners))
        for connection in list(self.connections.values()):
            if connection.shard != slots.owner(connection.key):
                self._links.send_shard(connection.shard, wire.Detach(connection.id, 0), True)
                self._announce(connection)
        self._unpark()

    def _unpark(self) -> None:
        self.pending_calls.unpark()
        homeless, self._homeless = self._homeless, []
        for number in homeless:
            connection = self.connections.get(number)
            if connection is not None:
                self._announce(connection)

    # -- Connections. ------------------------------------------------------------------------------------------------------
    def admit(self) -> None:
        """May one more connection begin? To be asked before an upgrade.

        Raises:
            Unavailable: the edge is full, or going away.
        """
        if self.draining or len(self.connections) >= self.config.connections_max:
            raise Unavailable("going away" if self.draining else f"{len(self.connections)} connections are open here")

    def attach(self, connection: Connection) -> None:
        """A connection begins: announce it to its user's shard. Its first `check` is due at once."""
        connection.id = self._next_id
        self._next_id += 1
        self.connections[connection.id] = connection
        self.metrics.connections[wire.TRANSPORTS[connection.kind]] += 1
        self._announce(connection)
        self._schedule(connection, connection.check(self.clock(), self.wall_ms()))

    def detach(self, connection: Connection, code: int) -> None:
        """A connection ended with this close code. Safe to call twice."""
        if connection.ended:
            return
        connection.ended = True
        self.backlog.discard(connection)
        self._held.pop(connection.id, None)
        if self.connections.pop(connection.id, None) is not None:
            self.metrics.connections[wire.TRANSPORTS[connection.kind]] -= 1
            self.metrics.closes[code] += 1
            self._links.send_shard(connection.shard, wire.Detach(connection.id, code), True)

    def _announce(self, connection: Connection) -> None:
        connection.shard = self.slots.owner(connection.key)
        again = connection.welcomed
        record = wire.Attach(
            connection.id,
            connection.key,
            connection.kind,
            connection.epoch if again else connection.cursor.epoch,
            connection.acked if again else connection.cursor.seq,
            connection.name,
            connection.device,
            again,
            connection.sent,
            connection.memberships,
        )
        self._links.send_shard(connection.shard, record, True)
        refusals = connection.refusals
        if refusals is not None:  # before the acknowledgements that cover them
            for nack in refusals.records(connection.id):
                self._links.send_shard(connection.shard, nack, True)
            if refusals.acked > connection.acked:
                self._links.send_shard(connection.shard, wire.Ack(connection.id, refusals.acked), True)
        if again:
            connection.on_announced()

    def written(self, connection: Connection, seq: int) -> None:
        """An SSE stream has written everything up to `seq`, and takes more."""
        self._links.send_shard(connection.shard, wire.Written(connection.id, seq), False)

    def ack(self, connection: Connection, seq: int) -> None:
        """The client has handled everything up to `seq`. The link sends the latest number of each connection."""
        self.metrics.acks += 1
        if seq > connection.acked:
            if seq <= connection.sent:
                if connection.refusals is None:
                    connection.acked = seq
                else:
                    connection.refusals.acked = max(connection.refusals.acked, seq)
            self._links.send_shard(connection.shard, wire.Ack(connection.id, seq), False)

    def ack_ids(self, connection: Connection, ids: list[str]) -> None:
        """The client has handled these messages."""
        self.metrics.acks += 1
        self._links.send_shard(connection.shard, wire.AckIds(connection.id, ids), True)

    def nack(self, connection: Connection, ids: list[str], reason: str) -> None:
        """The client cannot handle these messages. Said again to the shard's next session until it confirms; at most a window of them."""
        refusals = connection.refusals
        if refusals is None:
            refusals = connection.refusals = PendingNacks({}, connection.acked)
        refusals.add(ids, reason, self.config.window)
        self._links.send_shard(connection.shard, wire.Nack(connection.id, ids, reason), True)

    # -- What links bring. -------------------------------------------------------------------------------------------------
    def from_shard(self, index: int, records: Sequence[Any]) -> None:
        """A batch of shard `index`, in order. Messages of one connection are joined until something else comes for it."""
        frames: dict[int, Messages] = {}
        for record in records:
            kind = type(record)
            if kind is wire.Deliver:
                waiting = frames.get(record.conn)
                if waiting is None:
                    frames[record.conn] = record.messages
                elif sum(len(body) for _, _, body in chain(waiting, record.messages)) <= self.config.deliver_bytes_max:
                    waiting.extend(record.messages)
                else:
                    self._deliver(index, record.conn, waiting)
                    frames[record.conn] = record.messages
            elif kind is wire.Shared or kind is wire.DeliverShared:
                self._broadcast(index, record, frames)
            elif kind in _ANSWERS:
                self.pending_calls.answer(record.ref, record)
            elif kind is wire.Moved:
                self._moved(index, record)
            else:
                waiting = frames.pop(record.conn, None)
                if waiting is not None or record.conn in self._held:
                    self._deliver(index, record.conn, waiting or [])
                connection = self.connections.get(record.conn)
                if connection is not None and connection.shard == index:
                    self._control(connection, record)
        self._deliver_all(index, frames)
        if self._held and not self._releasing:
            self._release()

    def _deliver_all(self, index: int, frames: Mapping[int, Messages]) -> None:
        for number, messages in frames.items():
            self._deliver(index, number, messages)
        while self._fresh:
            self._fresh.pop().flush()

    def _broadcast(self, index: int, record: wire.Shared | wire.DeliverShared, frames: dict[int, Messages]) -> None:
        """A broadcast waits for its turn, or rides along with what the same batch has for the connection."""
        shelf = self._shelves.get(index)
        if shelf is None:
            shelf = self._shelves[index] = BodyCache(self.config.shared_bytes_max)
        if isinstance(record, wire.Shared):
            shelf.put(record.pos, record.body)
            return
        try:
            body = shelf[record.pos]
        except KeyError:
            raise CorruptRecord(f"shard {index} delivers the broadcast {record.pos} without its body") from None
        held = self._held
        for number, seq, attempt in record.deliveries:
            waiting = frames.get(number)
            if waiting is not None:
                waiting.append((seq, attempt, body))
            elif number in held:
                held[number][1].append((seq, attempt, body))
            elif number in self.connections:
                held[number] = index, [(seq, attempt, body)]

    def _release(self) -> None:
        """Write broadcasts to the next `fan_out_max` connections; then whatever else the loop has to do comes first."""
        held = self._held
        for number in list(islice(held, self.config.fan_out_max)):
            self._deliver(held[number][0], number, [])
        self._releasing = bool(held)
        if held:
            asyncio.get_running_loop().call_soon(self._release)

    def _deliver(self, index: int, number: int, messages: Messages) -> None:
        if self._held and (held := self._held.pop(number, None)) is not None:
            messages = [*held[1], *messages]
        connection = self.connections.get(number)
        if connection is None or connection.shard != index or not connection.welcomed:
            return
        self.metrics.frames_sent += 1
        self.metrics.messages_sent += len(messages)
        connection.on_messages(messages)
        connection.sent = max(connection.sent, messages[-1][0])

    def _control(self, connection: Connection, record: Any) -> None:
        kind = type(record)
        if kind is wire.Welcome:
            self._welcome(connection, record)
        elif kind is wire.Hangup:
            connection.close(record.code, record.reason)
        elif not connection.welcomed:
            return
        elif kind is wire.Revoke:
            connection.on_revoke(record.ids)
        elif kind is wire.NacksStored:
            connection.confirm(record.ids)
        elif kind is wire.GapRange:
            connection.on_gap(record.first, record.last)
            connection.sent = max(connection.sent, record.last)
        elif kind is wire.Fault:
            connection.on_fault(record.code, record.detail)

    def _welcome(self, connection: Connection, record: wire.Welcome) -> None:
        if not connection.welcomed:
            connection.welcomed = True
            connection.epoch = record.epoch
            connection.acked = connection.sent = max(record.from_seq - 1, 0)
            self._fresh.append(connection)
            connection.on_welcome(record)
        elif record.epoch != connection.epoch:
            # Storage has lost data and numbers begin anew. The client's cursor of the old epoch must get its `gap`.
            connection.close(GOING_AWAY, "the epoch has changed")

    def _moved(self, index: int, record: wire.Moved) -> None:
        self._slots_wanted = max(self._slots_wanted, record.version)
        known = self.slots.version >= record.version
        if record.ref != -1:
            self.pending_calls.moved(record.ref, index, known=known)
        else:
            connection = self.connections.get(record.conn)
            if connection is not None and connection.shard == index:
                if known and self.slots.owner(connection.key) != index:
                    self._announce(connection)
                else:
                    self._homeless.append(record.conn)
        if not known:
            self._links.need_slots(record.version)

    def from_scheduler(self, _index: int, records: Sequence[wire.TimerAnswer]) -> None:
        """A batch of a scheduler's answers."""
        for record in records:
            self.pending_calls.answer(record.ref, record)

    def shard_reset(self, index: int) -> None:
        """A new session with shard `index` begins."""
        self._shelves.pop(index, None)
        self._held = {number: held for number, held in self._held.items() if held[0] != index}
        for connection in list(self.connections.values()):
            if connection.shard == index:
                self._announce(connection)
        self.pending_calls.repeat(index)

    def scheduler_reset(self, index: int) -> None:
        """A new session with scheduler `index` begins."""
        self.pending_calls.repeat(~index)

    # -- Time. -------------------------------------------------------------------------------------------------------------
    def _schedule(self, connection: Connection, due_ms: int) -> None:
        self._buckets.setdefault(max(due_ms // TICK_MS, self._ticks) + 1, []).append(connection.id)

    async def run(self) -> None:
        """The ticker. Runs until cancelled."""
        due_ms = self.clock() + TICK_MS
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.request_queue.tick(self.clock(), self.clock() - due_ms)
            self.tick()
            due_ms = self.clock() + TICK_MS

    def tick(self) -> None:
        """Do what is due by now."""
        now_ms, wall_ms = self.clock(), self.wall_ms()
        while self._ticks < now_ms // TICK_MS:
            self._ticks += 1
            for number in self._buckets.pop(self._ticks, ()):
                connection = self.connections.get(number)
                if connection is not None:
                    due_ms = connection.check(now_ms, wall_ms)
                    if not connection.ended:
                        self._schedule(connection, due_ms)
        for connection in list(self.backlog):
            connection.check_backlog(now_ms)
        self.pending_calls.expire(now_ms)
        if self._slots_wanted > self.slots.version:
            self._links.need_slots(self._slots_wanted)
        self._unpark()

    def stats(self) -> dict[str, Any]:
        """Plain numbers: connections by transport now, requests awaiting an answer now, and counts since the start."""
        return {
            "connections": {transport: self.metrics.connections[transport] for transport in dict.fromkeys(wire.TRANSPORTS)},
            "published": self.metrics.published.total(),
            "refused": self.metrics.refused.total(),
            "awaiting": len(self.pending_calls),
            "delay_ms": round(self.request_queue.delay_ms, 1),
            "shed": dict(self.metrics.shed_requests),
            "backlog": len(self.backlog),
        }

    async def drain(self) -> None:
        """Send every client away with a hint when to come back, and wait for unanswered publishes, `drain_ms` at most."""
        self.draining = True
        for connection in list(self.connections.values()):
            connection.drain(random.randrange(self.config.drain_spread_ms))
        deadline = self.clock() + self.config.drain_ms
        while len(self.pending_calls) and self.clock() < deadline:
            await asyncio.sleep(TICK_MS / 1000)
