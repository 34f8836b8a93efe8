"""The shard actor: a thin shell that carries bytes between ShardCore, Redis and the links.

Tasks of one shard, all in one event loop, so that the core is never entered twice; those with a module are in `engine.actors.shard_tasks`:
    commit           appends one group at a time to the journal; the next holds all that arrived meanwhile
    pressure         measures it ten times a second, sends held messages, evicts mailboxes
    storage_reads    pages and stream ranges that the core requests; what edges ask for of inboxes
    shared_streams   what all shards share: actions of rules, broadcasts that are due, dead letters, session events
    checkpoints      dirty mailboxes every few seconds, users that went offline at once; then the journal is trimmed
    user_erasure     deletes erased users from storage
    storage_sweep    expired messages of offline users, users who are gone, expired broadcasts; what tenants have
    scheduler_links  a caller per scheduler; for the edges there is one server (`engine.actors.link`)
    outcomes         appends what has become of messages to the stream of the history, where there is one
    follow           reads the broadcast log (`engine.actors.broadcast_follower`)
    slots            follows the slot map, hands slots over and adopts them (`engine.actors.slot_mover`)

Start, also after a crash: take a new epoch (older incarnations can no longer write), read broadcasts, pages and journal, replay them
through the core, then answer. Loss of the epoch ends the process: another process is the shard now. If storage has lost confirmed
data, the shard first restores it from memory (`engine.store.restore`), then ends too.

    this shard dies ...                      its successor finds, and the effect
    before an append                         nothing: publishers repeat under their ids
    after it, before its answer              the group in the journal: replayed; a repeat gets the first number
    after a delivery, its ACK not journalled the message pending: delivered again under the same number
    between spill and trim of a checkpoint   a longer journal than needed: replay skips what the pages cover
    while a nack is on its way to the dead   the message pending, also when later ones were acknowledged: the edge or the client
    letters                                  repeats the nack, or the message comes again; at most a second copy among the dead letters
    after a superseding message              the older number gone, the newer pending: a gap, then the newer
    in the middle of an erasure              an `Erased` record or nothing: replay erases again, but for what came since, and the edge
                                             repeats the request
    while an older incarnation still runs    its own newer epoch on shard and slots: every write of the older one is rejected, which ends it

A Redis master that dies between the steps of a checkpoint may leave a replica without the pages: the journal is trimmed only where the
pages are, so the checkpoint is written again. `presence`, `fired_timers` and `poison` have their own crash points.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from redis.asyncio import Redis

from engine.actors.actor_process import REAL, USERS_RETRY_S, ProcessContext, Server
from engine.actors.broadcast_follower import BroadcastFollower
from engine.actors.incarnation import Incarnation
from engine.actors.link import LinkServer
from engine.actors.recovery import Recovery
from engine.actors.shard_features import FEATURES
from engine.actors.shard_tasks.checkpoints import Checkpoints
from engine.actors.shard_tasks.scheduler_links import SchedulerLinks
from engine.actors.shard_tasks.shared_streams import SharedStreams
from engine.actors.shard_tasks.storage_reads import StorageReads
from engine.actors.shard_tasks.storage_sweep import StorageSweep
from engine.actors.shard_tasks.user_erasure import UserErasure
from engine.actors.slot_mover import SlotMover
from engine.config import Config
from engine.core.commit.group import Group
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.stored_formats import Layouts
from engine.core.model.members import message_bytes_max
from engine.core.model.routing import SlotMap
from engine.core.shard.poison import RecordFailed, fingerprint, refused_after
from engine.core.shard.shard import ShardCore
from engine.core.shard.slow_connections import SlowConnection, slow_connections, slowest
from engine.core.wire import records as wire
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog
from engine.store.external_streams import Inherited, forget_handed, read_inherited
from engine.store.journal import RECORD_ORIGIN, Journal
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.lua import Replicas
from engine.store.offline_streams import OfflineStreams
from engine.store.outcome_stream import OutcomeWriter
from engine.store.pages import Pages
from engine.store.restore import restore_storage
from engine.store.sealed_config import SealedConfig
from engine.store.shard_feature import ShardFeature, ShardObserver, ShardPorts, judging
from engine.store.slot_map import require_slot_map
from engine.store.storage_calls import StorageCalls
from engine.store.stores import own_and_first

log = logging.getLogger(__name__)

_LOOKED_MAX = 2000
"""Connections looked at in one go for slow ones: 0.3 ms, 3 ms when all of them are."""

_LOSSES = 5
"""A shard ends when storage has lost so many times what it was putting back."""

_QUARANTINE_S = 2.0
"""Seconds a failed shard waits for the write of the quarantine entry before it ends without one."""


class Shard(Server):
    """One shard. Its name, index and configuration are the same in every incarnation."""

    role: ClassVar[str] = "shard"

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._commit_wanted = asyncio.Event()
        self._stirred = asyncio.Event()  # something has happened since the last tick
        self._acks_scheduled = False
        self._client: Redis  # of the store that has the shard's users
        self._first: Redis  # of the first store, which has what all share
        self._core: ShardCore
        self._outcomes: OutcomeWriter | None = None
        self._features: Sequence[ShardFeature] = ()
        self._observers: Sequence[ShardObserver] = ()
        self._failure: asyncio.Future[None]
        self._incarnation: Incarnation
        self._journal: Journal
        self._pages: Pages
        self._offline: OfflineStreams
        self._layouts: Layouts
        self._recovery: Recovery
        self._mover: SlotMover
        self._links: LinkServer
        self._schedulers: SchedulerLinks
        self._reads: StorageReads
        self._shared: SharedStreams
        self._checkpoints: Checkpoints
        self._erasure: UserErasure
        self._sweep: StorageSweep

    # -- what other actors call ---------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Return gauges and counters by name, from memory; only the vitals until the shard is ready."""
        base = self._vitals()
        if not self._ready.is_set():
            return base
        return {
            **base,
            "epoch": self._journal.epoch,
            "slots": self._mover.served,
            "slots_version": self._mover.stored.version,
            "quarantined": self._recovery.quarantined,
            "links": self._schedulers.carriers(),
            **self._core.stats(self._now_ms()),
            **{name: count for feature in self._features if feature.counts is not None for name, count in feature.counts().items()},
        }

    async def slot_loads(self, proof: bytes = b"") -> dict[int, float]:
        """Messages per second of each slot that gets any (`engine.core.shard.slot_loads`)."""
        self._lock.check("slot_loads", proof)
        return self._core.slot_loads.per_s(self._now_ms()) if self._ready.is_set() else {}

    async def slow_clients(self, count: int, proof: bytes = b"") -> Sequence[SlowConnection]:
        """The `count` slowest connections, the worst first (`engine.core.shard.slow_connections`). Looks at some thousand at a time."""
        self._lock.check("slow_clients", proof)
        attached = self._core.connections.attached() if self._ready.is_set() else []
        found: Sequence[SlowConnection] = ()
        for begin in range(0, len(attached), _LOOKED_MAX):
            some = slow_connections(attached[begin : begin + _LOOKED_MAX], self._now_ms(), self._config.slow_client_ms)
            found = slowest([*found, *some], count)
            await asyncio.sleep(0)
        return found

    async def hand_over(self, slots: Sequence[int], to: int, proof: bytes = b"") -> int:
        """Hand these slots over to another shard, as far as they are this one's; returns the version of the slot map that says so.

        Their users are served again when that shard has adopted them. Repeatable; see `engine.actors.slot_mover`.
        """
        self._lock.check("hand_over", proof)
        await self._started()
        return await self._mover.hand_over(slots, to)

    async def adopt(self, version: int, proof: bytes = b"") -> None:
        """Returns when this shard serves what is its own by a slot map of at least this version."""
        self._lock.check("adopt", proof)
        await self._started()
        await self._mover.adopt(version)

    async def drain(self, proof: bytes = b"") -> None:
        """Write a full checkpoint, so that the next start has nothing to replay. No effect until the shard is ready."""
        self._lock.check("drain", proof)
        if self._ready.is_set():
            with contextlib.suppress(Fenced):  # a successor has it all; the next checkpoint ends this process
                await self._checkpoints.write(full=True)
            if self._outcomes is not None:
                await self._outcomes.flush()
            for feature in self._features:
                if feature.drain is not None:
                    await feature.drain()

    # -- start --------------------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        tasks = [
            self._commit_loop(),
            self._pressure_loop(),
            self._watch_callbacks(),
            self._reads.run(),
            self._reads.run_inboxes(),
            self._reads.run_ahead(),
            self._shared.run(),
            self._shared.run_session_events(),
            self._checkpoints.run(),
            self._checkpoints.run_spills(),
            self._erasure.run(),
            self._sweep.run(),
            self._sweep.run_ids(),
            self._sweep.run_tenants(),
            self._follower.run(self._flush),
            self._mover.run(),
        ]
        if self._outcomes is not None:
            tasks.append(self._outcomes.run())
        return [self._until_data_is_lost(tasks)]

    async def _until_data_is_lost(self, tasks: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run the tasks until one fails, which ends the process.

        When storage has lost data, it is first restored from memory; when a record failed, the record is first quarantined.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._schedulers.begin(group)
                for task in tasks:
                    group.create_task(task)
        except* DataLost as lost:
            log.critical("shard %d puts back what it holds: %s", self._index, lost.exceptions[0])
            self._ready.clear()  # no new input meanwhile
            await self._put_back()
            raise
        except* RecordFailed as failed:
            for error in _leaves(failed):
                await self._quarantine(error)
            raise

    async def _put_back(self) -> None:
        """Restore storage from memory, again where it loses that too. Raises DataLost when it loses it each time, and Fenced."""
        core, slot_map, config = self._core, self._mover.stored, self._config
        sizes = config.commit_bytes_max, self._now_ms() // 1000, config.redis_replicas_timeout_ms
        losses = 0
        while True:
            try:
                await self._retry_storage(lambda: restore_storage(self._client, self._journal, core, slot_map, *sizes))
                return
            except DataLost as lost:
                losses += 1
                if losses == _LOSSES:
                    raise
                log.critical("shard %d puts it back once more: %s", self._index, lost)

    async def _quarantine(self, error: RecordFailed) -> None:
        """Store an entry by which the next incarnations recognise the record; if storage does not answer, only log that."""
        log.critical("shard %d ends: %s failed: %r", self._index, error, error.__cause__)
        where = f"{RECORD_ORIGIN}{fingerprint(error.record)}"
        try:
            async with asyncio.timeout(_QUARANTINE_S):
                await self._journal.quarantine(where, wire.encode([error.record]), self._config.quarantine_max)
                await self._incarnation.end()
        except (StorageUnavailable, TimeoutError) as failure:
            log.error("shard %d: the record is not in quarantine: %r", self._index, failure)

    async def _recover(self) -> str:
        """Fence older incarnations and rebuild the core from pages and journal."""
        self._failure = asyncio.get_running_loop().create_future()
        self._client, self._first = own_and_first(self._context.connect, self._config, self._index)
        client = self._client
        ports = ShardPorts(self._config, self._credentials.name, self._first)
        self._features = [on_shard(ports) for on_shard in FEATURES]
        self._observers = [feature.observer for feature in self._features if feature.observer is not None]
        broadcasts = BroadcastLog(self._context.connect(self._config), self._config)
        self._journal = Journal(client, self._index, self._config.idempotency_caller_s * 1000, Replicas.wanted(self._config))
        config = self._config
        stream_max = config.offline_max + config.inbox_max + config.inbox_pinned_max
        self._layouts = layouts = Layouts(judging(self._features).judge_kinds)
        loss_detector = self._journal.loss_detector
        self._pages = Pages(client, loss_detector, layouts, stream_max, config.offline_bytes_max, message_bytes_max(config))
        self._offline = OfflineStreams(client, loss_detector, layouts, InboxLimits.of(self._config))
        self._links = LinkServer(
            wire.to_shard,
            self._config,
            on_open=self._on_edge_open,
            on_records=self._on_edge_records,
            on_close=self._on_edge_close,
            context=self._context,
        )
        self._incarnation = Incarnation(self._credentials.name, client)
        await self._retry_storage(self._incarnation.begin)
        slot_map, data_epoch = await self._retry_storage(self._take_over)
        inherited = await self._retry_storage(lambda: self._rebuild(slot_map, data_epoch, broadcasts))
        await self._retry_storage(lambda: forget_handed(client, self._index, inherited))
        if (outcomes := self._core.output.outcomes) is not None:
            source = f"{self._credentials.name}/{self._journal.epoch}"
            self._outcomes = OutcomeWriter(self._first, self._config, source, outcomes)
        self._prepare(slot_map)
        return f"epoch {self._journal.epoch}, data epoch {self._core.data_epoch}"

    def _prepare(self, slot_map: SlotMap) -> None:
        """Make what the tasks are of. They begin later."""
        config, client, core, flush, now_ms = self._config, self._client, self._core, self._flush, self._now_ms
        journal, pages, offline, follower = self._journal, self._pages, self._offline, self._follower
        self._recovery.reach_log = follower.reach
        features = self._features
        self._schedulers = SchedulerLinks(
            config,
            self._credentials,
            self._context,
            core,
            self._links.budget,
            slot_map=slot_map,
            feed=self._feed,
            look=self._look,
            now_ms=now_ms,
            observers=self._observers,
        )
        self._reads = StorageReads(core, journal, offline, self._recovery, follower, self._links, flush=flush, now_ms=now_ms)
        self._shared = SharedStreams(config, client, self._first, core, follower, features, flush=flush, now_ms=now_ms)
        self._checkpoints = Checkpoints(config, core, journal, pages, self._incarnation, flush=flush, now_ms=now_ms)
        self._erasure = UserErasure(client, self._first, core, self._checkpoints, self._outcomes, flush)
        self._sweep = StorageSweep(
            config, client, core, offline, follower, connect=self._context.connect, retry=self._retry_storage, flush=flush, now_ms=now_ms
        )
        self._mover = SlotMover(
            client,
            slot_map,
            core,
            (journal, self._recovery),
            self._incarnation,
            retry=self._retry_storage,
            checkpoints=self._checkpoints,
            flush=flush,
            on_map=self._schedulers.follow,
            now_ms=now_ms,
        )

    def _look(self) -> None:
        self._mover.look()

    async def _rebuild(self, slot_map: SlotMap, data_epoch: str, broadcasts: BroadcastLog) -> Inherited:
        """Build a core from storage. A retry builds a new one: what the first core had read would count twice."""
        handlers = {kind: handler for feature in self._features for kind, handler in feature.handlers.items()}
        self._core = core = ShardCore(self._index, self._config, slot_map, data_epoch, handlers, judging(self._features).judge)
        storage = (self._journal, self._pages, self._offline, self._layouts)
        self._recovery = Recovery(self._client, core, *storage, self._now_ms, self._config.quarantine_max)
        self._follower = BroadcastFollower(broadcasts, core)
        core.refused_records = refused_after(await self._journal.failed_records(slot_map.local(slot_map.shards)))
        await self._follower.catch_up()
        slots = slot_map.slots_of(self._index)
        with self._context.lasting():
            await self._recovery.replay(set(slots))
        await self._recovery.find_deadlines(slots)
        inherited = await read_inherited(self._client, self._index, slots, slot_map.version)
        self._journal.serve(slots)
        core.adopt(slot_map, self._journal.epoch, inherited.online, inherited.events, self._now_ms(), told=True)
        return inherited

    async def _take_over(self) -> tuple[SlotMap, str]:
        """Fence older incarnations, which may have handed slots over until then."""
        placement = await self._read_placement()
        while True:
            slots = placement[0].slots_of(self._index)
            await self._journal.take_over(slots)
            before, placement = placement, await self._read_placement()
            if placement[0] == before[0]:
                return placement
            self._journal.leave(slots)

    async def _read_placement(self) -> tuple[SlotMap, str]:
        slot_map = await require_slot_map(self._client)
        with StorageCalls("data epoch"):
            data_epoch: Any = await self._client.hget(META_KEY, EPOCH_FIELD)
        if data_epoch is None:
            raise StorageUnavailable("the data epoch is not written yet")
        return slot_map, data_epoch.decode()

    # -- between core and links ---------------------------------------------------------------------------------------

    def _on_edge_open(self, session: str) -> None:
        self._feed(partial(self._core.opened, session))

    def _on_edge_records(self, session: str, records: list[Any]) -> None:
        for observer in self._observers:
            observer.received(session, records)
        self._feed(partial(self._core.handle, session, records, self._now_ms()))

    def _on_edge_close(self, session: str) -> None:
        self._feed(partial(self._core.closed, session, self._now_ms()))
        for observer in self._observers:
            observer.closed(session)

    def _feed(self, event: Callable[[], None]) -> None:
        """Apply an event to the core, from a callback. An exception ends the process: the core may have applied half of it."""
        if self._failure.done():
            return
        try:
            event()
            self._flush()
        except Exception as error:
            self._failure.set_exception(error)

    async def _watch_callbacks(self) -> None:
        """Raise the exception of a callback in a task, where it ends the process."""
        await self._failure

    def _flush(self) -> None:
        """Send the output of the core, and wake the tasks that have work."""
        if self._failure.done():
            return  # a core with a half-applied event must send nothing
        self._stirred.set()
        core = self._core
        for observer in self._observers:
            observer.sent(core.output.to_edges, core.output.to_schedulers)
        if said := core.output.to_edges[:]:
            core.output.to_edges.clear()  # before: a link that overflows ends its session, which comes back here
            self._links.send_all(said)
        if core.output.to_schedulers:
            self._schedulers.send(core.output.to_schedulers)
            core.output.to_schedulers.clear()
        if core.wants_commit:
            self._commit_wanted.set()
        elif core.connections.acked and not self._acks_scheduled:
            self._acks_scheduled = True
            asyncio.get_running_loop().call_later(self._config.ack_journal_ms / 1000, self._wake_for_acks)
        if core.delivery.unarmed and not self._schedulers.arming:
            self._schedulers.arm_later()
        if core.map_doubted:
            core.map_doubted = False
            self._mover.look()
        if any(core.storage_work):
            self._reads.wake()
            self._shared.wake()
            self._checkpoints.wake()
            self._erasure.wake()

    def _wake_for_acks(self) -> None:
        self._acks_scheduled = False
        self._commit_wanted.set()

    # -- journal ------------------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        while True:
            await self._commit_wanted.wait()
            self._commit_wanted.clear()
            now_ms = self._now_ms()
            group = self._core.take_group(now_ms)
            if group is not None:
                for observer in self._observers:
                    observer.decided(group.records)
                await self._commit(group, now_ms + self._config.commit_retry_ms)
            self._flush()  # sets `_commit_wanted` again when more has arrived

    async def _commit(self, group: Group, deadline_ms: int) -> None:
        """Append a group until it is durable; with failures until the deadline, reject its posts and roll it back.

        The caller flushes the output of the end.
        """
        current: Group | None = group
        while current is not None:
            try:
                known = await self._journal.append(current)
            except StorageUnavailable as error:
                if self._now_ms() < deadline_ms:
                    await asyncio.sleep(USERS_RETRY_S)
                    continue
                log.error("shard %d: storage is away: %s", self._index, error)
                self._core.group_refused()
                self._flush()
                await self._retry_storage(partial(self._journal.rollback, current))
                self._core.storage_back()
                log.info("shard %d: storage is back", self._index)
                return
            if not known:
                self._core.group_committed(self._now_ms())
                return
            current = self._core.group_known(known, self._now_ms())
            self._flush()

    async def _pressure_loop(self) -> None:
        """Tick every `pressure_tick_ms` while there is something to do; else when the core asks for it, and that long after an event."""
        tick_s = self._config.pressure_tick_ms / 1000
        while True:
            if not await self._rests():
                await asyncio.sleep(tick_s)
            self._core.tick(self._now_ms())
            self._flush()
            while self._core.relieve(self._now_ms()):
                await asyncio.sleep(0)  # others have their turn after a few milliseconds
            self._stirred.clear()

    async def _rests(self) -> bool:
        """Returns when the core is to be ticked again: False, while it has something to do, or something has happened."""
        now_ms = self._now_ms()
        wait_s = (self._core.next_tick_ms(now_ms) - now_ms) / 1000
        try:
            async with asyncio.timeout(wait_s):
                await self._stirred.wait()
        except TimeoutError:
            return wait_s > 0
        return False


def _leaves(errors: BaseExceptionGroup[RecordFailed]) -> Iterator[RecordFailed]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
