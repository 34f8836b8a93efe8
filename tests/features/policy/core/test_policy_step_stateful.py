"""Caps over random histories of a whole shard, with crashes between append and commit, refused groups, pages and evictions: every message
the journal has was allowed by a model that remembers everything, and every one turned away was not."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.commit.group import Group
from engine.core.journal.journal_records import Decided, StoredMessage
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.constants import HIGH, LOW, NORMAL
from tests.support.shard_world import World

HOUR_MS = 3_600_000
CATEGORIES = {
    "touch": Category(cap=2, cap_ms=24 * HOUR_MS, same_type_ms=72 * HOUR_MS),
    "social": Category(cap=3, cap_ms=HOUR_MS),
    "law": Category(mandatory=True),
    "": Category(),
}
USERS = ("ann", "bob")


class Model:
    """Everything that anybody ever got."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, int, str, str]] = []

    def allows(self, key: str, name: str, type_: str, priority: int, now_ms: int) -> bool:
        limits = CATEGORIES[name]
        if priority == HIGH or limits.mandatory:
            return True
        mine = [(at_ms, category, kind) for user, at_ms, category, kind in self.delivered if user == key]
        if limits.cap and sum(category == name and at_ms > now_ms - limits.cap_ms for at_ms, category, _ in mine) >= limits.cap:
            return False
        same = (kind == type_ and category == "touch" and at_ms > now_ms - limits.same_type_ms for at_ms, category, kind in mine)
        return not (limits.same_type_ms and any(same))


class CapMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World()
        self.model = Model()
        self.posts: dict[str, tuple[str, str, str, int]] = {}

    @rule(
        user=st.sampled_from(USERS),
        name=st.sampled_from(["touch", "touch", "social", "social", "law", ""]),
        type_=st.sampled_from(["a", "b", "c"]),
        priority=st.sampled_from([HIGH, NORMAL, NORMAL, LOW]),
        count=st.integers(1, 4),
    )
    def publish(self, user: str, name: str, type_: str, priority: int, count: int) -> None:
        for _ in range(count):
            id = f"m{len(self.posts)}"
            self.posts[id] = (f"t:{user}", name, type_, priority)
            self.post(id)

    def post(self, id: str) -> None:
        key, name, type_, priority = self.posts[id]
        policy_terms = PolicyTerms(name, CATEGORIES[name]) if name else None
        self.world.post(key[2:], id, priority=priority, policy_terms=policy_terms, ttl_ms=1 << 40, more=b',"type":"%b"' % type_.encode())

    @precondition(lambda self: self.posts)
    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        self.post(data.draw(st.sampled_from(sorted(self.posts))))

    @rule(ms=st.sampled_from([1, 1000, HOUR_MS // 2, HOUR_MS, 23 * HOUR_MS, 71 * HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    @rule()
    def work(self) -> None:
        while self.world.fetch() or self.commit():
            pass

    def commit(self, *, only_append: bool = False) -> bool:
        return self.world.commit(self.check, only_append=only_append)

    def check(self, group: Group) -> None:
        """The group is in the journal now: so it happened."""
        for record in group.records:
            assert isinstance(record, StoredMessage | Decided)
            id = record.envelope.id if isinstance(record, StoredMessage) else record.entry.id
            key, name, type_, priority = self.posts[id]
            allowed = self.model.allows(key, name, type_, priority, self.world.now_ms)
            assert allowed is isinstance(record, StoredMessage), record
            if allowed and priority != HIGH and name != "law":
                self.model.delivered.append((key, self.world.now_ms, name, type_))

    @rule()
    def storage_refuses_a_group(self) -> None:
        self.world.fetch()
        if self.world.core.take_group(self.world.now_ms) is not None:
            self.world.core.group_refused()
            self.world.core.storage_back()

    @rule(written=st.sampled_from(["nothing", "journal", "checkpoint"]))
    def crash(self, written: str) -> None:
        self.world.fetch()
        if written == "journal":
            self.commit(only_append=True)
        elif written == "checkpoint":
            self.world.checkpoint(meanwhile=self.commit)
        self.world.crash()

    @rule(full=st.booleans())
    def checkpoint_and_evict(self, full: bool) -> None:
        self.world.checkpoint(full=full, meanwhile=self.commit)
        self.world.evict()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.work()
            for user in USERS:
                user_state = getattr(self.world.core.mailboxes.get(f"t:{user}"), "user_state", None)
                assert user_state is None or len(user_state.timeline) <= self.world.config.decisions_max


TestCaps = CapMachine.TestCase
TestCaps.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
