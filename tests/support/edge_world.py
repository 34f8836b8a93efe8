"""A real edge in this process: uvicorn on a free port, routes and gateway, and fake shards and a fake scheduler at the ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, partialmethod
from itertools import accumulate
from typing import Any

import httpx
import msgspec
import uvicorn.server
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engine.actors.edge import clock, wall_ms
from engine.api.access import Status
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.operating import EngineControls, Ready
from engine.auth.tokens import Authenticator, mint
from engine.config import Config
from engine.core.inbox.inbox import ARCHIVED, IN_ARCHIVE, READ, SEEN, UNREAD
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.action import ChannelCap
from engine.core.model.formats import FORMATS
from engine.core.model.revocation import Revocation
from engine.core.model.routing import SLOTS, RoutingTable, SlotMap, spread
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import UserState
from engine.core.shard.slow_connections import SlowConnection
from engine.core.wire import records as wire
from engine.errors import Invalid, Overloaded, StorageUnavailable, Unavailable
from engine.features.audit import endpoints as audit
from engine.features.audit.audit_log import Act, AuditLog
from engine.features.dead_letters import endpoints as dead_letters
from engine.features.dead_letters.store import DeadLetterStream, LetterPage, StoredLetter
from engine.features.digest import endpoints as digest
from engine.features.event_groups import endpoints as event_groups
from engine.features.event_groups.store import EventGroup, EventStreams, GroupEvent, Look, Position, Taken
from engine.features.growing import endpoints as growing
from engine.features.growing.store import GrowingStore
from engine.features.history import endpoints as history
from engine.features.inbox import endpoints as inbox
from engine.features.inspection import endpoints as inspection
from engine.features.inspection.store import QuarantinedRecord
from engine.features.policy import endpoints as policy
from engine.features.policy.core.changed_profiles import changed
from engine.features.policy.unsubscribing import RememberedKey
from engine.features.questions import endpoints as questions
from engine.features.questions.core import GivenAnswer
from engine.features.questions.store import Asked, QuestionStore, StoredQuestion
from engine.features.ray_events import endpoints as ray_events
from engine.features.ray_events.core.exported import Death
from engine.features.reach import endpoints as reach
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses
from engine.features.reach.store import CapCount, MailAsked
from engine.features.rules import endpoints as rules
from engine.features.rules.rules_endpoint import RulesEndpoint
from engine.features.rules.tenant_rules import TenantRules
from engine.features.signals import endpoints as signals
from engine.features.signals.core import CounterBatch
from engine.features.signals.endpoints import CounterSignals
from engine.features.signals.store import CounterSums
from engine.features.snooze import endpoints as snooze
from engine.features.sources import edge_part as sources
from engine.features.subscriptions import endpoints as subscriptions
from engine.features.token_revocation import endpoints as token_revocation
from engine.features.token_revocation.revocation_log import RevocationsRead
from engine.features.traces import edge_part as traces
from engine.features.user_data import endpoints as user_data
from engine.gateway.gateway import Gateway
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.ports import EdgeContext
from engine.publish.message_ids import MessageIds
from engine.routes import EdgeServices, app
from engine.store.broadcast_stream import Appended
from engine.store.pending_bodies import ReadBodies
from engine.store.tenant_usage import FIGURES, TenantUsage, UsageFigure
from engine.store.user_entries import UserEntry, find_user_entries
from engine.transports import http_server
from tests.support.fake_growths import FakeGrowths
from tests.support.rules_storage import FakeRulesStore, FakeSampleStore
from tests.support.waiting import until

SECRET = "a secret of the tests, long enough to be one"
EPOCH = "e7"
DEADLINE_S = 60.0


class _Impatient:
    """`asyncio` for uvicorn's server, which looks ten times a second whether it shall end and then waits as long again: much faster."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


uvicorn.server.asyncio = _Impatient()  # type: ignore[assignment]


class FakeShard:
    """Speaks the records: a list of messages per user, everything delivered at once, acknowledged when told so."""

    def __init__(self, index: int, world: EdgeWorld) -> None:
        self.index = index
        self.world = world
        self.received: list[Any] = []
        self.mailboxes: dict[str, dict[int, bytes]] = {}
        self.heads: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.ids: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.attached: dict[int, wire.Attach] = {}
        self.status = wire.ACCEPTED
        self.detail = ""
        self.quiet_until_ms = 0
        self.explained: tuple[Any, ...] = ("deliver", [("allowed", "nothing speaks against it")])
        self.traced: dict[tuple[str, str], wire.Traced] = {}
        self.connected = True
        self.owns: Callable[[str], int] = lambda _key: 0  # 0: ours; else the version of the map that says whose
        self.resumed: str | None = None
        self.topics: dict[str, set[str]] = {}
        self.subscribe_status = wire.OK
        self.profiles: dict[str, Profile | None] = {}
        self.inboxes: dict[str, dict[int, wire.InboxRow]] = {}
        self.inbox_status = wire.OK
        self.page_epoch = EPOCH  # of the numbers in pages of inboxes
        self.revision = 0
        self.forgotten_ids: set[str] = set()  # of messages that are in an inbox, and that the shard does not know by their ids any more
        self.user_states: dict[str, UserState] = {}
        self.profile_status = wire.OK
        self.erase_status = wire.OK
        self.active_ms = 0
        self.cold: list[tuple[int, int]] = []
        self.archived: list[int] = []  # acknowledged messages of the inbox, in storage only
        self._outgoing: list[Any] = []

    def take(self, record: Any) -> None:
        """What the link would carry; answered in the next turn of the loop."""
        if not self.connected:
            return
        self.received.append(record)
        getattr(self, type(record).__name__.lower())(record)

    def say(self, *records: Any) -> None:
        """Send records to the edge, with whatever else this turn brings, as one batch."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += records

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self.connected:
            data = wire.encode(outgoing)
            self.world.gateway.from_shard(self.index, wire.from_shard.decode(data))

    def reset(self) -> None:
        """The link breaks, and a new session begins."""
        self.attached.clear()
        self._outgoing.clear()
        self.connected = True
        self.world.gateway.shard_reset(self.index)

    # -- records -----------------------------------------------------------------------------------------------------------
    def post(self, post: wire.Post) -> None:
        version = self.owns(post.key)
        if version:
            self.say(wire.Moved(post.ref, -1, version))
            return
        known = self.ids.get((post.key, post.envelope.id))
        if known is not None:
            status = wire.DUPLICATE if known[1] == post.envelope.digest else wire.CONFLICT
            self.say(wire.Posted(post.ref, status, known[0]))
            return
        if self.quiet_until_ms:
            self.say(wire.Posted(post.ref, wire.DEFERRED, 0, "quiet_hours: it is night", 0, self.quiet_until_ms))
            return
        if self.status != wire.ACCEPTED:
            self.say(wire.Posted(post.ref, self.status, 0, self.detail))
            return
        seq = self.heads[post.key] = self.heads.get(post.key, 0) + 1
        self.ids[post.key, post.envelope.id] = (seq, post.envelope.digest)
        self.mailboxes.setdefault(post.key, {})[seq] = post.envelope.body
        self.inboxes.setdefault(post.key, {})[seq] = wire.InboxRow(seq, 0, False, wall_ms(), post.envelope.body)
        self._count(post.key)
        self.say(wire.Posted(post.ref, wire.ACCEPTED, seq))
        for conn, attach in self.attached.items():
            if attach.key == post.key:
                self.say(wire.Deliver(conn, [(seq, 1, post.envelope.body)]))

    def attach(self, attach: wire.Attach) -> None:
        version = self.owns(attach.key)
        if version:
            self.say(wire.Moved(-1, attach.conn, version))
            return
        self.attached[attach.conn] = attach
        head = self.heads.get(attach.key, 0)
        if attach.resume:
            sent = attach.sent
        else:
            resumed = "new"
            if attach.cursor_epoch:
                resumed = "ok" if attach.cursor_epoch == EPOCH and attach.cursor_seq <= head else "gap"
            if resumed == "ok":
                self._acked(attach.key, attach.cursor_seq)
            sent = self.acked.get(attach.key, 0)
            self.say(wire.Welcome(attach.conn, head, self.resumed or resumed, sent + 1, EPOCH))
            if attach.counts:
                self.say(wire.Counts(attach.conn, *self._counts(attach.key)))
        pending = [(seq, 1, body) for seq, body in sorted(self.mailboxes.get(attach.key, {}).items()) if seq > sent]
        if pending:
            self.say(wire.Deliver(attach.conn, pending))

    def detach(self, detach: wire.Detach) -> None:
        self.attached.pop(detach.conn, None)

    def ack(self, ack: wire.Ack) -> None:
        self._acked(self.attached[ack.conn].key, ack.seq)

    def _acked(self, key: str, seq: int) -> None:
        self.acked[key] = max(seq, self.acked.get(key, 0))
        mailbox = self.mailboxes.get(key, {})
        for number in [number for number in mailbox if number <= seq]:
            del mailbox[number]

    def ackids(self, ack: wire.AckIds) -> None:
        pass

    def nack(self, nack: wire.Nack) -> None:
        pass

    def written(self, written: wire.Written) -> None:
        pass

    def rejoin(self, rejoin: wire.Rejoin) -> None:
        self.attached[rejoin.conn].topics = rejoin.topics

    def settle(self, settle: wire.Settle) -> None:
        if settle.seq > self.heads.get(settle.key, 0) or settle.epoch not in ("", EPOCH):
            self.say(wire.Settled(settle.ref, "nothing beyond exists"))
            return
        self._acked(settle.key, settle.seq)
        self.say(wire.Settled(settle.ref))

    def refuse(self, refuse: wire.Refuse) -> None:
        self.say(wire.Settled(refuse.ref))

    def subscribe(self, subscribe: wire.Subscribe) -> None:
        topics = self.topics.setdefault(subscribe.key, set())
        if self.subscribe_status == wire.OK:
            topics |= set(subscribe.add)
            topics -= set(subscribe.remove)
        self.say(wire.Subscribed(subscribe.ref, self.subscribe_status, sorted(topics)))

    def setprofile(self, record: wire.SetProfile | wire.ChangeProfile) -> None:
        """As a shard does in a group of its own."""
        answer = wire.ProfileIs(record.ref, self.profile_status)
        if self.profile_status == wire.OK:
            answer.profile, answer.status = changed(self.profiles.get(record.key), record)
            self.profiles[record.key] = answer.profile
        self.say(answer)

    changeprofile = setprofile

    def readbacklog(self, record: wire.ReadBacklog) -> None:
        pending = sorted(self.mailboxes.get(record.key, {}).items(), reverse=True)
        known = self.inboxes.get(record.key, {})
        accepted = {seq: known[seq].accepted_ms if seq in known else 0 for seq, _ in pending}
        rows = [wire.BacklogRow(seq, 0, "", body, None, accepted[seq]) for seq, body in pending if not record.before or seq < record.before]
        older = len(rows) > record.limit
        del rows[record.limit :]
        acked = self.archived if record.unread else []
        cold = [] if record.before else [*self.cold, *((seq, seq) for seq in acked)]
        before = rows[-1].seq if older else 0
        self.say(wire.BacklogIs(record.ref, EPOCH, rows, cold, older, self.profiles.get(record.key), [], acked, before))

    def readuser(self, record: wire.ReadUser) -> None:
        head, pending = self.heads.get(record.key, 0), len(self.mailboxes.get(record.key, {}))
        connections = [
            wire.ConnectionState("e0", one.session, one.device, wire.TRANSPORTS[one.kind], wall_ms(), head, 0, 0, 0, False)
            for one in self.attached.values()
            if one.key == record.key
        ]
        topics, profile = sorted(self.topics.get(record.key, ())), self.profiles.get(record.key)
        presence = "connected" if connections else "offline"
        rest = ([wire.OpenWindow("likes", 3, 7_000)], profile, [("m1", wire.Step(5, "suppressed", "cap: enough"))], {"cart.left": 6})
        self.say(wire.UserIs(record.ref, presence, head, head - pending, pending, pending, self.active_ms, connections, topics, *rest))

    def erase(self, record: wire.Erase) -> None:
        self.say(wire.ErasureDone(record.ref, self.erase_status))

    def getprofile(self, record: wire.GetProfile) -> None:
        self.say(wire.ProfileIs(record.ref, self.profile_status, self.profiles.get(record.key), self.active_ms))

    def happened(self, record: wire.Happened) -> None:
        user_state = self.user_states.setdefault(record.key, UserState())
        if self.profile_status == wire.OK:
            user_state.follow(record.follow, record.ended)
        self.say(wire.Followed(record.ref, self.profile_status, {rule: user_state.follows[rule] for rule in record.follow}))

    def readinbox(self, record: wire.ReadInbox) -> None:
        rows = [row for seq, row in sorted(self.inboxes.get(record.key, {}).items(), reverse=True) if seq < (record.before or seq + 1)]
        rows = [row for row in rows if bool(row.flags & ARCHIVED) == bool(record.view & IN_ARCHIVE)]
        rows = [row for row in rows if not record.view & UNREAD or not row.flags & READ]
        before = rows[record.limit - 1].seq if len(rows) > record.limit else 0
        self.say(wire.InboxIs(record.ref, self.inbox_status, rows[: record.limit], before, *self._counts(record.key), self.page_epoch))

    def markinbox(self, record: wire.MarkInbox) -> None:
        if record.epoch not in ("", EPOCH):
            self.say(wire.InboxMarked(record.ref, wire.CONFLICT))
            return
        rows = self.inboxes.get(record.key, {})
        known = {id: seq for (key, id), (seq, _) in self.ids.items() if key == record.key and id not in self.forgotten_ids}
        for seq in {
            *record.seqs,
            *(known.get(id, 0) for id in record.ids),
            *(seq for seq in rows if record.upto < 0 or seq <= record.upto),
        }:
            if seq in rows:
                rows[seq].flags = rows[seq].flags | record.mark if record.on else rows[seq].flags & ~record.mark
                if record.on and record.mark == READ:
                    rows[seq].flags |= SEEN
        unknown = [id for id in record.ids if id not in known]
        self._count(record.key)
        self.say(wire.InboxMarked(record.ref, self.inbox_status, *self._counts(record.key), unknown))

    def _counts(self, key: str) -> tuple[int, int, int]:
        listed = [row.flags for row in self.inboxes.get(key, {}).values() if not row.flags & ARCHIVED]
        return sum(not flags & READ for flags in listed), sum(not flags & SEEN for flags in listed), self.revision

    def _count(self, key: str) -> None:
        """The inbox has changed: whoever wants its counts gets them."""
        self.revision += 1
        for attach in self.attached.values():
            if attach.key == key and attach.counts:
                self.say(wire.Counts(attach.conn, *self._counts(key)))

    def explain(self, record: wire.Explain) -> None:
        self.say(wire.Explained(record.ref, *self.explained))

    def trace(self, record: wire.Trace) -> None:
        traced = self.traced.get((record.key, record.id), wire.Traced(0, "", 0, []))
        self.say(msgspec.structs.replace(traced, ref=record.ref))

    def probe(self, probe: wire.Probe) -> None:
        state = "connected" if any(attach.key == probe.key for attach in self.attached.values()) else "offline"
        self.say(wire.Probed(probe.ref, state, self.heads.get(probe.key, 0)))

    # -- what tests ask ----------------------------------------------------------------------------------------------------
    def of(self, kind: type) -> list[Any]:
        """The records of one kind it received."""
        return [record for record in self.received if type(record) is kind]

    def show(self, record: wire.Show) -> None:
        frames = [(conn, frame) for key, frame in record.frames for conn, attach in self.attached.items() if attach.key == key]
        self.say(wire.Shown(record.kind, frames, True))

    def deliver(self, key: str, *messages: tuple[int, int, bytes]) -> None:
        """Deliver to every connection of a user."""
        for conn, attach in list(self.attached.items()):
            if attach.key == key:
                self.say(wire.Deliver(conn, list(messages)))


class FakeScheduler:
    """Keeps timers in a dict; fires none."""

    def __init__(self, world: EdgeWorld) -> None:
        self.world = world
        self.timers: dict[str, wire.Timer] = {}
        self.fired: set[str] = set()
        self.firing = 0  # so many answers to CancelAll tell of a timer that is firing
        self.known: dict[tuple[str, str], wire.Timer] = {}  # ids that were given before
        self.status = 0
        self.schedule_status = 0  # of new timers
        self.schedule_refused: dict[str, int] = {}  # of those of messages with these ids
        self.connected = True
        self.received: list[Any] = []

    def take(self, record: Any) -> None:
        if self.connected:
            self.received.append(record)
            answer = self._answer(record)
            asyncio.get_running_loop().call_soon(self.world.gateway.from_scheduler, 0, [answer])

    def _answer(self, record: Any) -> wire.TimerAnswer:
        if self.status:
            return wire.TimerAnswer(record.ref, self.status)
        if isinstance(record, wire.Schedule):
            return self._schedule(record)
        if isinstance(record, wire.ListTimers | wire.CancelAll):
            timers = sorted(self.timers.values(), key=lambda timer: (timer.due_ms, timer.sid))
            chosen = [timer for timer in timers if timer.key == record.key and record.collapse in ("", timer.envelope.collapse)]
            if isinstance(record, wire.ListTimers):
                behind = [timer for timer in chosen if (timer.due_ms, timer.sid) > (record.after_ms, record.after_sid)]
                return wire.TimerAnswer(record.ref, wire.OK, behind[: record.limit], "truncated" if len(behind) > record.limit else "")
            for timer in chosen:
                del self.timers[timer.sid]
                self.fired.add(timer.sid)
            self.firing, is_firing = max(self.firing - 1, 0), self.firing > 0
            return wire.TimerAnswer(record.ref, wire.OK, [], wire.FIRING if is_firing else "", len(chosen))
        if record.sid in self.fired:
            return wire.TimerAnswer(record.ref, wire.ALREADY_FIRED)
        timer = self.timers.get(record.sid)
        if timer is None or not timer.key.startswith(f"{record.tenant}:"):
            return wire.TimerAnswer(record.ref, wire.NOT_FOUND)
        if isinstance(record, wire.Cancel):
            del self.timers[record.sid]
        elif isinstance(record, wire.Reschedule):
            timer = self.timers[record.sid] = msgspec.structs.replace(timer, due_ms=record.due_ms)
        return wire.TimerAnswer(record.ref, wire.OK, [timer])

    def _schedule(self, record: wire.Schedule) -> wire.TimerAnswer:
        if status := self.schedule_refused.get(record.timer.envelope.id, self.schedule_status):
            return wire.TimerAnswer(record.ref, status)
        asked = record.timer.key, record.timer.envelope.id
        armed = (one for one in self.timers.values() if (one.key, one.envelope.id) == asked and one.sid != record.timer.sid)
        known = self.known.get(asked) or (next(armed, None) if record.idempotent else None)
        if known is not None:
            gone = known.sid in self.fired
            return wire.TimerAnswer(record.ref, wire.DUPLICATE, [] if gone else [known], known.sid if gone else "")
        if record.timer.sid in self.fired:
            return wire.TimerAnswer(record.ref, wire.SCHEDULED, [], wire.GONE)
        return wire.TimerAnswer(record.ref, wire.SCHEDULED, [self.timers.setdefault(record.timer.sid, record.timer)])


class FakeLog:
    """The broadcast log as a list, with the ids of `engine.store.broadcast_stream`; `failures` appends fail first, applied or not."""

    def __init__(self) -> None:
        self.entries: list[BroadcastEntry] = []
        self.known: dict[tuple[str, str, str], tuple[bytes, int]] = {}
        self.failures = 0
        self.applies = True
        self.attempts = 0

    async def append(self, entries: Sequence[tuple[BroadcastEntry, str]], *, repeated: bool = False) -> list[Appended]:
        self.attempts += 1
        failing = self.failures > 0
        self.failures -= failing
        made = [self._append(*entry, repeated) for entry in entries] if self.applies or not failing else []
        if failing:
            raise StorageUnavailable("no answer")
        return made

    def _append(self, entry: BroadcastEntry, id: str, repeated: bool) -> Appended:
        digest = entry.envelope.digest
        known = self.known.get((entry.tenant, entry.topic, id))
        if known is not None:
            if known[0] != digest:
                return Appended(wire.CONFLICT)
            return Appended(wire.ACCEPTED if repeated else wire.DUPLICATE, known[1])
        self.entries.append(entry)
        self.known[entry.tenant, entry.topic, id] = digest, len(self.entries)
        return Appended(wire.ACCEPTED, len(self.entries))


class FakeStorage:
    """Storage of a part of an edge; `away`: it does not answer."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise StorageUnavailable("no answer")


class FakeBodies(FakeStorage):
    """Bodies in offline streams, as a dict by number; `away`: storage does not answer."""

    def __init__(self) -> None:
        self.stored: dict[int, StoredMessage] = {}

    async def read(self, key: str, ranges: Sequence[tuple[int, int]], bytes_max: int) -> ReadBodies:
        self._check()
        numbers = [seq for first, last in ranges for seq in range(last, first - 1, -1)]
        found = [self.stored[seq] for seq in numbers if seq in self.stored]
        sizes = accumulate((len(stored.envelope.body) for stored in found), initial=0)
        read = [stored for stored, size in zip(found, sizes, strict=False) if size < bytes_max]
        return ReadBodies(read, len(read) < len(found))


async def no_actions(_timers: Sequence[wire.Timer]) -> tuple[list[str], list[str]]:
    """For steps that nobody carries out."""
    raise AssertionError("an action is stored")


async def no_entries(_key: str) -> AsyncIterator[UserEntry]:
    """Of a user in the streams for other systems."""
    for entry in ():
        yield entry


class FakeDeaths(FakeStorage):
    """Deaths that Ray exported, in a list; storage may be `away` or `full`."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self.full = False

    async def append(self, deaths: Sequence[Death]) -> bool:
        self._check()
        if not self.full:
            self.deaths += deaths
        return not self.full


class FakeActs(FakeStorage):
    """The log of acts, the newest first; `away`: storage does not answer."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    async def append(self, act: Act) -> None:
        self._check()
        self.acts.insert(0, msgspec.structs.replace(act, entry=f"{len(self.acts) + 1}-0"))

    async def page(self, before: str, count: int) -> list[Act]:
        self._check()
        return [act for act in self.acts if not before or act.at_ms < int(before.partition("-")[0])][:count]

    async def after(self, entry: str, count: int, before: str = "") -> list[Act]:
        return [act for act in reversed(await self.page(before, len(self.acts))) if act.at_ms > int(entry.partition("-")[0])][:count]

    async def about(self, key: str) -> AsyncIterator[Act]:
        for act in await self.after("0-0", len(self.acts)):
            if act.is_about(key):
                yield act


class FakeModel:
    """Groups texts by their first word, or answers what a test says; counts the questions."""

    def __init__(self) -> None:
        self.asked: list[list[list[str]]] = []
        self.answer: list[list[int]] | None = None
        self.silent = False

    async def group(self, windows: Sequence[Sequence[str]]) -> list[list[int]] | None:
        self.asked.append([list(window) for window in windows])
        if self.silent or self.answer is not None:
            return self.answer
        return [[hash(text.split()[0]) for text in window] for window in windows]


class FakeSums:
    """The sums of signals as a dict; `failures` batches fail first, applied or not."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.numbers: list[int] = []
        self.failures = 0

    async def add(self, writer: str, batch: CounterBatch) -> int:
        if batch.number not in self.numbers:
            self.numbers.append(batch.number)
            for name, amount in batch.sums.items():
                self.sums[name] = self.sums.get(name, 0) + amount
        self.failures -= 1
        if self.failures >= 0:
            raise StorageUnavailable("no answer")
        return 0

    async def known(self, tenant: str, names: Sequence[str]) -> set[str]:
        return {name for name in names if f"{tenant}:{name}" in self.sums}

    async def read(self, tenant: str, names: Sequence[str]) -> list[int]:
        if self.failures > 0:
            raise StorageUnavailable("no answer")
        return [self.sums.get(f"{tenant}:{name}", 0) for name in names]


class FakeFigures(FakeStorage):
    """What operators look at beside the status, as a test sets it; each of its methods is that of another store."""

    def __init__(self) -> None:
        self.points: list[bytes] = []
        self.tenants: dict[str, dict[UsageFigure, int]] = {}
        self.topics: dict[str, dict[str, int]] = {}  # by tenant, with their subscribers
        self.records: list[QuarantinedRecord] = []
        self.slow: list[SlowConnection] = []

    async def read(self) -> list[bytes]:
        self._check()
        return self.points

    async def largest(self, count: int) -> dict[str, dict[UsageFigure, int]]:
        self._check()
        return dict(list(self.tenants.items())[:count])

    async def page(self, tenant: str, after: str, count: int) -> tuple[dict[str, int], str, int]:
        self._check()
        topics = self.topics.get(tenant, {})
        begin = re.fullmatch("[0-9]{1,2}-([0-9]{1,20})", after or "0-0")
        if begin is None:
            raise Invalid("what the page before answered as `after`", "after")
        end = int(begin[1]) + count
        page = sorted(topics)[int(begin[1]) : end]
        return {topic: topics[topic] for topic in page}, f"0-{end}" if end < len(topics) else "", len(topics)

    async def newest(self, count: int) -> tuple[list[QuarantinedRecord], int]:
        self._check()
        return self.records[:count], len(self.records)

    async def slow_clients(self, count: int) -> list[SlowConnection]:
        if self.away:
            raise Unavailable("the controller does not answer")
        return self.slow[:count]


class FakeUsage:
    """How much each tenant has in storage, as a test sets it."""

    def __init__(self) -> None:
        self.figures: dict[UsageFigure, dict[str, int]] = {figure: {} for figure in FIGURES}
        self.topics: dict[str, set[str]] = {}  # that some user is subscribed to, by tenant

    async def of(self, tenant: str) -> dict[UsageFigure, int]:
        return {figure: used.get(tenant, 0) for figure, used in self.figures.items()}

    async def known_topics(self, tenant: str, topics: Sequence[str]) -> set[str]:
        return {topic for topic in topics if topic in self.topics.get(tenant, ())}

    async def full(self, limits: Mapping[UsageFigure, int]) -> dict[UsageFigure, frozenset[str]]:
        return {
            figure: frozenset(tenant for tenant, used in self.figures[figure].items() if used >= limit) for figure, limit in limits.items()
        }


def no_actor(role: str, *_: str) -> Any:
    """For `EdgePorts.find_actor`."""
    raise AssertionError(f"the {role} is asked for")


class NoLinks:
    """Links that lose everything."""

    def send_shard(self, index: int, record: Any, eager: bool) -> None: ...

    def ask_shard(self, index: int, records: Sequence[Any]) -> None: ...

    def ask_scheduler(self, index: int, records: Sequence[Any]) -> None: ...

    def need_slots(self, server: int, version: int) -> None: ...


class NoLog:
    """Where nothing is broadcast."""

    async def append(self, entries: Sequence[tuple[BroadcastEntry, str]], *, repeated: bool = False) -> list[Appended]:
        raise AssertionError("nothing is broadcast here")


class FakeRevocationLog(FakeStorage):
    """The revocations in storage, which may be away, full, or lose some."""

    def __init__(self) -> None:
        self.revocations: list[Revocation] = []
        self.full = False
        self._lost = 0

    async def append(self, revocations: Sequence[Revocation]) -> None:
        self._check()
        if self.full:
            raise Overloaded("too many tokens and users are revoked (revocations_max)", 60_000)
        self.revocations += revocations

    async def read(self, head: str) -> RevocationsRead:
        self._check()
        lost, _, known = head.partition("-")
        whole = lost != str(self._lost)
        return RevocationsRead(self.revocations[0 if whole else int(known) :], f"{self._lost}-{len(self.revocations)}", whole)

    def lose(self) -> None:
        """Storage has lost everything."""
        self.revocations.clear()
        self._lost += 1


class FakeLetters(FakeStorage):
    """Dead letters in a list, oldest first; storage may be away, or lose the answer of removals."""

    def __init__(self) -> None:
        self.letters: list[StoredLetter] = []
        self.removals_failing = 0

    async def page(self, tenant: str, user: str = "", after: str = "", count: int = 100, *, oldest_first: bool = False) -> LetterPage:
        self._check()
        ordered = self.letters if oldest_first else self.letters[::-1]
        places = [place for place, letter in enumerate(ordered) if letter.letter == after]
        rest = [letter for letter in ordered[places[0] + 1 if places else 0 :] if user in ("", letter.user)]
        return LetterPage(rest[:count], rest[count - 1].letter if len(rest) > count else "", len(self.letters))

    async def read(self, tenant: str, letters: Sequence[str]) -> list[StoredLetter | None]:
        self._check()
        known = {letter.letter: letter for letter in self.letters}
        return [known.get(letter) for letter in letters]

    async def remove(self, tenant: str, letters: Sequence[str]) -> int:
        self._check()
        self.removals_failing -= 1
        if self.removals_failing >= 0:
            raise StorageUnavailable("no answer")
        before = len(self.letters)
        self.letters = [letter for letter in self.letters if letter.letter not in letters]
        return before - len(self.letters)


class FakeQuestions(QuestionStore):
    """Questions in memory; none is ever due."""

    def __init__(self) -> None:
        super().__init__((), 0)
        self.asked: dict[tuple[str, str], Asked] = {}

    async def open(self, key: str, id: str, stored: StoredQuestion) -> Asked:
        asked = self.asked.setdefault((key, id), Asked(stored, None))
        if asked.stored is not stored:
            self.asked[key, id] = asked = Asked(msgspec.structs.replace(asked.stored, shared=True), asked.answer)
        return asked

    async def forget_refused(self, key: str, id: str, stored: StoredQuestion) -> None:
        if (asked := self.asked.get((key, id))) is not None and asked.stored == stored:
            del self.asked[key, id]

    async def decide(self, key: str, id: str, answer: GivenAnswer, now_ms: int, votes: int | None = None) -> GivenAnswer | None:
        asked = self.asked.get((key, id))
        if asked is None:
            return None
        self.asked[key, id] = Asked(asked.stored, asked.answer or answer)
        return asked.answer or answer

    async def read(self, key: str, id: str) -> Asked | None:
        return self.asked.get((key, id))

    async def are_open(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        return [asked is not None and asked.answer is None for asked in map(self.asked.get, names)]

    async def all_of(self, key: str) -> dict[str, Asked | None]:
        return {id: asked for (user, id), asked in self.asked.items() if user == key}

    async def forget(self, key: str, *ids: str) -> None:
        for id in ids:
            self.asked.pop((key, id), None)

    async def erase(self, key: str) -> None:
        await self.forget(key, *await self.all_of(key))


class FakeGroups(FakeStorage):
    """Groups of consumers whose events are in a list; a group is held until its consumer leaves."""

    def __init__(self) -> None:
        self.events: list[GroupEvent] = []
        self.known: dict[tuple[str, str], tuple[str, Position]] = {}

    async def take(
        self,
        tenant: str,
        group: str,
        consumer: str,
        reached: Position | None = None,
        *,
        oldest: bool = False,
        leave: bool = False,
        outcomes: bool = False,
    ) -> Taken | None:
        self._check()
        if (tenant, group) not in self.known and len(self.known) >= 16:
            return None
        holder, position = self.known.get((tenant, group), ("", Position(("0-0", "0-0"))))
        position = reached or position
        if holder in ("", consumer):
            holder = "" if leave else consumer
        self.known[tenant, group] = (holder, position)
        return Taken(holder, position, lost=False)

    async def look(self, tenant: str, position: Position, count: int) -> Look:
        self._check()
        places = [place for place, event in enumerate(self.events) if event.position == position]
        found = self.events[places[0] + 1 if places else 0 :][:count]
        return Look(found, found[-1].position if found else position, False)

    async def groups(self, tenant: str) -> list[EventGroup]:
        self._check()
        return [EventGroup(name, position, holder, {}) for (of, name), (holder, position) in self.known.items() if of == tenant]

    async def drop(self, tenant: str, group: str) -> bool:
        self._check()
        return self.known.pop((tenant, group), None) is not None


class FakeArrivals(FakeStorage):
    """Of events without an id, and of those that have cancelled."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], int] = {}

    async def first(self, tenant: str, content: str, now_ms: int) -> int:
        self._check()
        return self.kept.setdefault((tenant, content), now_ms)

    async def known(self, tenant: str, content: str) -> bool:
        self._check()
        return (tenant, content) in self.kept

    def forget(self) -> None:
        """Ten minutes pass."""
        self.kept.clear()


class FakeAddresses(FakeStorage):
    """Addresses of users, by mailbox key; storage may be away."""

    def __init__(self) -> None:
        self.kept: dict[str, Addresses] = {}
        self.asked = Counter[str]()
        self.asks = 0  # the clock of this storage
        self.erased: dict[str, int] = {}

    async def read(self, key: str) -> Addresses:
        self._check()
        return self.kept.get(key, NO_ADDRESSES)

    async def change(self, key: str, change: Callable[[Addresses], Addresses]) -> Addresses:
        self._check()
        self.kept[key] = change(self.kept.get(key, NO_ADDRESSES))
        return self.kept[key]

    async def confirm(self, key: str, email: str, asked_ms: int) -> bool:
        if asked_ms <= self.erased.get(key, -1):
            return False
        await self.change(key, lambda found: msgspec.structs.replace(found, email=email))
        return True

    async def count_asked(self, limits: Mapping[str, int], _span_ms: int) -> MailAsked:
        self._check()
        self.asks += 1
        if any(self.asked[name] >= limit for name, limit in limits.items()):
            return MailAsked(7000, self.asks)
        self.asked.update(list(limits))
        return MailAsked(0, self.asks)

    async def uncount_asked(self, names: Iterable[str]) -> None:
        self.asked.subtract(list(names))

    async def count_told(self, key: str, channel: str, cap: ChannelCap, step: str) -> CapCount:
        raise AssertionError("steps of the tests of edges have no cap")

    async def erase(self, key: str) -> None:
        self._check()
        self.erased[key] = self.asks
        self.kept.pop(key, None)


class OneRequest:
    """A client that makes one request, and is closed with the answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with self._client as client:
            return await client.request(method, path, **options)

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    put = partialmethod(request, "PUT")
    patch = partialmethod(request, "PATCH")
    delete = partialmethod(request, "DELETE")


class EdgeWorld:
    """One edge and its peers. `config` settings as given, with small times where tests wait for them."""

    def __init__(self, config: Config, shards: int, storage: Redis | None = None) -> None:
        self.config = config
        self.slots_wanted: list[int] = []
        self.shards = [FakeShard(index, self) for index in range(shards)]
        self.scheduler = FakeScheduler(self)
        self.log = FakeLog()
        self.ready: dict[str, bool] = {"storage": True, "shard-0": True}
        self.drains: dict[int, tuple[str, int]] = {}  # by edge: why it is refused, its connections
        self.scaled: list[tuple[dict[str, int], str]] = []  # numbers and who wanted them; none for a rebalancing
        self.upgrades: list[str] = []  # who wanted them
        self.status: dict[str, Any] = {"version": "test", "edges": [{"index": index} for index in range(config.edges)]}
        self.gateway = Gateway(
            config,
            RoutingTable([spread(1)]),
            EdgeContext("e0-test", wall_ms, clock, MessageIds(), MessageIds().short),
            self,
            self.log,
            EdgeMetrics("edge-0"),
        )
        self.sums = FakeSums()
        self.usage: Any = FakeUsage() if storage is None else TenantUsage(storage)
        sums: Any = self.sums if storage is None else CounterSums(storage, config.tenant_signal_names_max)
        self.signals = CounterSignals(config, sums, "e0-test", clock, self.gateway.tenant_quotas)
        keyed = config if config.jwt_secret else msgspec.structs.replace(config, jwt_secret=SECRET)
        self.authenticator = Authenticator(keyed, self.gateway.revoked)
        self.revocation_log = FakeRevocationLog()
        self.revocations = token_revocation.TokenRevocations(config, self.revocation_log, self.authenticator, self.gateway)
        self.dead_letters: Any = FakeLetters() if storage is None else DeadLetterStream(storage, config)
        self.questions = FakeQuestions() if storage is None else QuestionStore([storage], config.questions_per_user_max)
        self.event_groups: Any = FakeGroups() if storage is None else EventStreams(storage, config, wall_ms)
        self.arrivals = FakeArrivals()
        self.addresses = FakeAddresses()
        self.bodies = FakeBodies()
        self.model = FakeModel()
        self.rules_store = FakeRulesStore()
        self.sample_store = FakeSampleStore()
        self.rules = RulesEndpoint(config, self.gateway, self.rules_store, self.sample_store)
        self.tenant_stores: dict[str, FakeRulesStore] = {}
        self.tenant_rules = TenantRules(config, self.rules, self.tenant_store, self.tenant_stamps)
        self.link_key_away = False
        remembered_key = RememberedKey(self.link_key, self.gateway.clock)
        self.figures = figures = FakeFigures()
        self.acts = FakeActs()
        self.deaths = FakeDeaths()
        ports = EdgePorts(
            config,
            self.gateway,
            self.authenticator,
            storage or Redis(),
            (),
            no_actor,
            "edge-0",
            self.current_status,
            figures.slow_clients,
        )
        self.features = [
            traces.on_edge(ports),
            audit.feature_of(self.gateway, self.acts if storage is None else AuditLog(storage, config)),
            token_revocation.feature_of(self.revocations),
            policy.feature_of(remembered_key),
            rules.feature_of(ports, self.rules, self.tenant_rules, self.arrivals, remembered_key),
            reach.feature_of(ports, self.addresses, no_actions, remembered_key, remembered_key),
            signals.feature_of(ports, self.signals),
            digest.feature_of(ports, self.bodies, self.model, self.addresses, remembered_key),
            history.feature_of(None),
            EdgeFeature("dead_letters", lambda access: dead_letters.table(access, self.dead_letters)),
            EdgeFeature("event_groups", lambda access: event_groups.table(access, self.event_groups)),
            inbox.feature_of(config, self.gateway),
            EdgeFeature("snooze", lambda access: snooze.table(access, snooze.Snoozes(config, self.gateway))),
            questions.feature_of(config, self.gateway, self.questions),
            growing.feature_of(config, self.gateway, FakeGrowths(config) if storage is None else GrowingStore([storage], config)),
            EdgeFeature("subscriptions", lambda access: subscriptions.table(access, self.figures)),
            user_data.feature_of(ports, self.bodies, no_entries if storage is None else partial(find_user_entries, storage)),
            EdgeFeature("inspection", lambda access: inspection.table(access, self._inspection())),
            ray_events.feature_of(config, self.deaths),
            sources.on_edge(ports),
        ]
        self.port = 0
        self.server: http_server.EdgeServer

    async def current_status(self) -> dict[str, Any]:
        await until(lambda: self.status is not None)
        return self.status

    def tenant_store(self, tenant: str) -> FakeRulesStore:
        return self.tenant_stores.setdefault(tenant, FakeRulesStore())

    async def tenant_stamps(self) -> dict[str, str]:
        return {tenant: store.stored.stamp for tenant, store in self.tenant_stores.items() if store.stored.stamp}

    async def link_key(self) -> bytes:
        if self.link_key_away:
            raise StorageUnavailable("unsubscribe key: away")
        return b"k" * 32

    async def connections_of(self, tenant: str) -> int:
        return self.gateway.connections_of[tenant]

    def _inspection(self) -> inspection.Inspection:
        return inspection.Inspection(self.config, *(self.figures,) * 3, self.figures.slow_clients)

    # -- the gateway's links -----------------------------------------------------------------------------------------------
    async def ask_controller(self, method: str, *arguments: Any) -> Any:
        """As `Controller` answers."""
        match method, *arguments:
            case "drain_edge", index:
                return self.drains[index]
            case "scale", shards, schedulers, edges, by, force:
                if (shards or 0) > 8 and not force:
                    return {"refused": "too many shards", "fits": {"shards": 8, "schedulers": 8, "edges": 8}}
                numbers = {"shards": shards, "schedulers": schedulers, "edges": edges}
                self.scaled.append(({name: number for name, number in numbers.items() if number is not None}, by))
            case "rebalance", by:
                self.scaled.append(({}, by))
            case "upgrade", by:
                self.upgrades.append(by)
        return {"settled": False}

    def services(self, status: Status, ready: Ready) -> EdgeServices:
        return EdgeServices(
            self.gateway,
            self.authenticator,
            self.config,
            EngineControls(
                status,
                self.connections_of,
                ready,
                self.usage,
                self.ask_controller,
            ),
            self.features,
        )

    def send_shard(self, index: int, record: Any, _eager: bool) -> None:
        self.ask_shard(index, [record])

    def ask_shard(self, index: int, records: Sequence[Any]) -> None:
        """A shard reads everything that an edge sends: where it cannot, the link ends for all."""
        for record in wire.to_shard.decode(wire.encode(records)):
            self.shards[index].take(record)

    def ask_scheduler(self, _index: int, records: Sequence[Any]) -> None:
        for record in wire.to_scheduler.decode(wire.encode(records)):
            self.scheduler.take(record)

    def need_slots(self, _server: int, version: int) -> None:
        self.slots_wanted.append(version)

    @property
    def shard(self) -> FakeShard:
        return self.shards[0]

    def move_all_to(self, shard: int, version: int) -> None:
        """A newer slot map arrives: every slot belongs to `shard`."""
        self.gateway.set_slots(SlotMap(version, (shard,) * SLOTS, shard + 1, formats=FORMATS))

    # -- clients -----------------------------------------------------------------------------------------------------------
    def token(self, user: str = "u1", scopes: str = "connect publish admin metrics", ttl_s: float = 600, **claims: Any) -> str:
        return mint(SECRET, user, scopes.split(), ttl_s, now_s=time.time(), **claims)

    def url(self, path: str = "", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def connect(self, user: str = "u1", query: str = "", **options: Any) -> connect:
        """An independent WebSocket client, of the websockets library."""
        headers = {"Authorization": f"Bearer {options.pop('token', None) or self.token(user)}"}
        options.setdefault("additional_headers", headers)
        options.setdefault("ping_interval", None)
        options.setdefault("compression", None)
        options.setdefault("max_size", None)
        options.setdefault("proxy", None)
        return connect(self.url(f"/v1/ws{query}", "ws"), **options)

    def http(self, user: str = "u1", **claims: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token(user, **claims)}"}
        return httpx.AsyncClient(base_url=self.url(), headers=headers, timeout=DEADLINE_S, trust_env=False, verify=False)

    def once(self, user: str = "u1", **claims: Any) -> OneRequest:
        return OneRequest(self.http(user, **claims))

    async def publish(self, user: str = "u1", count: int = 1, **fields: Any) -> list[int]:
        """Publish messages for a user; their sequence numbers."""
        async with self.http("publisher") as client:
            items = [{"user": user, "type": "test.event", "data": {"n": n}, **fields} for n in range(count)]
            answer = await client.post("/v1/notifications", json=items)
        assert answer.status_code == 202, answer.text
        return [result["seq"] for result in answer.json()["results"]]

    async def raw_unasked(self) -> RawClient:
        """A TCP connection that has sent nothing yet."""
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return RawClient(sock)

    async def raw(self, user: str = "u1", receive_buffer_bytes: int = 0) -> RawClient:
        """A WebSocket client that sends whatever bytes it is told, and reads only when it is told."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = RawClient(sock)
        await client.ask(self.token(user))
        await client.accepted()
        return client


_FULL_S = 0.5
"""A reader on the same machine that takes nothing for so long is not going to."""


class RawClient:
    """RFC 6455 by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    async def ask(self, token: str) -> None:
        """Send the handshake."""
        head = (
            f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        await self.send(head.encode())

    async def accepted(self) -> None:
        """Read the answer to the handshake."""
        assert (answer := await self.head()).startswith(b"HTTP/1.1 101"), answer

    async def head(self) -> bytes:
        """Read the head of a response."""
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        answer, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return answer

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def send_until_full(self, data: bytes) -> int:
        """Send it again and again, until nothing has been taken for a while; how many bytes were."""
        sent = 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                async with asyncio.timeout(_FULL_S):
                    await self.send(data)
                sent += len(data)
        return sent

    async def _more(self) -> None:
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1 << 16), DEADLINE_S)
        if not data:
            raise EOFError
        self._buffer += data

    async def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: its opcode and payload."""
        first, second = await self.read(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.read(8))
        return first & 0x0F, await self.read(size)

    async def close_code(self) -> int:
        """Read until the close frame; its code."""
        while True:
            opcode, payload = await self.frame()
            if opcode == 8:
                return int(struct.unpack("!H", payload[:2])[0])

    def close(self, *, reset: bool = False) -> None:
        """Close. `reset`: as a process that dies would."""
        if reset:
            reset_at_close(self._sock)
        self._sock.close()


def reset_at_close(sock: socket.socket) -> None:
    """Let it be closed as by a process that dies: a client that only closes may have ended its sending half."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def client_frame(payload: bytes, opcode: int = 1, *, fin: bool = True, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    head = bytes([opcode | (0x80 if fin else 0)])
    size = len(payload)
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += b"\xfe" + struct.pack("!H", size)
    else:
        head += b"\xff" + struct.pack("!Q", size)
    key = (mask * (size // 4 + 1))[:size]
    return head + mask + (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


@contextlib.asynccontextmanager
async def edge_world(
    shards: int = 1,
    wrap: Callable[[Any], Any] = lambda application: application,
    short: bool = True,
    storage: Redis | None = None,
    without: Collection[str] = (),
    **settings: Any,
) -> AsyncIterator[EdgeWorld]:
    """A running edge; everything it started has ended afterwards. `wrap`: put something around the application; `short`: let
    plain requests pass it by, as an edge does; `storage`: a real one, for signals and the figures of tenants; `without`: these features."""
    many = {"connections_per_s": 10_000, "connections_of_user_burst": 10_000}  # tests are one user who connects again and again
    config = Config(jwt_secret=SECRET, drain_ms=1000, **(many | settings))
    world = EdgeWorld(config, shards, storage)
    world.features = [feature for feature in world.features if feature.name not in without]

    async def ready() -> dict[str, bool]:
        return world.ready

    listener = http_server.bind(config, 0)
    world.port = listener.getsockname()[1]
    application = app(world.services(world.current_status, ready))
    fast_paths = application.state.fast_paths if short else None
    world.server = http_server.build(wrap(application), config, fast_paths)
    ticker = asyncio.gather(
        world.gateway.run(),
        world.gateway.tenant_quotas.follow(world.usage),
        *(feature.run() for feature in world.features if feature.run is not None),
    )
    serving = asyncio.ensure_future(world.server.serve(sockets=[listener]))
    try:
        await until(lambda: world.server.started)
        yield world
    finally:
        world.server.should_exit = True
        await asyncio.wait((serving,), timeout=3)
        world.server.force_exit = True  # a failed test may have left clients behind
        await asyncio.wait_for(serving, DEADLINE_S)
        ticker.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(ticker, return_exceptions=True)


@contextlib.contextmanager
def standing_still(world: EdgeWorld) -> Iterator[None]:
    """No time passes for what an edge allows per second: on a busy machine, that would be more than a test expects."""
    gateway, quotas = world.gateway, world.gateway.tenant_quotas
    of_gateway, of_quotas, now_ms = gateway.clock, quotas._clock, gateway.clock()
    gateway.clock = quotas._clock = lambda: now_ms
    try:
        yield
    finally:
        gateway.clock, quotas._clock = of_gateway, of_quotas


async def frame_of(socket: ClientConnection, kind: str = "messages") -> dict[str, Any]:
    """The next frame of a type; others are skipped."""
    while True:
        frame: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), DEADLINE_S))
        if frame["type"] == kind:
            return frame


async def closed_with(socket: ClientConnection) -> tuple[int, str]:
    """Read until the server closes; its code and reason."""
    while True:
        try:
            await asyncio.wait_for(socket.recv(), DEADLINE_S)
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise  # the transport ended without a close frame
            return closed.rcvd.code, closed.rcvd.reason
