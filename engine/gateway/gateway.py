"""The state of one edge: its connections, its unanswered requests, its slot map. Routes, sockets and links use nothing else.

    routes  --post, settle, probe, ...----->  ShardClient, PendingCalls  --records-->  links to shards and schedulers
    sockets --attach, ack, nack, detach---->  Gateway                    --records-->
    routes, sockets  <--answers, messages---  Gateway, PendingCalls      <--records--  (`from_shard`, `from_scheduler`)

No message is kept here: a message in flight is in the shard's mailbox, unsent bytes are in the connection's buffer.

Order: records of a shard are handled in arrival order, so what one connection sees is in order. Messages for the same
connection that arrive in one batch leave in one frame. A broadcast for thousands of connections must not delay the others, so
it is written to `fan_out_max` of them per turn of the event loop; other messages for a connection are written behind it, in order.

A message that comes again on a WebSocket waits until the edge has read what its clients had sent by then, and is dropped when the
acknowledgement was among it, or is on its way to the shard: when thousands reconnect at once, ACKs wait here for longer than the shard.

A new link session (`shard_reset`, `scheduler_reset`) begins without state: all connections of that shard are announced again
with their cursor, all unanswered calls are repeated under their ids. After `Moved` a newer slot map is read, and what it concerns is
routed again.

One ticker drives everything that depends on time: heartbeats and token expiry (buckets of connections by due time),
stalled clients, deadlines of calls. A timer per connection would cost more than the connection. While nobody is waiting for anything it
rests until the next bucket is due, and a call or a connection wakes it.

Limits: `connections_max` connections, then `Unavailable` before the upgrade; `connections_per_s` new ones, then 429 there;
`publish_inflight_max` unanswered records, or `publish_inflight_bytes_max`, then `Overloaded`. `engine.publish` has the table of who
refuses what under load.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from engine.auth.revoked_tokens import RevokedTokens
from engine.auth.tokens import Principal
from engine.auth.topic_permissions import memberships
from engine.config import Config
from engine.core.edge.connection_admission import ConnectionAdmission, NotAdmitted
from engine.core.mailbox.broadcast_log import BodyCache
from engine.core.model.action import Target
from engine.core.model.revocation import Revocation
from engine.core.model.routing import RoutingTable, SlotMap, store_of
from engine.core.model.step import ChannelStep
from engine.core.policy.profile import Profile
from engine.core.wire import client_frames
from engine.core.wire import records as wire
from engine.errors import CorruptRecord, Unavailable
from engine.gateway.connection import Connection, PendingNacks
from engine.gateway.feature_frames import FeatureFrames
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.open_tokens import OpenTokens
from engine.gateway.paced_turns import PacedTurns
from engine.gateway.pending_calls import PendingCalls
from engine.gateway.ports import ConnectionObserver, EdgeContext, PeerLinks, TargetCall
from engine.gateway.record_router import RecordRouter
from engine.gateway.shard_client import ShardClient
from engine.gateway.tenant_quotas import TenantQuotas
from engine.gateway.transient_frames import TransientFrames
from engine.http.problems import RETRY_AFTER_S, Problem, too_many_requests, unavailable, whole_seconds
from engine.publish.broadcasts import BroadcastPublisher
from engine.publish.category_book import PREDEFINED
from engine.publish.drafts import Draft
from engine.publish.request_queue import RequestQueue
from engine.publish.request_trace import RequestTrace
from engine.publish.results import ItemResult
from engine.store.broadcast_stream import BroadcastLog
from engine.store.durability import REASONS
from engine.store.storage_state import StorageState

log = logging.getLogger(__name__)

TICK_MS: Final = 100
"""Resolution of heartbeats, stalls and deadlines while there is something to do. Ten wake-ups a second cost 0.3 % of a core."""

_ROUTE_AGAIN_MS: Final = 10
"""Until a shard is sent again what it did not take although the newest slot map names it: about what it needs to adopt the slot. Doubled
each time until the next map, and after that `TICK_MS`."""

_REST_MS: Final = 1000
"""For as long as nothing is to be done: what is measured is older by as much, at most."""

_SLACK: Final = 30
"""A connection may be looked at later by this part of the time until then, `_REST_MS` at most: a heartbeat of 30 s by a second. So those
of a second share a wake-up."""

_TOGETHER_MAX: Final = 128
"""Connections that do: looking at more takes longer than some milliseconds, in which others wait."""

_NO_CONNECTION: Final = -1
"""In place of a connection's id, for what is refused by a request."""

GOING_AWAY: Final = 1012
TOKEN_REFUSED: Final = 4401  # it has expired, or was revoked
_CLOSED_MAX: Final = 100  # connections closed for a revoked token before others get their turn: some milliseconds

_REVOKED: Final = "the token was revoked"
Messages = list[tuple[int, int, bytes]]
"""(seq, attempt, body) in sequence order."""


def _not_admitted(refused: NotAdmitted) -> Problem:
    what = "this user begins connections too often" if refused.by_user else "more connections begin than this edge admits"
    return too_many_requests(f"{what}: come back after the time that Retry-After gives", whole_seconds(refused.retry_ms))


def _no_digest(_connection: Connection) -> None:
    """Of a gateway whose edge makes no digests."""


RecordAct = Callable[[Principal, str, str, Mapping[str, Any]], Awaitable[None]]
"""(who, a word for the act, the path that was requested, details): records an act that took effect."""


TakeEvent = Callable[[Principal, bytes], Awaitable[dict[str, Any]]]
"""(the bearer of a token, an event in JSON) -> the members of the answer. Raises Problem, Overloaded, Unavailable."""


CallTarget = Callable[[Target, Any], Awaitable[None]]
"""(target, the action): calls it. Raises ActionFailed."""

ArmSteps = Callable[[Sequence[Draft], Sequence[ItemResult], Mapping[str, Sequence[ChannelStep]]], Awaitable[None]]
"""(drafts, their results, steps by category): arms the steps of those that were accepted. Raises Overloaded, Unavailable."""


BeginTrace = Callable[[str, str], RequestTrace]
"""(`traceparent` of a request, "" for none; its tenant) -> the contexts of its items."""

RecordCall = Callable[[TargetCall], None]
"""Records a call of a target, which has ended."""

TimesChanged = Callable[[str, Profile | None], Awaitable[None]]
"""(mailbox key, profile, None: to be read): the zone, or the times of a digest by mail, have changed, or the user's timers were cancelled.
Raises Overloaded, Unavailable."""


async def _no_times(_key: str, _profile: Profile | None) -> None:
    """Of a gateway whose edge sends no digests by mail."""


async def _no_steps(_drafts: Sequence[Draft], _results: Sequence[ItemResult], _steps: Mapping[str, Sequence[ChannelStep]]) -> None:
    """Of a gateway whose edge takes no steps."""


async def _no_event(_owner: Principal, _event: bytes) -> dict[str, Any]:
    """Of a gateway whose edge takes no events."""
    raise unavailable("this edge takes no events", RETRY_AFTER_S)


class Gateway:
    """The state of one edge.

    Args:
        slots: the slot map as it was read at the start.
        context: time, ids and the name of this incarnation.
        links: carry records to shards and schedulers.
        broadcast_log: broadcasts are appended to it.
    """

    def __init__(
        self,
        config: Config,
        slots: RoutingTable,
        context: EdgeContext,
        links: PeerLinks,
        broadcast_log: BroadcastLog,
        metrics: EdgeMetrics,
    ) -> None:
        self.config = config
        self.incarnation = context.incarnation
        self.wall_ms = wall_ms = context.wall_ms
        self.clock = clock = context.clock
        self.metrics = metrics
        self._links = links
        self._stirred = asyncio.Event()  # something is to be done that depends on time
        self._router = router = RecordRouter(config, slots, context, links)
        self.pending_calls = PendingCalls(
            config,
            clock,
            router.routes_of,
            router.lanes,
            self._stirred.set,
        )
        self.pending_calls.add_routes(range(slots.shards))
        self.request_queue = RequestQueue(config, clock, self.pending_calls.shards_ms, metrics.shed)
        broadcast_publisher = BroadcastPublisher(config, broadcast_log, wall_ms, clock)
        self.shard_client = ShardClient(config, context, self.pending_calls, broadcast_publisher, metrics, lambda: router.slots.formats)

        self.transient_frames = TransientFrames(lambda: self.slots, links)
        self.tenant_quotas = TenantQuotas(config, clock)
        self.storage = StorageState()
        metrics.degraded["storage"] = lambda: self.storage.away or REASONS.get(self.storage.durability, "")
        self.category_book = PREDEFINED
        self.record_act: RecordAct | None = None  # None: nobody records what operators do
        self.kept_of_user: dict[str, Callable[[str], AsyncIterator[bytes]]] = {}  # by name: what a feature keeps, rows in JSON
        self.erase_of_user: dict[str, Callable[[str], Awaitable[None]]] = {}  # likewise: erases it; raises StorageUnavailable
        self.channel_callers: dict[str, CallTarget] = {}  # by channel: carries out what is due there
        self.times_changed: TimesChanged = _no_times
        self.arm_steps: ArmSteps = _no_steps  # after messages of categories with steps were accepted
        self.take_event: TakeEvent = _no_event
        self.feature_frames = FeatureFrames(metrics.refused)
        self.returned: Callable[[Connection], None] = _no_digest  # called for a client that wants a digest
        self.observers: Sequence[ConnectionObserver] = ()  # of what connections are sent and acknowledge
        self.begin_trace: BeginTrace | None = None  # None: contexts are handed on as they came
        self.record_call: RecordCall | None = None  # None: nobody records calls of targets
        self.revoked = RevokedTokens()  # a feature adds them
        self.connections: dict[int, Connection] = {}
        self.connections_of: Counter[str] = Counter()  # by tenant; those without one are left out
        self._open_tokens = OpenTokens()
        self.backlog: set[Connection] = set()  # those with bytes their client has not taken
        self.draining = False
        self.frame_requests = 0  # of all connections, unanswered
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds them weakly
        self._next_id = 1
        self._buckets: dict[int, list[int]] = {}
        self._ticks = clock() // TICK_MS
        self._moved_connections: dict[int, None] = {}  # connections without an owner until a newer slot map is read
        self._route_again_ms = _ROUTE_AGAIN_MS  # the next pause
        self._routing_soon = False
        self._body_caches: dict[int, BodyCache] = {}  # by shard: bodies of broadcasts
        self._held_broadcasts: dict[int, tuple[int, Messages]] = {}  # by connection: its shard, and broadcasts that are not written yet
        self._releasing = False
        self._held_retries: dict[int, tuple[int, Messages]] = {}  # by connection: its shard, and messages that it was sent before
        self._connection_admission = ConnectionAdmission(config, clock())
        self.closings = PacedTurns(config.closings_per_s)  # of the sockets of connections whose client has left
        self._detaches = PacedTurns(config.closings_per_s)
        self._just_welcomed: list[Connection] = []  # by the batch that is being handled

    # -- Routing. ----------------------------------------------------------------------------------------------------------
    @property
    def slots(self) -> RoutingTable:
        """Who owns what, by the newest slot maps that were read."""
        return self._router.slots

    def set_slots(self, slot_map: SlotMap) -> None:
        """Take a slot map that was read. A newer one re-routes connections and calls that waited for it; an older one is ignored."""
        if slot_map.version <= self.slots.maps[slot_map.store].version:
            return
        self._router.slots = slots = self.slots.with_map(slot_map)
        self.pending_calls.add_routes(range(slots.shards))
        for connection in list(self.connections.values()):
            if connection.shard != slots.owner(connection.key):
                self._links.send_shard(connection.shard, wire.Detach(connection.id, 0), True)
                self._announce(connection)
        self._route_again()
        self._route_again_ms = _ROUTE_AGAIN_MS

    def _route_soon(self) -> None:
        if self._route_again_ms < TICK_MS and not self._routing_soon:
            self._routing_soon = True
            asyncio.get_running_loop().call_later(self._route_again_ms / 1000, self._route_again)
            self._route_again_ms *= 2

    def _route_again(self) -> None:
        self._routing_soon = False
        self.pending_calls.send_parked()
        moved, self._moved_connections = self._moved_connections, {}
        for number in moved:
            connection = self.connections.get(number)
            if connection is not None:
                self._announce(connection)

    # -- Connections. ------------------------------------------------------------------------------------------------------
    def admit(self, key: str) -> None:
        """Check that a connection of this user (mailbox key) may begin now, and count it. To be called before an upgrade or a stream.

        Raises:
            Unavailable: as `require_capacity`.
            Problem: 429, too many connections begin; `Retry-After` spreads the refused clients over the time that it takes to admit them.
        """
        self.require_capacity()
        refused = self._connection_admission.admit(key, self.clock())
        if refused is not None:
            raise _not_admitted(refused)

    def refuse_unread(self) -> Problem | None:
        """The 429 that any request for a connection gets now, whoever asks; None when it must be read. See `admit`."""
        if self.draining:
            return None
        refused = self._connection_admission.refuse_unread(self.clock())
        return None if refused is None else _not_admitted(refused)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in a task of its own."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_room(self, tenant: str) -> None:
        """Check that the tenant may store more.

        Raises:
            Overloaded: storage is nearly full.
            Problem: 429, the tenant has used its quota up.
        """
        self.storage.check_room()
        self.tenant_quotas.check_bytes(tenant)

    def trace_of(self, header: str, tenant: str) -> RequestTrace | None:
        """The contexts of the items of a request with this `traceparent`; None where nothing is handed on but what items give."""
        if self.begin_trace is not None:
            return self.begin_trace(header, tenant)
        return RequestTrace(header) if header else None

    def require_capacity(self) -> None:
        """Check that one more connection may be open. Enough for a poll: it ends with its answer and costs as a request.

        Raises:
            Unavailable: `connections_max` are open, or the edge drains.
        """
        if self.draining:
            raise Unavailable("going away")
        if len(self.connections) >= self.config.connections_max:
            raise Unavailable(f"{len(self.connections)} connections are open here")

    def attach(self, connection: Connection) -> None:
        """Add a connection and announce it to its user's shard. Its first `check` is called at once."""
        connection.since_ms = self.wall_ms()
        connection.id = self._next_id
        self._next_id += 1
        self.connections[connection.id] = connection
        self.connections_of[connection.owner.tenant] += 1
        self._open_tokens.add(connection)
        self.metrics.connections[wire.TRANSPORTS[connection.kind]] += 1
        self._announce(connection)
        if self.revoked.covers(connection.owner):  # since the request was authenticated
            connection.close(TOKEN_REFUSED, _REVOKED)
        self._schedule(connection, connection.check(self.clock(), connection.since_ms))

    async def close_revoked(self, revocations: Iterable[Revocation]) -> None:
        """Close the connections whose token is covered by these, which are in force. Those that attach meanwhile are checked then."""
        named = (connection for revocation in revocations for connection in self._open_tokens.of(revocation.name))
        for number, connection in enumerate(named, 1):
            if not connection.ended and self.revoked.covers(connection.owner):
                connection.close(TOKEN_REFUSED, _REVOKED)
            if number % _CLOSED_MAX == 0:
                await asyncio.sleep(0)

    def detach(self, connection: Connection, code: int) -> None:
        """Remove a connection that ended with this close code. Idempotent."""
        if connection.ended:
            return
        connection.ended = True
        for observer in self.observers:
            observer.ended(connection.id)
        self.backlog.discard(connection)
        self._held_broadcasts.pop(connection.id, None)
        self._held_retries.pop(connection.id, None)
        if self.connections.pop(connection.id, None) is not None:
            self._open_tokens.discard(connection)
            tenant = connection.owner.tenant
            self.connections_of[tenant] -= 1
            if not self.connections_of[tenant]:
                del self.connections_of[tenant]
            self.metrics.connections[wire.TRANSPORTS[connection.kind]] -= 1
            self.metrics.closed(code)
            send = partial(self._links.send_shard, connection.shard, wire.Detach(connection.id, code), True)
            if self._detaches.enter(send):
                send()

    def _announce(self, connection: Connection) -> None:
        connection.shard = self.slots.owner(connection.key)
        self._moved_connections.pop(connection.id, None)
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
            connection.wants_counts,
            True,
            connection.since_ms,
        )
        self._links.send_shard(connection.shard, record, True)
        pending_nacks = connection.pending_nacks
        if pending_nacks is not None:  # before the acknowledgements that cover them
            for nack in pending_nacks.records(connection.id):
                self._links.send_shard(connection.shard, nack, True)
            if pending_nacks.acked > connection.acked:
                self._links.send_shard(connection.shard, wire.Ack(connection.id, pending_nacks.acked), True)
        if again:
            self._held_broadcasts.pop(connection.id, None)  # the new session sends again what is not written
            self._held_retries.pop(connection.id, None)
            connection.on_announced()

    def renew(self, connection: Connection, owner: Principal) -> None:
        """The client has renewed its token, for the same user and maybe other topics. A new link session is announced them."""
        self._open_tokens.discard(connection)
        connection.owner = owner
        self._open_tokens.add(connection)
        connection.expires_ms = int(owner.expires_s * 1000)
        left_ms = connection.expires_ms - self.wall_ms()
        if left_ms < self.config.heartbeat_ms:  # it might be looked at later
            self._schedule(connection, self.clock() + left_ms, once=True)
        members = memberships(owner)
        if members != connection.memberships:
            connection.memberships = members
            self._links.send_shard(connection.shard, wire.Rejoin(connection.id, members), True)

    def written(self, connection: Connection, seq: int) -> None:
        """An SSE stream has written everything up to `seq`, and takes more."""
        self._links.send_shard(connection.shard, wire.Written(connection.id, seq), False)

    def ack(self, connection: Connection, seq: int, client_ms: int = 0) -> None:
        """The client has handled everything up to `seq`, at this time of its clock. The link sends the latest one of each connection."""
        self.metrics.acks += 1
        for observer in self.observers:
            observer.acknowledged(connection.id, seq)
        pending_nacks = connection.pending_nacks
        if seq > (connection.acked if pending_nacks is None else pending_nacks.acked):
            was_sent = seq <= connection.sent
            if was_sent:
                if pending_nacks is None:
                    connection.acked = seq
                else:
                    pending_nacks.acked = seq
            # The shard may take no other number: in place of one that waits it would be lost with it, and that one is not sent again.
            self._links.send_shard(connection.shard, wire.Ack(connection.id, seq, client_ms), not was_sent)

    def ack_ids(self, connection: Connection, ids: list[str], client_ms: int = 0) -> None:
        """The client has handled these messages; `client_ms` as in `ack`."""
        self.metrics.acks += 1
        for observer in self.observers:
            observer.settled(connection.id, ids)
        self._links.send_shard(connection.shard, wire.AckIds(connection.id, ids, client_ms), True)

    def nack(self, connection: Connection, ids: list[str], reason: str) -> None:
        """The client cannot handle these messages. Repeated to the shard's next session until it confirms; at most a window of them."""
        pending_nacks = connection.pending_nacks
        if pending_nacks is None:
            pending_nacks = connection.pending_nacks = PendingNacks({}, connection.acked)
        pending_nacks.add(ids, reason, self.config.window)
        for observer in self.observers:
            observer.settled(connection.id, ids, reason or "refused")
        self._links.send_shard(connection.shard, wire.Nack(connection.id, ids, reason), True)

    async def refuse(self, key: str, ids: list[str], reason: str) -> None:
        """A client without a connection that takes frames cannot handle these messages. Raises as `ShardClient.refuse`."""
        for observer in self.observers:
            observer.settled(_NO_CONNECTION, ids, reason or "refused")
        await self.shard_client.refuse(key, ids, reason)

    # -- Records from links. -----------------------------------------------------------------------------------------------
    def from_shard(self, index: int, records: Sequence[Any]) -> None:
        """Handle a batch of shard `index`, in order. Messages of one connection are joined until another record for it follows."""
        frames: dict[int, Messages] = {}
        answers: list[Any] = []
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
            elif kind in wire.ANSWERS:
                answers.append(record)
            elif kind is wire.Moved or kind is wire.Shown:
                self._unordered(index, record)
            else:
                waiting = frames.pop(record.conn, None)
                if waiting is not None or record.conn in self._held_broadcasts:
                    self._deliver(index, record.conn, waiting or [])
                if self._held_retries and record.conn in self._held_retries:
                    self._release_retry(record.conn)  # it may be about them
                connection = self.connections.get(record.conn)
                if connection is not None and connection.shard == index:
                    self._control(connection, record)
        self.pending_calls.answer(answers, index)
        self._deliver_all(index, frames)
        if self._held_broadcasts and not self._releasing:
            self._release()

    def _deliver_all(self, index: int, frames: Mapping[int, Messages]) -> None:
        for number, messages in frames.items():
            self._deliver(index, number, messages)
        while self._just_welcomed:
            self._just_welcomed.pop().flush()

    def _unordered(self, index: int, record: wire.Moved | wire.Shown) -> None:
        """Handle a record that needs no order among the messages of a connection."""
        if isinstance(record, wire.Moved):
            self._moved(index, record)
        else:
            self._shown(index, record)

    def _shown(self, index: int, record: wire.Shown) -> None:
        if record.answers:
            self.transient_frames.answered(index)
        for number, frame in record.frames:
            connection = self.connections.get(number)
            if connection is not None and connection.shard == index and connection.welcomed:
                connection.on_transient(record.kind, frame)

    def _broadcast(self, index: int, record: wire.Shared | wire.DeliverShared, frames: dict[int, Messages]) -> None:
        """Hold a broadcast for `_release`, or append it to the messages that the same batch has for the connection."""
        body_cache = self._body_caches.get(index)
        if body_cache is None:
            body_cache = self._body_caches[index] = BodyCache(self.config.shared_bytes_max)
        if isinstance(record, wire.Shared):
            body_cache.put(record.pos, record.body)
            return
        try:
            body = body_cache[record.pos]
        except KeyError:
            raise CorruptRecord(f"shard {index} delivers the broadcast {record.pos} without its body") from None
        held = self._held_broadcasts
        for number, seq, attempt in record.deliveries:
            waiting = frames.get(number)
            if waiting is not None:
                waiting.append((seq, attempt, body))
            elif number in held and held[number][0] == index:
                held[number][1].append((seq, attempt, body))
            elif (connection := self.connections.get(number)) is not None and connection.shard == index:
                held[number] = index, [(seq, attempt, body)]

    def _release(self) -> None:
        """Write held broadcasts to the next `fan_out_max` connections, and continue in the next turn of the event loop."""
        held = self._held_broadcasts
        for number in list(islice(held, self.config.fan_out_max)):
            self._deliver(held[number][0], number, [])
        self._releasing = bool(held)
        if held:
            asyncio.get_running_loop().call_soon(self._release)

    def _deliver(self, index: int, number: int, messages: Messages) -> None:
        if self._held_broadcasts and (held := self._held_broadcasts.pop(number, None)) is not None:
            messages = [*held[1], *messages]
        connection = self.connections.get(number)
        if connection is None or connection.shard != index or not connection.welcomed:
            return
        sent, newest = connection.sent, messages[-1][0]
        if messages[0][0] <= sent or newest <= sent:
            messages = self._once_more(index, connection, messages)
            if not messages:
                return
            newest = max(seq for seq, _, _ in messages)
        self._write(connection, messages)
        if newest > sent:
            connection.sent = newest

    def _once_more(self, index: int, connection: Connection, messages: Messages) -> Messages:
        """Those that are written now, of messages of which the connection was sent some before.

        A plain event stream repeats nothing: these are of a time in which the shard had the user before, and came late.
        """
        sent = connection.sent
        if connection.kind == wire.SSE:
            return [message for message in messages if message[0] > sent]
        if connection.kind != wire.WEBSOCKET:
            return messages
        again = [message for message in messages if message[0] <= sent and message[1] > 1]
        if again:
            self._hold_retries(index, connection.id, again)
            return [message for message in messages if message[0] > sent or message[1] == 1]
        return messages

    def _write(self, connection: Connection, messages: Messages) -> None:
        self.metrics.frames_sent += 1
        self.metrics.messages_sent += len(messages)
        if self.observers:
            self._write_observed(connection, messages)
        else:
            connection.on_messages(messages)

    def _write_observed(self, connection: Connection, messages: Messages) -> None:
        begun_ns = time.time_ns()
        connection.on_messages(messages)
        for observer in self.observers:
            observer.sent(connection.id, connection.kind, messages, begun_ns)

    def _hold_retries(self, index: int, number: int, messages: Messages) -> None:
        """Hold them for two turns of the event loop: between these it reads from every client that has sent something."""
        held = self._held_retries
        if not held:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._release_retries)
        if number in held:
            held[number][1].extend(messages)
        else:
            held[number] = index, messages

    def _release_retries(self) -> None:
        for number in list(self._held_retries):
            self._release_retry(number)

    def _release_retry(self, number: int) -> None:
        """Write what was held for the connection, without what its client has acknowledged."""
        index, messages = self._held_retries.pop(number)
        connection = self.connections.get(number)
        if connection is not None and connection.shard == index:
            again = [message for message in messages if message[0] > connection.acked]
            self.metrics.retries_spared += len(messages) - len(again)
            if again:
                self._write(connection, again)

    def _control(self, connection: Connection, record: Any) -> None:
        kind = type(record)
        if kind is wire.Welcome:
            self._welcome(connection, record)
        elif kind is wire.Hangup:
            connection.close(record.code, record.reason)
        elif not connection.welcomed:
            return
        elif kind is wire.Revoke:
            connection.write_frame("revoke", client_frames.revoke(record.ids))
        elif kind is wire.DeliverEarly:
            self.metrics.frames_sent += 1
            self.metrics.messages_sent += len(record.messages)
            connection.on_early(record.messages)
        elif kind is wire.Counts:
            connection.write_frame("counts", client_frames.counts(record.unread, record.unseen, record.revision))
        elif kind is wire.NacksStored:
            connection.confirm_nacks(record.ids)
        elif kind is wire.GapRange:
            connection.on_gap(record.first, record.last)
            connection.sent = max(connection.sent, record.last)
        elif kind is wire.Fault:
            connection.write_frame("error", client_frames.error(record.code, record.detail))

    def _welcome(self, connection: Connection, record: wire.Welcome) -> None:
        if not connection.welcomed:
            connection.welcomed = True
            connection.epoch = record.epoch
            connection.acked = connection.sent = max(record.from_seq - 1, 0)
            self._just_welcomed.append(connection)
            connection.on_welcome(record)
            if connection.wants_digest and record.from_seq <= record.head:
                self.returned(connection)
        elif record.epoch != connection.epoch:
            # Storage has lost data, and sequence numbers begin anew. The client reconnects with its old cursor and is sent `gap`.
            connection.close(GOING_AWAY, "the epoch has changed")

    def _moved(self, route: int, record: wire.Moved) -> None:
        store = store_of(route if route >= 0 else ~route, len(self.slots.maps))
        known = self.slots.maps[store].version >= record.version
        if record.ref != -1:
            self.pending_calls.moved(record.ref, route, known=known)
        else:
            connection = self.connections.get(record.conn)
            if connection is not None and connection.shard == route:
                if known and self.slots.owner(connection.key) != route:
                    self._announce(connection)
                else:
                    self._moved_connections[record.conn] = None
        if known:
            self._route_soon()
        else:
            self._links.need_slots(store, record.version)

    def from_scheduler(self, index: int, records: Sequence[wire.TimerAnswer | wire.Moved]) -> None:
        """Handle a batch of a scheduler's answers."""
        answers = []
        for record in records:
            if isinstance(record, wire.Moved):
                self._moved(~index, record)
            else:
                answers.append(record)
        self.pending_calls.answer(answers, ~index)

    def shard_reset(self, index: int) -> None:
        """A new session with shard `index` begins."""
        self._body_caches.pop(index, None)
        self.transient_frames.answered(index)
        for connection in list(self.connections.values()):
            if connection.shard == index:
                self._announce(connection)
        self.pending_calls.repeat(index)

    def peer_gone(self, route: int) -> None:
        """The slot map has nothing for this shard or scheduler any more: what it has not answered is routed again."""
        self._body_caches.pop(route, None)
        self.pending_calls.remove_route(route)

    def shard_answers(self, index: int) -> None:
        """Shard `index` has answered for the first time in a session."""
        self.pending_calls.session_works(index)

    def scheduler_reset(self, index: int) -> None:
        """A new session with scheduler `index` begins."""
        self.pending_calls.repeat(~index)

    # -- Time. -------------------------------------------------------------------------------------------------------------
    def _schedule(self, connection: Connection, due_ms: int, *, once: bool = False) -> None:
        """Look at the connection at this time, or a little later together with others; `once`: beside the looks that follow each other."""
        own = max(due_ms // TICK_MS, self._ticks) + 1
        step = max(min((own - self._ticks) // _SLACK, _REST_MS // TICK_MS), 1)
        shared = -(-own // step) * step
        tick = shared if len(self._buckets.get(shared, ())) < _TOGETHER_MAX else own
        self._buckets.setdefault(tick, []).append(~connection.id if once else connection.id)
        self._stirred.set()

    async def run(self) -> None:
        """The ticker. Runs until cancelled."""
        while True:
            if self._calm():
                await self._rest()
            else:
                await self._tick_later()

    def _timed_tick(self, due_ms: int) -> None:
        now_ms = self.clock()
        self.request_queue.tick(now_ms, now_ms - due_ms)
        served = self.pending_calls.begun + self.metrics.messages_sent
        self._connection_admission.look(served, self.request_queue.queued_ms, now_ms)
        self.tick()

    def _calm(self) -> bool:
        """Whether nothing happens before the next connection is due, unless something comes."""
        return not (len(self.pending_calls) or self.backlog or self._moved_connections) and self.request_queue.calm

    async def _rest(self) -> None:
        """Sleep until something comes, a connection is due, or the next whole `_REST_MS`."""
        now_ms = self.clock()
        end_ms = now_ms - now_ms % _REST_MS + _REST_MS
        due_ms = min(min(self._buckets, default=end_ms) * TICK_MS, end_ms)
        self._stirred.clear()
        try:
            async with asyncio.timeout(max(due_ms - now_ms, 0) / 1000):
                await self._stirred.wait()
        except TimeoutError:
            self._timed_tick(due_ms)
        else:
            await self._tick_later()

    async def _tick_later(self) -> None:
        due_ms = self.clock() + TICK_MS
        await asyncio.sleep(TICK_MS / 1000)
        self._timed_tick(due_ms)

    def tick(self) -> None:
        """Check connections that are due, stalled clients, and deadlines of calls."""
        now_ms, wall_ms = self.clock(), self.wall_ms()
        while self._ticks < now_ms // TICK_MS:
            self._ticks += 1
            for number in self._buckets.pop(self._ticks, ()):
                connection = self.connections.get(max(number, ~number))
                if connection is not None:
                    due_ms = connection.check(now_ms, wall_ms)
                    if number >= 0 and not connection.ended:
                        self._schedule(connection, due_ms)
        if self.backlog:
            self._check_backlog(now_ms)
        self.pending_calls.expire(now_ms)
        self.metrics.breakers = self.pending_calls.breaker_states
        self._route_again()

    def _check_backlog(self, now_ms: int) -> None:
        """Close stalled clients. Where what waits for the others is too much together, close those for whom the most does."""
        unsent = {connection: connection.check_backlog(now_ms) for connection in list(self.backlog)}
        excess = sum(unsent.values()) - self.config.send_buffers_bytes_max
        while excess > 0:
            most = max(unsent, key=unsent.__getitem__)
            excess -= unsent.pop(most)
            most.too_slow()

    def stats(self) -> dict[str, Any]:
        """Plain numbers: connections by transport now, requests awaiting an answer now, and counts since the start."""
        return {
            "connections": self.metrics.connections_now(),
            "published": self.metrics.published_count,
            "refused": self.metrics.refused.total(),
            "queued": self.request_queue.waiting,
            "awaiting": len(self.pending_calls),
            "delay_ms": round(self.request_queue.queued_ms + self.pending_calls.backlog_ms, 1),
            "shed": dict(self.metrics.shed_requests),
            "backlog": len(self.backlog),
            "degraded": self.metrics.reasons(),
            "figures": self.metrics.figures(),
            **self.metrics.latencies(),
        }

    async def hand_over(self) -> None:
        """Close every connection, evenly over `drain_spread_ms`, so that its client connects to another edge; requests are still answered.

        Returns when no call is unanswered, `drain_ms` after the last connection at the latest.
        """
        self.draining = True
        leaving = list(self.connections.values())
        end_ms = self.clock() + self.config.drain_spread_ms
        while leaving:
            turns = max((end_ms - self.clock()) // TICK_MS, 1)
            for connection in leaving[: -(-len(leaving) // turns)]:
                if not connection.ended:
                    connection.drain(0)
            del leaving[: -(-len(leaving) // turns)]
            await asyncio.sleep(TICK_MS / 1000)
        await self._answered()

    async def release(self, count: int) -> None:
        """Send the clients of the `count` oldest connections elsewhere, `connection_moves_per_s`. A poll ends by itself soon enough."""
        leaving = deque(islice((connection for connection in self.connections.values() if connection.kind != wire.POLL), count))
        begun_ms, released = self.clock(), 0
        while leaving and not self.draining:
            released_max = (self.clock() - begun_ms) * self.config.connection_moves_per_s // 1000
            while leaving and released <= released_max:
                connection = leaving.popleft()
                if not connection.ended:
                    connection.drain(0)
                    released += 1
            await asyncio.sleep(TICK_MS / 1000)

    async def drain(self) -> None:
        """Close every connection with a hint when to come back, and wait for unanswered calls, `drain_ms` at most."""
        self.draining = True
        for connection in list(self.connections.values()):
            connection.drain(random.randrange(self.config.drain_spread_ms))
        await self._answered()

    async def _answered(self) -> None:
        deadline = self.clock() + self.config.drain_ms
        while len(self.pending_calls) and self.clock() < deadline:
            await asyncio.sleep(TICK_MS / 1000)
