"""The shard actor: a thin shell that carries bytes between ShardCore, Redis and the links.

Tasks of one shard, all in one event loop, so that the core is never entered twice:
    commit      appends one group at a time to the journal; the next holds all that arrived meanwhile
    fetch       reads the pages and stream ranges that the core requests; writes its dead letters
    log         writes session events
    erase       deletes erased users from storage
    checkpoint  writes dirty mailboxes every few seconds, users that went offline at once, then trims the journal
    follow      reads the broadcast log
    slots       follows the slot map, hands slots over and adopts them (`engine.actors.slot_mover`)
    pressure    measures it ten times a second, sends held messages, evicts mailboxes
    sweep       removes expired messages of offline users and expired broadcasts
    tenants     counts what they have in slots that no version before has counted; then asks which have as many users as they may
    links       a server for the edges, a caller per scheduler

Start, also after a crash: take a new epoch (older incarnations can no longer write), read broadcasts, pages and journal, replay them
through the core, then answer. Loss of the epoch ends the process: another process is the shard now. If storage has lost confirmed
data, the shard first restores it from memory (`engine.store.restore`), then ends too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec import Struct
from redis.exceptions import RedisError

from engine.actors.actor_process import REAL, RETRY_S, ProcessContext, Server
from engine.actors.broadcast_follower import BroadcastFollower
from engine.actors.link import LinkCaller, LinkServer
from engine.actors.recovery import Recovery
from engine.actors.slot_mover import SlotMover
from engine.api.time_zones import zone_here
from engine.config import Config, message_bytes_max
from engine.core.commit.group import Group
from engine.core.journal.journal_records import Checkpoint
from engine.core.model.routing import SlotMap, partition_of, scheduler_of
from engine.core.shard.limits import ShardLimits
from engine.core.shard.poison import RecordFailed, fingerprint, refused_after
from engine.core.shard.shard import ShardCore
from engine.core.wire import records as wire
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.action_stream import append_actions
from engine.store.broadcast_stream import BroadcastLog
from engine.store.dead_letter_stream import write_dead_letters
from engine.store.external_streams import read_online, write_session_events
from engine.store.journal import RECORD_ORIGIN, Journal
from engine.store.keys import EPOCH_FIELD, meta_key
from engine.store.lua import Replicas
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.restore import restore_storage
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import require_slot_map
from engine.store.tenant_usage import TenantUsage
from engine.store.user_entries import drop_user_entries

log = logging.getLogger(__name__)

_SESSION_EVENTS_WRITTEN = 50
"""Session events per write: some 1 ms of the shard's time, during which no message is delivered, when thousands lose their connection."""

_SESSION_EVENTS_PAUSE_S = 0.01
"""Between two such writes while more events wait: nobody waits for them. Those of 10 000 lost connections take 5 s."""

_FILL_PAUSE_S = 0.001
"""Between two parts of a checkpoint (`checkpoint_mailboxes`), which take as long: half of the shard's time is left to messages."""

_DONE_MAILBOXES = 256
"""Mailboxes of a written checkpoint at once: a millisecond."""

_SPILL_MESSAGES = 5000
"""Messages per partial checkpoint: tens of milliseconds, after which the journal's checkpoint can run."""


_SEND_BACKLOG_BYTES = 32 << 20
"""On one link, beyond which messages of users who come back stay in storage: an eighth of the link's queue. When that is full, the session
is reset, all its connections are announced again, and the same messages are read and sent again."""

_SEND_BACKLOG_S = 0.01
"""Between looks at that backlog: about what a batch takes."""

_TENANTS_S = 1.0
"""Between questions which tenants have as many users as they may: a quota is exceeded by the new users of so long, and a checkpoint."""

_QUARANTINE_S = 2.0
"""Seconds a failed shard waits for the write of the quarantine entry before it ends without one."""


class Shard(Server):
    """One shard. Its name, index and configuration are the same in every incarnation."""

    role: ClassVar[str] = "shard"

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._commit_wanted = asyncio.Event()
        self._fetch_wanted = asyncio.Event()
        self._spill_wanted = asyncio.Event()
        self._erasure_wanted = asyncio.Event()
        self._session_events_wanted = asyncio.Event()
        self._checkpointing = asyncio.Lock()
        self._acks_scheduled = False
        self._arms_scheduled = False
        self._callers: list[tuple[LinkCaller, asyncio.Task[None]]] = []  # of the schedulers
        self._core: ShardCore
        self._failure: asyncio.Future[None]
        self._journal: Journal
        self._pages: Pages
        self._offline: OfflineStreams
        self._recovery: Recovery
        self._mover: SlotMover
        self._running: asyncio.TaskGroup
        self._links: LinkServer

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
            "links": {f"scheduler-{scheduler}": caller.carrier for scheduler, (caller, _) in enumerate(self._callers)},
            **self._core.stats(self._now_ms()),
        }

    async def slot_loads(self, proof: bytes = b"") -> dict[int, float]:
        """Messages per second of each slot that gets any (`engine.core.shard.slot_loads`)."""
        self._lock.check("slot_loads", proof)
        return self._core.slot_loads.per_s(self._now_ms()) if self._ready.is_set() else {}

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
            await self._checkpoint(full=True)

    # -- start --------------------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        loops = (
            self._commit_loop,
            self._fetch_loop,
            self._session_events_loop,
            self._spill_loop,
            self._erase_loop,
            self._checkpoint_loop,
            self._sweep_loop,
            self._pressure_loop,
            self._tenants_loop,
        )
        return [
            self._until_data_is_lost(
                [*(loop() for loop in loops), self._watch_callbacks(), self._follower.run(self._flush), self._mover.run()]
            )
        ]

    async def _until_data_is_lost(self, tasks: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run the tasks until one fails, which ends the process.

        When storage has lost data, it is first restored from memory; when a record failed, the record is first quarantined.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._running = group
                self._on_map(self._mover.stored)
                for task in tasks:
                    group.create_task(task)
        except* DataLost as lost:
            log.critical("shard %d puts back what it holds: %s", self._index, lost.exceptions[0])
            self._ready.clear()  # no new input meanwhile
            core, now_s = self._core, self._now_ms() // 1000
            slot_map, size = self._mover.stored, self._config.commit_bytes_max
            await self._retry_storage(lambda: restore_storage(self._client, self._journal, core, slot_map, size, now_s))
            raise
        except* RecordFailed as failed:
            for error in _leaves(failed):
                await self._quarantine(error)
            raise

    async def _quarantine(self, error: RecordFailed) -> None:
        """Store an entry by which the next incarnations recognise the record; if storage does not answer, only log that."""
        log.critical("shard %d ends: %s failed: %r", self._index, error, error.__cause__)
        where = f"{RECORD_ORIGIN}{fingerprint(error.record)}"
        try:
            async with asyncio.timeout(_QUARANTINE_S):
                await self._journal.quarantine(where, wire.encode([error.record]), self._config.quarantine_max)
        except (StorageUnavailable, TimeoutError) as failure:
            log.error("shard %d: the record is not in quarantine: %r", self._index, failure)

    async def _recover(self) -> str:
        """Fence older incarnations and rebuild the core from pages and journal."""
        self._failure = asyncio.get_running_loop().create_future()
        self._client = client = self._context.connect(self._config)
        broadcasts = BroadcastLog(self._context.connect(self._config), self._config)
        self._journal = Journal(client, self._index, self._config.idempotency_caller_s * 1000, Replicas.wanted(self._config))
        self._pages = Pages(
            client, self._journal.loss_detector, self._config.offline_max, self._config.offline_bytes_max, message_bytes_max(self._config)
        )
        self._offline = OfflineStreams(client, self._journal.loss_detector)
        self._links = LinkServer(
            wire.to_shard,
            self._config,
            on_open=self._on_edge_open,
            on_records=self._on_edge_records,
            on_close=self._on_edge_close,
            context=self._context,
        )
        slot_map, data_epoch = await self._retry_storage(self._take_over)
        await self._retry_storage(lambda: self._rebuild(slot_map, data_epoch, broadcasts))
        self._mover = SlotMover(
            client,
            slot_map,
            self._core,
            (self._journal, self._pages, self._recovery, self._follower),
            retry=self._retry_storage,
            checkpoint=self._write_all,
            flush=self._flush,
            on_map=self._on_map,
            now_ms=self._now_ms,
        )
        return f"epoch {self._journal.epoch}, data epoch {self._core.data_epoch}"

    async def _rebuild(self, slot_map: SlotMap, data_epoch: str, broadcasts: BroadcastLog) -> None:
        """Build a core from storage. A retry builds a new one: what the first core had read would count twice."""
        self._core = core = ShardCore(self._index, ShardLimits.wanted(self._config), slot_map, data_epoch, zone_here)
        storage = (self._journal, self._pages, self._offline)
        self._recovery = Recovery(self._client, core, *storage, self._now_ms, self._config.quarantine_max)
        self._follower = BroadcastFollower(broadcasts, core)
        core.refused_records = refused_after(await self._journal.failed_records())
        await self._follower.catch_up()
        await self._recovery.replay()
        core.connections.presence.assume(await read_online(self._client, slot_map.slots_of(self._index)), self._now_ms(), told=True)

    async def _take_over(self) -> tuple[SlotMap, str]:
        """Fence older incarnations, which may have handed slots over until then."""
        placement = await self._read_placement()
        while True:
            await self._journal.take_over(placement[0].slots_of(self._index))
            before, placement = placement, await self._read_placement()
            if placement[0] == before[0]:
                return placement

    async def _read_placement(self) -> tuple[SlotMap, str]:
        slot_map = await require_slot_map(self._client)
        try:
            data_epoch: Any = await self._client.hget(meta_key(), EPOCH_FIELD)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"data epoch: {error}") from error
        if data_epoch is None:
            raise StorageUnavailable("the data epoch is not written yet")
        return slot_map, data_epoch.decode()

    # -- between core and links ---------------------------------------------------------------------------------------

    def _on_edge_open(self, session: str) -> None:
        self._feed(partial(self._core.opened, session))

    def _on_edge_records(self, session: str, records: list[Any]) -> None:
        self._feed(partial(self._core.handle, session, records, self._now_ms()))

    def _on_edge_close(self, session: str) -> None:
        self._feed(partial(self._core.closed, session, self._now_ms()))

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
        core = self._core
        if core.output.to_edges:
            self._links.send_all(core.output.to_edges)
            core.output.to_edges.clear()
        if core.output.to_schedulers:
            for partition, record in core.output.to_schedulers:
                self._to_scheduler(partition, record)
            core.output.to_schedulers.clear()
        if core.wants_commit:
            self._commit_wanted.set()
        elif core.wants_ack_commit and not self._acks_scheduled:
            self._acks_scheduled = True
            asyncio.get_running_loop().call_later(self._config.ack_journal_ms / 1000, self._wake_for_acks)
        if core.wants_fetch:
            self._fetch_wanted.set()
        if core.output.session_events:
            self._session_events_wanted.set()
        if core.mailbox_store.wants_spill:
            self._spill_wanted.set()
        if core.user_requests.wants_erasure:
            self._erasure_wanted.set()
        if core.delivery.wants_timers and not self._arms_scheduled:
            self._schedule_arms()

    def _wake_for_acks(self) -> None:
        self._acks_scheduled = False
        self._commit_wanted.set()

    def _arm_timers(self) -> None:
        self._feed(self._arm_near_timers)

    def _arm_near_timers(self) -> None:
        self._arms_scheduled = False
        for key, at_ms in self._core.delivery.arms(self._now_ms()):
            self._to_scheduler(partition_of(key), wire.Arm(key, at_ms))
        if self._core.delivery.wants_timers:
            self._schedule_arms()

    def _schedule_arms(self) -> None:
        self._arms_scheduled = True
        asyncio.get_running_loop().call_later(self._config.link_ack_pacing_ms / 1000, self._arm_timers)

    def _to_scheduler(self, partition: int, record: Struct) -> None:
        """Send a record to a scheduler. Without a link it is dropped: a new session arms again, and an unconfirmed timer fires again."""
        if self._callers:
            self._callers[scheduler_of(partition, len(self._callers))][0].send(record)

    def _on_map(self, slot_map: SlotMap) -> None:
        """Keep a link to each scheduler of the newest slot map: it sends retry timers and receives due ones."""
        count = slot_map.schedulers
        if count == len(self._callers):
            return
        while len(self._callers) > count:
            self._callers.pop()[1].cancel()
        for scheduler in range(len(self._callers), count):
            caller = LinkCaller(
                self._context.peer(f"scheduler-{scheduler}", self._credentials),
                self._credentials.name,
                wire.scheduler_to_shard,
                self._config,
                on_records=self._on_scheduler_records,
                on_reset=partial(self._on_scheduler_reset, scheduler),
                budget=self._links.budget,
                pacing_ms=self._config.link_timer_pacing_ms,
                context=self._context,
            )
            self._callers.append((caller, self._running.create_task(caller.run())))
        self._feed(partial(self._core.delivery.scheduler_reset, lambda _key: True))  # what was armed elsewhere

    def _on_scheduler_reset(self, scheduler: int) -> None:
        """A new session: the scheduler is another process, or has other partitions. It has no retry timers of this shard."""
        count = len(self._callers)
        self._feed(partial(self._core.delivery.scheduler_reset, lambda key: scheduler_of(partition_of(key), count) == scheduler))
        self._mover.look()

    def _on_scheduler_records(self, records: list[Any]) -> None:
        for record in records:
            if isinstance(record, wire.Due):
                self._feed(partial(self._core.delivery.due, record.keys, self._now_ms()))
            else:
                self._feed(partial(self._core.fire, record.timers, self._now_ms()))

    # -- journal ------------------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        while True:
            await self._commit_wanted.wait()
            self._commit_wanted.clear()
            while (group := self._core.take_group(self._now_ms())) is not None:
                await self._commit(group)
            self._flush()

    async def _commit(self, group: Group) -> None:
        """Append a group until it is durable; after `commit_retry_ms` of failures reject its posts and roll it back."""
        deadline_ms = self._now_ms() + self._config.commit_retry_ms
        current: Group | None = group
        while current is not None:
            try:
                known = await self._journal.append(current)
            except StorageUnavailable as error:
                if self._now_ms() < deadline_ms:
                    await asyncio.sleep(RETRY_S)
                    continue
                log.error("shard %d: storage is away: %s", self._index, error)
                self._core.group_refused()
                self._flush()
                await self._retry_storage(partial(self._journal.rollback, current))
                self._core.storage_back()
                self._flush()
                log.info("shard %d: storage is back", self._index)
                return
            if not known:
                self._core.group_committed(self._now_ms())
                self._flush()
                return
            current = self._core.group_known(known, self._now_ms())
            self._flush()

    # -- storage beside the journal -----------------------------------------------------------------------------------

    async def _fetch_loop(self) -> None:
        while True:
            await self._fetch_wanted.wait()
            self._fetch_wanted.clear()
            try:
                await self._fetch()
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._index, error)
                await asyncio.sleep(RETRY_S)
                self._fetch_wanted.set()
            self._flush()

    async def _fetch(self) -> None:
        core = self._core
        if keys := core.take_pages_wanted():
            try:
                await self._recovery.read_pages(keys)
            except StorageUnavailable:
                core.pages_failed(keys)
                raise
            self._flush()
        if core.mailbox_store.wants_reads and self._links.queued_bytes > _SEND_BACKLOG_BYTES:
            await asyncio.sleep(_SEND_BACKLOG_S)
        elif reads := core.mailbox_store.take_reads_wanted(self._offline.ranges_max):
            try:
                answers = await self._offline.read(reads)
            except StorageUnavailable:
                for read in reads:
                    core.mailbox_store.read_failed(read)
                raise
            for read, entries in zip(reads, answers, strict=True):
                core.read_done(read, entries, self._now_ms())
            self._flush()
        await self._journal.look_up(core.fired_timers)
        if acting := core.fired_timers.take_acting():
            try:
                stored, full = await append_actions(self._client, self._config, acting)
            except StorageUnavailable:
                core.fired_timers.failed([timer.sid for timer in acting])
                raise
            core.fired_timers.done(stored)
            core.fired_timers.failed(full)
        await self._follower.announce()
        await self._recovery.quarantine_damaged()
        if letters := core.mailbox_store.take_dead_letters():
            try:
                limits = self._config
                size = message_bytes_max(limits)
                await write_dead_letters(self._client, letters, limits.dead_letters_max, limits.dead_letters_bytes_max, size)
            except StorageUnavailable:
                core.mailbox_store.dead_letters_failed(letters)
                raise
            core.dead_lettered(letters, self._now_ms())

    async def _session_events_loop(self) -> None:
        """Write the session log, in its own task so that no client waits for it."""
        output = self._core.output
        while True:
            await self._session_events_wanted.wait()
            self._session_events_wanted.clear()
            while events := output.take_session_events(_SESSION_EVENTS_WRITTEN):
                try:
                    await write_session_events(self._client, events, self._config.session_stream_max)
                except StorageUnavailable as error:
                    log.warning("shard %d: %s", self._index, error)
                    output.return_session_events(events)
                    await asyncio.sleep(RETRY_S)
                if output.session_events:
                    await asyncio.sleep(_SESSION_EVENTS_PAUSE_S)

    async def _spill_loop(self) -> None:
        """Move the messages of users that went offline to the offline stream at once."""
        while True:
            await self._spill_wanted.wait()
            self._spill_wanted.clear()
            await self._checkpoint(full=False)

    async def _erase_loop(self) -> None:
        """Delete erased users from storage: page, stream and journal with a checkpoint, then their entries in other streams."""
        erased: list[str] = []
        while True:
            await self._erasure_wanted.wait()
            self._erasure_wanted.clear()
            await self._checkpoint(full=True)
            erased += self._core.mailbox_store.take_erased()
            try:
                while erased:
                    await drop_user_entries(self._client, erased[-1])
                    self._core.user_requests.erased([erased.pop()])
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._index, error)
                await asyncio.sleep(RETRY_S)
            self._flush()

    async def _checkpoint_loop(self) -> None:
        while True:
            await asyncio.sleep(self._config.checkpoint_ms / 1000)
            await self._checkpoint(full=True)
            await self._look()

    async def _look(self) -> None:
        """Check that storage has lost nothing: a shard with nothing to write would not detect it."""
        try:
            data_epoch = await self._journal.loss_detector.check(self._client)
        except StorageUnavailable as error:
            log.info("shard %d: %s", self._index, error)
            return
        if data_epoch != self._core.data_epoch:
            log.error("shard %d: others have lost data, the data epoch is %s now", self._index, data_epoch)
            self._core.data_epoch_changed(data_epoch, self._now_ms())
            self._flush()

    async def _write_all(self, take: Callable[[], Checkpoint | None]) -> None:
        """Write the checkpoint of mailboxes that are to leave, until storage has it."""
        while not await self._write(take):
            pass

    async def _checkpoint(self, *, full: bool) -> None:
        await self._write(lambda: self._core.mailbox_store.take_checkpoint(full, _SPILL_MESSAGES))

    async def _write(self, take: Callable[[], Checkpoint | None]) -> bool:
        """Write a checkpoint; returns whether storage has it."""
        async with self._checkpointing:
            if self._core.mailbox_store.is_writing:
                raise Fenced("the last checkpoint failed for good, and its task ends this process")
            checkpoint = take()
            if checkpoint is None:
                return True
            while self._core.mailbox_store.fill_checkpoint(self._config.checkpoint_mailboxes, self._now_ms()):
                await asyncio.sleep(_FILL_PAUSE_S)
            try:
                written = await self._pages.write(checkpoint.spills, self._now_ms())
                await self._journal.covered(checkpoint.through_commit, written)
            except StorageUnavailable as error:
                log.warning("shard %d: checkpoint: %s", self._index, error)
                self._core.mailbox_store.checkpoint_failed()
                await asyncio.sleep(RETRY_S)
                return False
            while self._core.mailbox_store.checkpoint_done(_DONE_MAILBOXES):
                await asyncio.sleep(0)
        self._flush()
        return True

    async def _pressure_loop(self) -> None:
        while True:
            await asyncio.sleep(self._config.pressure_tick_ms / 1000)
            self._core.tick(self._now_ms())
            self._flush()

    async def _sweep_loop(self) -> None:
        """Delete expired messages of offline users, pages of users who are gone, and expired broadcasts."""
        config, store = self._config, self._core.mailbox_store
        indexed: set[int] = set()
        more = False
        while True:
            # What was found stays due until a checkpoint has written it.
            await asyncio.sleep((2 * config.checkpoint_ms if more else config.sweep_ms) / 1000)
            swept_ms = self._now_ms()
            slots = self._core.slot_map.slots_of(self._index)
            try:
                await self._follower.sweep(swept_ms)
                if new := [slot for slot in slots if slot not in indexed]:
                    await self._offline.index(new, swept_ms + config.user_forget_s * 1000)
                    indexed.update(new)
                swept = await self._offline.sweep(slots, swept_ms, config.sweep_pages_max)
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._index, error)
                continue
            more = len(swept) == config.sweep_pages_max
            for found in swept:
                if self._core.slot_map.owner(found.key) != self._index:
                    continue  # handed over meanwhile
                if found.expires:
                    store.swept(found.key, found.page, found.oldest_expires_ms, swept_ms)
                else:
                    store.forget(found.key, found.page, swept_ms)

    async def _tenants_loop(self) -> None:
        usage, users_max = TenantUsage(self._client), self._config.tenant_users_max
        counted: set[int] = set()
        while True:
            if new := [slot for slot in self._core.slot_map.slots_of(self._index) if slot not in counted]:
                await self._retry_storage(partial(usage.count_slots, new))
                counted.update(new)
            try:
                if users_max:
                    self._core.full_tenants = (await usage.full({"users": users_max}))["users"]
            except StorageUnavailable as error:
                log.info("shard %d: %s", self._index, error)
            await asyncio.sleep(_TENANTS_S)


def _leaves(errors: BaseExceptionGroup[RecordFailed]) -> Iterator[RecordFailed]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
