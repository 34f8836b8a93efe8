"""Every message counts in one window, and every window ends, whatever happens to pages, journal, user and slot meanwhile."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.commit.group import Group
from engine.core.journal import rebuild
from engine.core.journal.journal_records import Erased, StoredMessage, keys_of
from engine.core.model.envelope import Merge
from engine.core.model.routing import slot_of, spread
from engine.core.policy.profile import Profile, QuietHours
from engine.core.shard.mailbox_store import Swept
from engine.core.wire.records import Erase, GetProfile, SetProfile
from engine.features.windows.core.aggregation import windows_of
from engine.features.windows.core.aggregation_window import Counted, Ended
from tests.support.shard_world import World
from tests.support.stored import decode_journal

USERS = ("u", "v", "w")
USER = st.sampled_from(USERS)
DAY_MS = 86_400_000
STORAGE = ("journal", "pages", "streams", "ids", "looks", "floors", "windows")


class WindowMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World(recent_ids=4)
        self.ids: list[tuple[str, str, Merge]] = []  # user, collapse key, window: by the number of the message
        self.open: dict[str, dict[str, list[str]]] = {user: {} for user in USERS}  # by the journal: ids of each open window
        self.conns: dict[str, int] = {}
        self.older: dict[str, Any] = {}  # what storage may fall back to

    # -- users and publishers -----------------------------------------------------------------------------------------
    @rule(user=USER, collapse=st.sampled_from("abc"), leading=st.booleans(), ms=st.sampled_from([300, 1000]))
    def post(self, user: str, collapse: str, leading: bool, ms: int) -> None:
        self.ids.append((user, collapse, Merge(ms, leading)))
        self.send(len(self.ids) - 1)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def post_again(self, data: st.DataObject) -> None:
        self.send(data.draw(st.integers(0, len(self.ids) - 1)))

    def send(self, number: int) -> None:
        user, collapse, merge = self.ids[number]
        self.world.post(user, f"m{number}", digest=b"%08d" % number, ttl_ms=30 * DAY_MS, collapse=collapse, merge=merge)

    @rule(user=USER)
    def connect_and_acknowledge(self, user: str) -> None:
        if user not in self.conns:
            self.conns[user] = conn = 1 + max(self.conns.values(), default=0)
            self.world.attach(conn, user)
            self.work()
        mailbox = self.world.core.mailboxes.get(f"t:{user}")
        if mailbox is not None:
            self.world.ack(self.conns[user], mailbox.head)
            self.world.now_ms += self.world.config.ack_journal_ms

    @rule(user=USER, quiet=st.booleans())
    def want(self, user: str, quiet: bool) -> None:
        self.world.refs += 1
        minute = self.world.now_ms // 60_000 % 1440
        profile = Profile(quiet=(QuietHours(minute, (minute + 2) % 1440),)) if quiet else None
        self.world.tell(SetProfile(self.world.refs, f"t:{user}", profile))

    @rule(user=USER)
    def erase(self, user: str) -> None:
        self.world.refs += 1
        self.world.tell(Erase(self.world.refs, f"t:{user}"))

    # -- the shard and its storage ------------------------------------------------------------------------------------
    @rule()
    def work(self) -> None:
        while self.world.fetch() or self.world.commit(self.check):
            pass
        self.world.said()

    @rule(ms=st.sampled_from([1, 300, 1000, 120_000, -200]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms
        self.world.core.tick(self.world.now_ms)

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.world.checkpoint(full=full, meanwhile=lambda: self.world.commit(self.check))

    @rule(full=st.booleans(), written=st.sets(st.sampled_from([f"t:{user}" for user in USERS])), dies=st.booleans())
    def checkpoint_is_written_in_part(self, full: bool, written: set[str], dies: bool) -> None:
        store = self.world.core.mailbox_store
        checkpoint = store.take_checkpoint(full, 1000)
        if checkpoint is None:
            return
        while store.fill_checkpoint(1, self.world.now_ms):
            self.world.commit(self.check)
        for spill in checkpoint.spills:
            if spill.key in written:
                self.world.store(spill)
        if dies:
            self.crash(appended=False)
        else:
            store.checkpoint_failed()

    @rule()
    def evict(self) -> None:
        self.world.core.evict(self.world.now_ms, 1 << 40)

    @rule(user=USER)
    def sweep(self, user: str) -> None:
        """Nothing has happened to the user for `user_forget_s`."""
        page = self.world.page(f"t:{user}")
        if page is not None:
            self.world.core.swept(Swept(f"t:{user}", page, False, 0))

    @rule()
    def storage_refuses_a_group(self) -> None:
        if self.world.new_group() is not None:
            self.world.core.group_refused()
            self.world.core.storage_back()

    @rule(appended=st.booleans())
    def crash(self, appended: bool) -> None:
        if appended:
            self.world.commit(self.check, only_append=True)
        self.conns.clear()
        self.world.crash()

    @rule(users=st.sets(USER, min_size=1), handed_over=st.booleans())
    def slots_go_and_come_back(self, users: set[str], handed_over: bool) -> None:
        world, core = self.world, self.world.core
        slots = {slot_of(f"t:{user}") for user in users}
        core.release(sorted(slots))
        self.conns = {user: conn for user, conn in self.conns.items() if user not in users}
        while core.slot_release.waits():
            self.work()
        core.slot_release.quiet()
        checkpoint = core.slot_release.take_checkpoint()
        assert checkpoint is not None
        while core.mailbox_store.fill_checkpoint(1, world.now_ms):
            core.tick(world.now_ms)
            world.commit(self.check)
        for spill in checkpoint.spills:
            world.store(spill)
        world.journal = [
            (number, payload) for number, payload in world.journal if slot_of(keys_of(decode_journal(payload))[0]) not in slots
        ]
        while core.mailbox_store.checkpoint_done(1):
            pass
        core.slot_release.written()
        core.slot_release.end(handed_over=handed_over)
        for key, closes_ms in world.windows.items():
            if slot_of(key) in slots:
                core.mailbox_store.judge.deadlines.stored(slot_of(key), [(key, closes_ms)])
        core.adopt(spread(1), 1, [], [], world.now_ms, told=False)

    @rule()
    def storage_is_copied(self) -> None:
        self.older = deepcopy({name: getattr(self.world, name) for name in STORAGE})

    @precondition(lambda self: self.older)
    @rule()
    def storage_loses_what_came_since_and_the_shard_restores_it(self) -> None:
        self.world.tell(*(GetProfile(0, f"t:{user}") for user in USERS))  # what is not in memory is lost
        self.work()
        for name, value in self.older.items():
            setattr(self.world, name, value)
        self.world.journal += [
            (-1, payload) for mailbox in self.world.core.mailboxes.values() for payload in rebuild.payloads([mailbox], 1000)
        ]
        self.older = {}
        self.crash(appended=False)

    # -- the model ----------------------------------------------------------------------------------------------------
    def check(self, group: Group) -> None:
        """The group is in the journal."""
        for record, following in pairwise([*group.records, None]):
            assert record is not None
            windows = self.open[record.key.removeprefix("t:")]
            if isinstance(record, Counted):
                ids = windows.setdefault(record.item.envelope.collapse, [])
                assert record.item.envelope.id not in ids
                ids.append(record.item.envelope.id)
            elif isinstance(record, Ended):
                ids = windows.pop(record.collapse)
                if len(ids) > 1:
                    assert isinstance(following, StoredMessage)
                    assert json.loads(b"{%b}" % following.envelope.body)["count"] == len(ids)
        for note in group.riders.notes:
            if isinstance(note.record, Erased):
                self.open[note.record.key.removeprefix("t:")] = {}
                self.older = {}  # an erasure that storage loses is not restored

    @invariant()
    def windows_have_what_the_journal_says(self) -> None:
        store = self.world.core.mailbox_store
        for user, expected in self.open.items():
            mailbox = store.mailboxes.get(f"t:{user}")
            if mailbox is not None:
                found = windows_of(mailbox)
                counts = {} if found is None else {collapse: window.count for collapse, window in found.open.items()}
                assert counts == {collapse: len(ids) for collapse, ids in expected.items()}
        assert store.memory.held == sum(mailbox.held for mailbox in store.mailboxes.values())

    def teardown(self) -> None:
        self.work()
        for _ in range(4):
            self.time_passes(DAY_MS // 4)
            self.work()
            self.time_passes(0)
            self.work()
        assert not any(self.open.values()), "a window has not ended"


WindowMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestWindowsEndOnce = WindowMachine.TestCase
