"""ShardCore against a model of its promises, over random histories with crashes at every point between two writes."""

from __future__ import annotations

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.commit.group import Group
from engine.core.journal.journal_records import page_of
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.envelope import Merge
from engine.core.wire.records import ACCEPTED, DUPLICATE, MERGED, OVERLOADED, Deliver, GapRange, Hangup, Posted, Welcome
from engine.features.windows.core.window_closer import ENTRY_BYTES
from tests.support.shard_world import Client, World

USERS = ("ann", "bob")
WINDOW = 4
NEVER_MS = 10**12
MERGE_MS = 400


class ShardMachine(RuleBasedStateMachine):
    """Two users, a handful of connections, a publisher that repeats itself, a storage that may fail, a process that dies."""

    @initialize()
    def start(self) -> None:
        self.world = World(
            window=WINDOW,
            offline_max=1000,
            hot_messages_max=6,
            commit_records_max=5,
            connections_per_user_max=3,
            conflate_offline_min=2,
            shard_memory_messages_max=24,
        )
        self.clients: dict[int, Client] = {}
        self.conns = 0
        self.posts: dict[int, tuple[str, str]] = {}  # ref -> (user, id)
        self.numbered: dict[str, dict[int, str]] = {user: {} for user in USERS}  # accepted: seq -> id
        self.seqs: dict[tuple[str, str], int] = {}
        self.acked: dict[str, set[int]] = {user: set() for user in USERS}  # by a client, in this incarnation
        self.ever_acked: dict[str, set[int]] = {user: set() for user in USERS}
        self.ids = 0
        self.keys: dict[tuple[str, str], str] = {}  # (user, id) -> collapse key
        self.gone: dict[str, set[int]] = {user: set() for user in USERS}  # superseded, as announced
        self.windows: dict[tuple[str, str], tuple[str, Merge]] = {}  # (user, id) -> collapse key and window
        self.counts: dict[str, dict[str, int]] = {user: {} for user in USERS}  # of shown messages: id -> how many it stands for
        self.replaced: dict[str, set[str]] = {user: set() for user in USERS}

    # -- what happens -----------------------------------------------------------------------------------------------------

    @rule(user=st.sampled_from(USERS), priority=st.sampled_from([HIGH, NORMAL, LOW]), collapse=st.sampled_from(["", "", "a", "b"]))
    def post(self, user: str, priority: int, collapse: str) -> None:
        self.ids += 1
        id = f"i{self.ids}"
        self.keys[user, id] = collapse
        self.posts[self.world.post(user, id, ttl_ms=NEVER_MS, priority=priority, collapse=collapse)] = (user, id)

    @rule(user=st.sampled_from(USERS), collapse=st.sampled_from(["w", "x", "y"]), leading=st.booleans())
    def post_into_a_window(self, user: str, collapse: str, leading: bool) -> None:
        self.ids += 1
        id = f"i{self.ids}"
        self.windows[user, id] = collapse, Merge(MERGE_MS, leading)
        self.post_window(user, id)

    def post_window(self, user: str, id: str) -> None:
        collapse, merge = self.windows[user, id]
        more = b',"data":null'
        self.posts[self.world.post(user, id, ttl_ms=NEVER_MS, collapse=collapse, merge=merge, more=more)] = (user, id)

    @rule()
    def tick(self) -> None:
        self.world.core.tick(self.world.now_ms)
        self.hear(self.world.said())

    @rule(user=st.sampled_from(USERS), data=st.data())
    def post_again(self, user: str, data: st.DataObject) -> None:
        known = [id for other, id in self.posts.values() if other == user]
        if known:
            id = data.draw(st.sampled_from(known))
            if (user, id) in self.windows:
                self.post_window(user, id)
                return
            self.posts[self.world.post(user, id, ttl_ms=NEVER_MS)] = (user, id)

    @rule(user=st.sampled_from(USERS), cursor=st.sampled_from(["none", "mine", "old epoch", "future"]))
    def attach(self, user: str, cursor: str) -> None:
        self.conns += 1
        self.clients[self.conns] = Client(user)
        head = max(self.numbered[user], default=0)
        mine = 0
        while mine + 1 in self.ever_acked[user]:
            mine += 1
        if cursor == "none":
            self.world.attach(self.conns, user)
        elif cursor == "mine":
            self.hear(self.world.settle())  # what was attached before may see these numbers before the cursor settles them
            self.world.attach(self.conns, user, mine)
            self.world.fetch()  # a connection that ends before its page is read has presented nothing
            self.acked[user].update(range(1, mine + 1))
        elif cursor == "old epoch":
            self.world.attach(self.conns, user, 1, epoch="e0")
        else:
            self.world.attach(self.conns, user, head + 1000)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), cumulative=st.booleans())
    def ack(self, data: st.DataObject, cumulative: bool) -> None:
        self.listen()  # what was said before this ACK may still speak of its messages
        if not self.clients:
            return
        conn = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients[conn]
        if not client.unacked:
            return
        seq = data.draw(st.sampled_from(sorted(client.unacked)))
        if cumulative:
            self.world.ack(conn, seq)
            # A cumulative ACK speaks for everything below, seen here or elsewhere.
            handled = set(range(1, seq + 1))
        else:
            self.world.ack_ids(conn, self.numbered[client.user][seq])
            # A gap is said before anything after it: who acknowledges a later number has handled it.
            handled = {seq} | {gone for gone in self.gone[client.user] if gone < seq}
        client.unacked -= handled
        self.acked[client.user] |= handled
        self.ever_acked[client.user] |= handled
        self.listen()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        self.listen()
        if not self.clients:
            return
        conn = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients[conn]
        if client.unacked:
            seq = data.draw(st.sampled_from(sorted(client.unacked)))
            self.world.nack(conn, self.numbered[client.user][seq])
            client.unacked.discard(seq)
            self.ever_acked[client.user].add(seq)
            self.listen()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        conn = data.draw(st.sampled_from(sorted(self.clients)))
        self.world.detach(conn)
        del self.clients[conn]

    @rule()
    def work(self) -> None:
        self.hear(self.world.settle())

    @rule(ms=st.sampled_from([50, 500, 2000]))
    def time_passes(self, ms: int) -> None:
        self.hear(self.world.wait(ms))

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.world.checkpoint(full=full)

    @rule(wanted=st.booleans())
    def evict(self, wanted: bool) -> None:
        """Idle mailboxes leave memory; while it is wanted, every other one that may. Storage has all of what leaves."""
        core = self.world.core
        before = dict(core.mailboxes)
        pages = {key: page_of(mailbox) for key, mailbox in before.items()}
        self.world.now_ms += 0 if wanted else 2000
        core.evict(self.world.now_ms, 1 << 40 if wanted else 0)
        for key in before.keys() - core.mailboxes.keys():
            page = self.world.page(key)
            assert not before[key].hot
            if page is None:
                assert not before[key].head
            else:
                assert page == pages[key]

    @rule(appended=st.booleans())
    def storage_fails_and_the_group_is_rolled_back(self, appended: bool) -> None:
        group = self.group()
        if group is None:
            return
        self.world.core.group_refused()
        self.hear(self.world.said())
        self.world.core.storage_back()

    @rule(written=st.sampled_from(["nothing", "journal", "checkpoint without trim"]))
    def crash(self, written: str) -> None:
        if written == "journal":
            group = self.group()
            if group is not None:
                self.world.append(group)
        elif written == "checkpoint without trim":
            journal = list(self.world.journal)
            self.world.checkpoint()
            self.world.journal = journal
        self.world.crash()
        self.clients.clear()
        for user in USERS:
            self.acked[user].clear()

    def group(self) -> Group | None:
        self.world.fetch()
        group = self.world.new_group()
        self.hear(self.world.said())
        return group

    # -- what it must be like ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        self.hear(self.world.said())

    def hear(self, records: list[object]) -> None:
        for record in records:
            if isinstance(record, Posted):
                self.hear_posted(record)
            elif isinstance(record, Deliver):
                self.hear_messages(record)
            elif isinstance(record, GapRange):
                self.hear_gap(record)
            elif isinstance(record, Hangup):
                self.clients.pop(record.conn, None)
            elif isinstance(record, Welcome) and record.conn in self.clients:
                self.clients[record.conn].newest = record.from_seq - 1

    def hear_posted(self, record: Posted) -> None:
        user, id = self.posts[record.ref]
        if record.status == ACCEPTED:
            assert (user, id) not in self.seqs, "an accepted id was accepted again"
            self.number(user, record.seq, id)
        elif record.status == DUPLICATE:
            assert record.seq or (user, id) in self.windows
            if record.seq:
                self.number(user, record.seq, id)
        elif record.status == MERGED:
            assert (user, id) in self.windows
        else:
            assert record.status != OVERLOADED or record.retry_ms > 0

    def hear_gap(self, record: GapRange) -> None:
        """Nothing expires, is trimmed or lost here: what is gone was superseded by a newer message of its key."""
        client = self.clients.get(record.conn)
        if client is None:
            return
        user = client.user
        assert record.first > client.newest, f"{record} after {client.newest}"
        for skipped in range(client.newest + 1, record.first):
            assert skipped in self.ever_acked[user], f"{skipped} was skipped silently before {record}"
        client.newest = record.last
        self.gone[user].update(range(record.first, record.last + 1))

    def number(self, user: str, seq: int, id: str) -> None:
        assert self.numbered[user].setdefault(seq, id) == id, f"number {seq} was given twice"
        assert self.seqs.setdefault((user, id), seq) == seq, f"{id} has two numbers"

    def hear_messages(self, record: Deliver) -> None:
        client = self.clients.get(record.conn)
        if client is None:
            return
        user = client.user
        for seq, attempt, body in record.messages:
            told = json.loads(b"{%b}" % body)
            self.number(user, seq, told["id"])
            self.counts[user][told["id"]] = told.get("count", 1)
            self.replaced[user].add(told.get("replaces", ""))
            assert attempt >= 1
            assert seq not in self.acked[user], f"{seq} was acknowledged and came again"
            assert seq not in self.gone[user], f"{seq} was announced as gone and came again"
            if attempt == 1:
                assert seq not in client.unacked, "the same attempt came twice"
            if seq > client.newest:
                for skipped in range(client.newest + 1, seq):
                    assert skipped in self.ever_acked[user], f"{skipped} was skipped silently before {seq}"
                client.newest = seq
            client.unacked.add(seq)

    @invariant()
    def what_is_in_memory_is_counted(self) -> None:
        if hasattr(self, "world"):
            mailboxes = self.world.core.mailboxes.values()
            memory, closer = self.world.core.mailbox_store.memory, self.world.core.mailbox_store.judge.deadlines
            bodies = sum(len(message.envelope.body) for mailbox in mailboxes for message in (mailbox.hot | mailbox.dying).values())
            assert memory.messages == sum(len(mailbox.hot) + len(mailbox.dying) for mailbox in mailboxes)
            tracked = sum(map(len, closer._armed.values()))
            weights = sum(mailbox.weight for mailbox in mailboxes)
            assert memory.bytes == bodies + memory.messages * MESSAGE_BYTES + tracked * ENTRY_BYTES + weights
            dying = sum(len(message.envelope.body) for mailbox in mailboxes for message in mailbox.dying.values())
            assert bodies == dying + sum(mailbox.hot_bytes for mailbox in mailboxes)
            stats = self.world.core.stats(self.world.now_ms)
            cold = sum(mailbox.cold[1] - mailbox.cold[0] + 1 for mailbox in mailboxes if mailbox.cold)
            assert stats["pending"] == memory.messages + cold
            assert stats["windows"] == sum(mailbox.judge_state.held for mailbox in mailboxes if mailbox.judge_state is not None)

    @invariant()
    def whatever_storage_has_completely_can_be_evicted(self) -> None:
        if hasattr(self, "world"):
            store = self.world.core.mailbox_store
            for key, mailbox in store.mailboxes.items():
                if not mailbox.connections and key not in store._dirty and not mailbox.dying:
                    assert mailbox.queued_ms >= 0

    @invariant()
    def windows_hold(self) -> None:
        if hasattr(self, "world"):
            for mailbox in self.world.core.mailboxes.values():
                for connection in mailbox.connections.values():
                    assert len(connection.flight) <= WINDOW
                    assert connection.flight.keys() <= mailbox.hot.keys()
                    assert connection.flight_bytes == sum(len(mailbox.hot[seq].envelope.body) for seq in connection.flight)

    def teardown(self) -> None:
        """A client that acknowledges everything gets everything that was accepted and never acknowledged.

        And when publishers have repeated themselves until they got an answer, every message of a window counts exactly once.
        """
        if not hasattr(self, "world"):
            return
        self.hear(self.world.settle())
        self.hear(self.world.calm_down())
        assert self.world.core.admission.pressure.level == 0
        for user, id in self.windows:
            self.post_window(user, id)
            self.hear(self.world.settle())
        self.world.now_ms += MERGE_MS
        self.world.core.tick(self.world.now_ms)
        self.hear(self.world.settle())
        assert self.world.core.stats(self.world.now_ms)["windows"] == 0
        assert self.world.core.mailbox_store.judge.deadlines.next_ms is None, "a window has not ended"
        for user in USERS:
            for conn in [conn for conn, client in self.clients.items() if client.user == user]:
                self.world.detach(conn)
                del self.clients[conn]
            self.conns += 1
            client = self.clients[self.conns] = Client(user)
            self.world.attach(self.conns, user)
            got: set[int] = set()
            while True:
                self.hear(self.world.settle())
                if not client.unacked:
                    break
                got |= client.unacked
                self.world.ack(self.conns, max(client.unacked))
                client.unacked.clear()
            missing = self.numbered[user].keys() - got - self.ever_acked[user]
            for seq in sorted(missing):
                key = self.keys.get((user, self.numbered[user][seq]), "")
                newer = [other for other, id in self.numbered[user].items() if other > seq and self.keys.get((user, id), "") == key]
                assert seq in self.gone[user], f"accepted and never delivered to {user}: {seq}"
                assert key, f"{seq} of {user} is gone and has no collapse key"
                assert newer, f"{seq} of {user} is gone and nothing stands for it"
            self.count(user)

    def count(self, user: str) -> None:
        merged = {id for other, id in self.windows if other == user}
        told = {id: count for id, count in self.counts[user].items() if id in merged or id.startswith("window-")}
        assert sum(count for id, count in told.items() if id not in self.replaced[user]) == len(merged), f"{told} of {sorted(merged)}"


TestShard = ShardMachine.TestCase
TestShard.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
