"""A shard core with a storage of plain dictionaries, and one edge: what the tests of the core drive.

Storage is as honest as Redis is: a group is durable or not, pages and stream entries are written as given, and a crash
leaves exactly what was written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.config import Config
from engine.core.commit.first_result import DIGEST_BYTES, packed_result, unpacked_result
from engine.core.commit.group import Group
from engine.core.commit.judge import Judge
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import MailboxPage, Record, Spill, keys_of
from engine.core.journal.stored_formats import decode_stored, read_entry
from engine.core.mailbox.broadcast_log import BodyCache, BroadcastEntry, Channel, encode_entry
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.category import PolicyTerms
from engine.core.model.constants import LOW, NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import slot_of, spread
from engine.core.shard.shard import ShardCore
from engine.core.wire import records as wire
from engine.features.digest.core.backlog_reads import read_backlog
from engine.features.inbox.core import inbox_requests
from engine.features.policy.core.changed_profiles import change_profile, get_profile
from engine.features.policy.core.explain import explain, trace
from engine.features.policy.time_zones import zone
from engine.features.user_data.core import user_overview
from engine.features.windows.core.window_step import WindowJudge
from tests.support.stored import decode_journal, decode_page

EDGE = "edge-0/1"
RETRY = RetryPolicy(rtt_initial_ms=250, factor=1.8, first_ms=100, cap_ms=2000, tries=3)


def small_config(inbox: InboxLimits | None = None, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "window": 8,
        "window_bytes": 1 << 20,
        "deliver_bytes_max": 1 << 18,
        "connections_per_user_max": 3,
        "offline_max": 100,
        "recent_ids": 64,
        "hot_messages_max": 16,
        "mailbox_idle_ms": 1000,
        "commit_records_max": 100,
        "commit_bytes_max": 1 << 20,
        "ack_journal_ms": 200,
        "posts_pending_max": 1000,
        "shard_memory_messages_max": 100_000,
        "adopt_max": 3,
        "topics_per_user_max": 4,
        "shared_bytes_max": 64,
        "shard_memory_bytes_max": 1 << 30,
        "hot_bytes_max": 1 << 20,
        "pressure_lag_ms": 250,
        "pressure_calm_ms": 1000,
        "conflate_offline_min": 3,
        "collapse_keys_max": 4,
        "gaps_max": 8,
        "windows_max": 2,
        "windows_close_max": 2,
        "inbox_max": 0,
    }
    if inbox is not None:
        values |= {"inbox_max": inbox.messages_max, "inbox_ttl_s": inbox.keep_ms // 1000, "inbox_pinned_max": inbox.pinned_max}
    return Config(**(values | changes))


HANDLERS = {
    wire.Explain: explain,
    wire.GetProfile: get_profile,
    wire.SetProfile: change_profile,
    wire.ChangeProfile: change_profile,
    wire.Trace: trace,
    wire.ReadBacklog: read_backlog,
    wire.ReadUser: user_overview,
    wire.ReadInbox: inbox_requests.read,
    wire.MarkInbox: inbox_requests.mark,
}
"""As the features of a shard have them."""


class World:
    """The core, its storage, and the clock of the test."""

    def __init__(self, **changes: Any) -> None:
        self.config = small_config(**changes)
        self.journal: list[tuple[int, bytes]] = []  # number of the group, payload of one slot
        self.pages: dict[str, bytes] = {}
        self.streams: dict[str, dict[int, bytes]] = {}
        self.ids: dict[tuple[str, str], bytes] = {}
        self.remembered: dict[tuple[str, str], int] = {}  # from when on, in seconds, where that is later
        self.looks: dict[str, int] = {}  # when the sweep looks at a page
        self.floors: dict[int, int] = {}  # by slot: the highest number of a page that was deleted
        self.windows: dict[str, int] = {}  # mailboxes whose page has open windows
        self.dead: list[Any] = []
        self.actions: list[str] = []  # targets of the actions that fired
        self.events: list[Any] = []
        self.online: set[str] = set()  # as storage has it
        self.log: list[tuple[int, bytes]] = []  # the broadcast log: position, entry
        self.log_end = 0
        self.dropped: list[tuple[int, Channel | None]] = []  # what left it
        self.log_ids: set[str] = set()
        self.now_ms = 1_000_000
        self.refs = 0
        self.epoch = 0
        self._new_core()

    def _new_core(self) -> None:
        self.core = ShardCore(0, self.config, spread(1), "e1", HANDLERS, self.judge)
        self.drops_followed = 0
        self.epoch += 1
        self.core.inbox_counts.epoch = self.epoch
        self.core.opened(EDGE)
        self.bodies = BodyCache(self.config.shared_bytes_max)  # the edge's

    def judge(self, mailboxes: Mapping[str, Mailbox], memory: Memory) -> Judge:
        """As the features of a shard make it."""
        return WindowJudge(self.config, zone, mailboxes, memory)

    # -- what an edge says ------------------------------------------------------------------------------------------------

    def post(self, user: str = "u", id: str | None = None, *, digest: bytes = b"d" * 8, ttl_ms: int = 60_000, **fields: Any) -> int:
        self.refs += 1
        id = id or f"m{self.refs}"
        record = wire.Post(
            self.refs,
            f"t:{user}",
            fields.pop("idempotent", True),
            self.now_ms + ttl_ms,
            Envelope(
                id,
                digest,
                fields.pop("priority", NORMAL),
                fields.pop("retain", True),
                fields.pop("body", b'"id":"%b"' % id.encode()) + fields.pop("more", b""),
                fields.pop("collapse", ""),
                fields.pop("merge", None),
                fields.pop("policy_terms", None),
            ),
        )
        assert not fields, f"unknown: {fields}"
        self.tell(record)
        return self.refs

    def publish(self, user: str = "u", id: str | None = None, **fields: Any) -> list[Any]:
        """Post a message and settle; returns what the core said."""
        self.post(user, id, **fields)
        return self.settle()

    def attach(self, conn: int, user: str = "u", cursor: int | None = None, *, epoch: str = "e1", **fields: Any) -> None:
        epoch = "" if cursor is None else epoch
        kind = fields.pop("kind", wire.WEBSOCKET)
        self.tell(wire.Attach(conn, f"t:{user}", kind, epoch, cursor or 0, f"s{conn}", "", **fields))

    def connect(self, conn: int, user: str = "u", cursor: int | None = None, **fields: Any) -> list[Any]:
        """Attach a connection and settle; returns what the core said."""
        self.attach(conn, user, cursor, **fields)
        return self.settle()

    def ack(self, conn: int, seq: int) -> None:
        self.tell(wire.Ack(conn, seq))

    def ack_ids(self, conn: int, *ids: str) -> None:
        self.tell(wire.AckIds(conn, list(ids)))

    def nack(self, conn: int, *ids: str) -> None:
        self.tell(wire.Nack(conn, list(ids), "cannot"))

    def detach(self, conn: int, code: int = 1006) -> None:
        self.tell(wire.Detach(conn, code))

    def tell(self, *records: Any) -> None:
        self.core.handle(EDGE, records, self.now_ms)

    def ask(self, *records: Any) -> list[Any]:
        """Tell the core and settle; returns what it said."""
        self.tell(*records)
        return self.settle()

    def acknowledge(self, conn: int, seq: int) -> list[Any]:
        """Acknowledge and settle; returns what the core said."""
        self.ack(conn, seq)
        return self.settle()

    def fire(self, timers: Sequence[wire.Timer]) -> list[Any]:
        """A scheduler hands these timers out; returns what the core said to the edge."""
        self.core.fire(timers, self.now_ms)
        return self.settle()

    def subscribe(self, *topics: str, user: str = "u", remove: Sequence[str] = ()) -> int:
        self.refs += 1
        self.tell(wire.Subscribe(self.refs, f"t:{user}", list(topics), list(remove)))
        return self.refs

    def broadcast(
        self,
        id: str,
        topic: str = "",
        *,
        tenant: str = "t",
        ttl_ms: int = 60_000,
        priority: int = LOW,
        retain: bool = True,
        category: str = "",
        more: bytes = b"",
    ) -> int:
        """Publish into the log; the shard does not know yet. Returns the position."""
        pos = self._next_position()
        body = b'"id":"%b"' % id.encode() + more
        envelope = Envelope(id, b"", priority, retain, body, policy_terms=PolicyTerms(category) if category else None)
        entry = BroadcastEntry(tenant, topic, envelope, self.now_ms + ttl_ms, self.now_ms)
        self.log.append((pos, encode_entry(entry)))
        return pos

    def deliver_broadcast(self, id: str, topic: str = "", **fields: Any) -> list[Any]:
        """Publish into the log and settle; returns what the core said."""
        self.broadcast(id, topic, **fields)
        return self.settle()

    def _next_position(self) -> int:
        """Positions only grow, also when the log was emptied meanwhile."""
        self.log_end += 10
        return self.log_end

    # -- what the shell does ----------------------------------------------------------------------------------------------

    def settle(self) -> list[Any]:
        """Serve everything the core wants until it wants nothing; returns what it said to the edge."""
        while self.follow() or self.fetch() or self.commit() or self.core.fired_timers.awaited:
            pass
        return self.said()

    def said(self) -> list[Any]:
        """What the shard says, with the broadcasts as the edge hands them to each connection."""
        said: list[Any] = []
        for record in self.raw():
            if isinstance(record, wire.Shared):
                self.bodies.put(record.pos, record.body)
            elif isinstance(record, wire.DeliverShared):
                body = self.bodies[record.pos]
                said.extend(wire.Deliver(conn, [(seq, attempt, body)]) for conn, seq, attempt in record.deliveries)
            else:
                said.append(record)
        return said

    def raw(self) -> list[Any]:
        said = [record for _, record in self.core.output.to_edges]
        self.core.output.to_edges.clear()
        return said

    def follow(self) -> bool:
        """Read the broadcast log from where the shard is; append what its timers made due."""
        audience = self.core.broadcast_audience
        for announcement in audience.take_announcements():
            if announcement.sid not in self.log_ids:
                self.log_ids.add(announcement.sid)
                self.log.append((self._next_position(), encode_entry(announcement.entry)))
            self.core.fired_timers.done([announcement.sid])
        fresh = [(pos, blob) for pos, blob in self.log if pos > audience.log.head]
        if fresh:
            audience.read([read_entry(pos, blob) for pos, blob in fresh], fresh[-1][0], self.log[0][0])
        if len(self.dropped) > self.drops_followed:
            audience.lose(self.dropped[self.drops_followed :])
            self.drops_followed = len(self.dropped)
        return bool(fresh)

    def drop(self, *positions: int) -> None:
        """These leave the log, expired or pushed out, and the shard hears of it."""
        for pos, entry in [(pos, read_entry(pos, blob)) for pos, blob in self.log if pos in positions]:
            self.dropped.append((pos, (entry.tenant, entry.topic) if entry.envelope.retain else None))
        self.log = [(pos, blob) for pos, blob in self.log if pos not in positions]
        self.follow()

    def fetch(self) -> bool:
        core = self.core
        keys, reads = core.page_wait.take_pages_wanted(), core.mailbox_store.take_reads_wanted(1000)
        core.pages_loaded({key: self.page(key) for key in keys}, self.now_ms)
        doubted = list(core.page_wait.doubted)
        core.confirmed(doubted, self.now_ms)
        for read in reads:
            stream = self.streams.get(read.key, {})
            core.read_done(read, [decode_stored(stream[seq]) for seq in sorted(stream) if read.first <= seq <= read.last], self.now_ms)
        awaited = core.fired_timers.take_awaited()
        self.remembered |= {one.pair: one.second for one in awaited if self.ids.get(one.pair) == one.value}
        core.fired_timers.done(one.sid for one in awaited)
        if doubts := core.fired_timers.take_doubted():
            pairs = [pair for doubt in doubts for pair in doubt.effects if pair in self.ids]
            core.fired_timers.looked_up(doubts, {pair: unpacked_result(self.ids[pair])[1] for pair in pairs})
        if acting := core.fired_timers.take_acting():
            fresh = [timer for timer in acting if (timer.key, timer_effect_id(timer.sid)) not in self.ids]
            self.actions += [timer.action.target for timer in fresh if timer.action is not None]
            self.ids.update({(timer.key, timer_effect_id(timer.sid)): packed_result(bytes(DIGEST_BYTES), 0, timer.sid) for timer in fresh})
            core.fired_timers.done([timer.sid for timer in acting])
        if letters := core.mailbox_store.take_dead_letters():
            self.dead.extend(letters)
            core.dead_lettered(letters, self.now_ms)
        if pages := core.user_requests.take_reads(1000):
            streams = [self.streams.get(page.range.key, {}) for page in pages]
            core.user_requests.read_done(pages, [[decode_stored(stream[seq]) for seq in sorted(stream)] for stream in streams])
        self.log_sessions()
        return bool(keys or doubted or reads or letters or awaited or doubts or acting or pages)

    def log_sessions(self) -> None:
        events = self.core.output.take_session_events(1000)
        self.events.extend(events)
        for event in events:
            if event.online is not None:
                (self.online.add if event.online else self.online.discard)(event.key)

    def page(self, key: str) -> MailboxPage | None:
        return decode_page(key, self.pages[key]) if key in self.pages else None

    def take_group(self) -> Group:
        """The next group, which is not in the journal yet."""
        group = self.core.take_group(self.now_ms)
        assert group is not None
        return group

    def new_group(self) -> Group | None:
        """The next group that has no known id: the core answers those that have one."""
        group = self.core.take_group(self.now_ms)
        while group is not None:
            known = {index: self.ids[pair] for index, pair in enumerate(group.ids) if pair in self.ids}
            if not known:
                break
            group = self.core.group_known(known, self.now_ms)
        return group

    def commit(self, check: Callable[[Group], object] = lambda _group: None, *, only_append: bool = False) -> bool:
        """Append the next group, which a test may check before. With `only_append` the core does not hear of it."""
        group = self.new_group()
        if group is None:
            return False
        check(group)
        self.append(group)
        if not only_append:
            self.core.group_committed(self.now_ms)
        return True

    def append(self, group: Group) -> None:
        self.journal += [(group.number, payload) for payload in group.payloads.values()]
        self.ids.update(zip(group.ids, group.values, strict=True))

    def calm_down(self) -> list[Any]:
        """Time enough passes without load for every level to end; returns what is said meanwhile."""
        said = self.settle()
        for _ in range(8):
            self.now_ms += self.config.pressure_calm_ms
            self.core.tick(self.now_ms)
            self.checkpoint()
            said += self.settle()
        return said

    def checkpoint(self, *, full: bool = True, meanwhile: Callable[[], object] | None = None) -> None:
        """Write a checkpoint. Between its parts life goes on: groups are committed, or what `meanwhile` does happens."""
        meanwhile = meanwhile or self.commit
        checkpoint = self.core.mailbox_store.take_checkpoint(full, 1000)
        if checkpoint is None:
            return
        while self.core.mailbox_store.fill_checkpoint(2, self.now_ms):
            meanwhile()
        for spill in checkpoint.spills:
            self.store(spill)
        if checkpoint.through_commit is not None:
            self.journal = [entry for entry in self.journal if entry[0] > checkpoint.through_commit]
        while self.core.mailbox_store.checkpoint_done(2):
            meanwhile()
        self.core.user_requests.erased(self.core.mailbox_store.take_erased())

    def store(self, spill: Spill) -> None:
        """Write one mailbox's share of a checkpoint."""
        if spill.removed_at >= 0:
            self.pages.pop(spill.key, None)
            self.streams.pop(spill.key, None)
            self.windows.pop(spill.key, None)
            self.looks.pop(spill.key, None)
            slot = slot_of(spill.key)
            self.floors[slot] = max(spill.removed_at, self.floors.get(slot, 0))
            return
        self.looks[spill.key] = spill.look_ms
        stream = self.streams.setdefault(spill.key, {})
        stream.update(spill.entries)
        for seq in [seq for seq in stream if seq < spill.trim_below or seq in spill.deleted]:
            del stream[seq]
        self.pages[spill.key] = spill.page
        if spill.judge_ms > 0:
            self.windows[spill.key] = spill.judge_ms
        else:
            self.windows.pop(spill.key, None)

    def persist(self) -> None:
        """Settle, and write a checkpoint."""
        self.settle()
        self.checkpoint()

    def evict(self) -> int:
        """Let mailboxes leave memory that have been idle for long enough; returns how many did."""
        self.now_ms += self.config.mailbox_idle_ms
        return self.core.evict(self.now_ms)

    def crash(self) -> None:
        """The process dies; a successor recovers from what was written. Group numbers start again, entries stay in order."""
        self._new_core()
        self.core.mailbox_store.adopt_floors(self.floors)
        self.follow()
        self.journal = [(-1, payload) for _, payload in self.journal]
        by_slot: defaultdict[int, list[Record]] = defaultdict(list)
        for _, payload in self.journal:
            for record in decode_journal(payload):
                by_slot[slot_of(next(iter(keys_of([record]))))].append(record)
        for slot, records in by_slot.items():
            self.core.replay(slot, {key: self.page(key) for key in keys_of(records)}, records, self.now_ms)
        for key, closes_ms in self.windows.items():
            self.core.mailbox_store.judge.deadlines.stored(slot_of(key), [(key, closes_ms)])
        self.core.connections.presence.assume(sorted(self.online), self.now_ms, told=True)

    def wait(self, ms: int) -> list[Any]:
        """Time passes; retry timers fire when they are due."""
        end_ms = self.now_ms + ms
        armed: dict[str, int] = {}
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 50, end_ms)
            due = [key for key, at_ms in armed.items() if at_ms <= self.now_ms]
            for key in due:
                del armed[key]
            self.core.delivery.due(due, self.now_ms)
            armed.update(self.core.delivery.arms(self.now_ms))
            if not armed and not self.core.delivery.unarmed:
                self.now_ms = end_ms
        self.core.delivery.scheduler_reset(lambda _: True)
        return self.settle()


def connected_world(**changes: Any) -> World:
    """A world where the user `u` has connection 1."""
    world = World(**changes)
    world.attach(1)
    return world


class Client:
    """One connection as its user sees it, for the stateful tests."""

    def __init__(self, user: str, topics: tuple[str, ...] = ()) -> None:
        self.user = user
        self.topics = topics
        self.newest = 0  # highest number seen or announced
        self.unacked: set[int] = set()


def delivered(records: list[Any], conn: int = 1) -> list[tuple[int, int]]:
    """(seq, attempt) of everything delivered to the connection."""
    return [
        (seq, attempt)
        for record in records
        if isinstance(record, wire.Deliver) and record.conn == conn
        for seq, attempt, _ in record.messages
    ]


def of(records: list[Any], kind: type) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]
