"""Broadcasts, topics and posts against a model of their promises, over random histories with crashes between any two writes."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.commit.group import Group
from engine.core.journal.journal_records import Adopted, StoredMessage
from engine.core.journal.stored_formats import read_entry
from engine.core.mailbox.broadcast_log import BodyCache
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import HIGH, LOW
from engine.core.wire.records import OK, UNAVAILABLE, Deliver, GapRange, Hangup, Rejoin, Subscribed, Welcome
from tests.support.shard_world import EDGE, Client, World
from tests.support.stored import decode_journal

USERS = ("ann", "bob")
TOPICS = ("", "news", "team")
NEVER_MS = 10**12
SHORT_MS = 400


class BroadcastMachine(RuleBasedStateMachine):
    """Two users who come and go and change their minds, a publisher, a storage that may fail, a process that dies."""

    @initialize()
    def start(self) -> None:
        self.world = World(window=5, adopt_max=3, hot_messages_max=4, shared_bytes_max=40, commit_records_max=3)
        self.clients: dict[int, Client] = {}
        self.conns = 0
        self.ids = 0
        self.names: dict[str, dict[int, str]] = {user: {} for user in USERS}  # number -> id, as clients have seen it
        self.acked: dict[str, set[int]] = {user: set() for user in USERS}  # by a client, in this incarnation
        self.ever_acked: dict[str, set[str]] = {user: set() for user in USERS}  # ids
        self.durable: dict[str, set[int]] = {user: set() for user in USERS}  # numbers that were ever in the journal
        self.owed: dict[str, set[str]] = {user: set() for user in USERS}  # ids that must be seen in the end
        self.allowed: dict[str, set[str]] = {user: set() for user in USERS}  # ids that may be seen
        self.subscribed: dict[str, set[str]] = {user: set() for user in USERS}  # for sure
        self.perhaps: dict[str, set[str]] = {user: set() for user in USERS}  # or asked for
        self.asked: dict[int, tuple[str, str, bool]] = {}  # ref -> (user, topic, add)
        self.announce_later: list[int] = []  # connections of which a new link session, or shard, has not been told
        self.since: dict[int, int] = {}  # connection -> when its client was welcomed
        self.of_members: dict[str, set[int]] = {}  # id to a token's topic -> connections with the topic that have lasted since it was sent
        self.position: dict[str, int] = {}  # of broadcasts, by id
        for user in USERS:
            self.attach(user, False, False)

    # -- what happens -----------------------------------------------------------------------------------------------------

    @rule(topic=st.sampled_from(TOPICS), retain=st.booleans(), short=st.booleans(), priority=st.sampled_from([LOW, HIGH]))
    def broadcast(self, topic: str, retain: bool, short: bool, priority: int) -> None:
        self.ids += 1
        id = f"b{self.ids}"
        self.world.log_end = max(self.world.log_end, self.world.now_ms * 1000)  # positions are microseconds
        if topic == "team" and retain and not short:
            self.of_members[id] = {conn for conn, client in self.clients.items() if conn in self.since and topic in client.topics}
        self.position[id] = self.world.broadcast(id, topic, ttl_ms=SHORT_MS if short else NEVER_MS, retain=retain, priority=priority)
        for user in USERS:
            if topic == "" or topic in self.perhaps[user] | self.subscribed[user] or self.may_claim(topic):
                self.allowed[user].add(id)
            if retain and not short and (topic == "" or topic in self.subscribed[user]):
                self.owed[user].add(id)

    @rule(user=st.sampled_from(USERS), count=st.integers(1, 4))
    def publish_all_kinds_at_once(self, user: str, count: int) -> None:
        for number in range(count):
            self.broadcast(TOPICS[number % 3], True, False, (LOW, HIGH)[number % 2])
        self.post(user)
        self.world.follow()

    def may_claim(self, topic: str) -> bool:
        return topic == "team"  # the only one in tokens

    @rule(user=st.sampled_from(USERS))
    def post(self, user: str) -> None:
        self.ids += 1
        self.world.post(user, f"p{self.ids}", ttl_ms=NEVER_MS)
        self.allowed[user].add(f"p{self.ids}")

    @rule(user=st.sampled_from(USERS), topic=st.sampled_from(TOPICS[1:]), add=st.booleans())
    def subscribe(self, user: str, topic: str, add: bool) -> None:
        self.listen()
        ref = self.world.subscribe(*([topic] if add else []), user=user, remove=[] if add else [topic])
        self.asked[ref] = (user, topic, add)
        self.perhaps[user].add(topic)
        if add:
            # A subscription counts from where the shard has read the log to: what it has not read yet may come.
            head = self.world.core.broadcast_audience.log.head
            entries = [read_entry(pos, blob) for pos, blob in self.world.log if pos > head]
            self.allowed[user].update(entry.envelope.id for entry in entries if entry.topic == topic)
        if not add:
            # From the moment it is asked for, nothing of the topic is owed, also of what has not been adopted yet.
            self.subscribed[user].discard(topic)
            self.owed[user] = {id for id in self.owed[user] if self.topic_of(id) != topic}

    def topic_of(self, id: str) -> str:
        return next((entry.topic for pos, blob in self.world.log if (entry := read_entry(pos, blob)).envelope.id == id), "")

    @rule(user=st.sampled_from(USERS), member=st.booleans(), cursor=st.booleans())
    def attach(self, user: str, member: bool, cursor: bool) -> None:
        self.listen()
        self.conns += 1
        topics = ("team",) if member else ()
        self.clients[self.conns] = Client(user, topics)
        if cursor and self.names[user]:
            self.settle_quietly()
            seq = 0
            while self.names[user].get(seq + 1) in self.ever_acked[user]:
                seq += 1
            self.world.attach(self.conns, user, seq, topics=list(topics))
            self.settle_quietly()
            self.acked[user].update(range(1, seq + 1))
        else:
            self.world.attach(self.conns, user, topics=list(topics))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), member=st.booleans())
    def renew_the_token(self, data: st.DataObject, member: bool) -> None:
        self.announce_the_rest()
        conn = data.draw(st.sampled_from(sorted(self.clients)))
        self.clients[conn].topics = ("team",) if member else ()
        if not member:
            self.ends(conn)
        self.world.tell(Rejoin(conn, self.clients[conn].topics))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), cumulative=st.booleans())
    def ack(self, data: st.DataObject, cumulative: bool) -> None:
        self.announce_the_rest()
        self.listen()
        attached = {connection.conn[1] for _, connection in self.world.core.connections.attached()}  # else it may be lost with the client
        candidates = sorted(conn for conn, client in self.clients.items() if client.unacked and conn in attached)
        if not candidates:
            return
        conn = data.draw(st.sampled_from(candidates))
        client = self.clients[conn]
        seq = data.draw(st.sampled_from(sorted(client.unacked)))
        names = self.names[client.user]
        if cumulative:
            self.world.ack(conn, seq)
            handled = set(range(1, seq + 1))
        else:
            self.world.ack_ids(conn, names[seq])
            handled = {seq}
        client.unacked -= handled
        self.acked[client.user] |= handled
        self.ever_acked[client.user] |= {names[number] for number in handled if number in names}
        self.listen()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        conn = data.draw(st.sampled_from(sorted(self.clients)))
        self.world.detach(conn)
        del self.clients[conn]
        self.ends(conn)

    def ends(self, conn: int) -> None:
        """The connection is no member any more."""
        for conns in self.of_members.values():
            conns.discard(conn)

    @precondition(lambda self: self.clients)
    @rule()
    def the_link_breaks(self) -> None:
        self.settle_quietly()
        world = self.world
        world.core.closed(EDGE, world.now_ms)
        world.core.opened(EDGE)
        world.bodies = BodyCache(world.config.shared_bytes_max)
        self.announce()

    def announce(self) -> None:
        """The edge tells a new link session of its connections, some later than others."""
        for conn in self.clients:
            if conn % 2:
                self.announce_one(conn)
        self.announce_later = [conn for conn in self.clients if not conn % 2]

    @rule()
    def announce_the_rest(self) -> None:
        for conn in self.announce_later:
            self.announce_one(conn)
        self.announce_later = []

    def announce_one(self, conn: int) -> None:
        client = self.clients.get(conn)
        if client is not None:
            since_ms = self.since.get(conn, self.world.now_ms)
            topics = list(client.topics)
            self.world.attach(conn, client.user, 0, resume=True, sent=client.newest, topics=topics, since_ms=since_ms)

    @rule()
    def work(self) -> None:
        self.hear(self.settle())

    @rule(step=st.sampled_from(["follow", "fetch", "commit"]))
    def work_a_little(self, step: str) -> None:
        if step == "commit":
            group = self.group()
            if group is not None:
                self.append(group)
                self.world.core.group_committed(self.world.now_ms)
        else:
            getattr(self.world, step)()
        self.listen()

    @rule(ms=st.sampled_from([50, 500, 2000]))
    def time_passes(self, ms: int) -> None:
        self.settle_quietly()
        self.hear(self.world.wait(ms))
        self.note_journal()

    @rule()
    def expired_entries_leave_the_log(self) -> None:
        self.world.follow()
        self.world.drop(*self.world.core.broadcast_audience.log.expired(self.world.now_ms))

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.note_journal()
        self.world.checkpoint(full=full)

    @rule()
    def evict(self) -> None:
        self.world.now_ms += 2000
        before = dict(self.world.core.mailbox_store.mailboxes)
        self.world.core.evict(self.world.now_ms)
        for key in before.keys() - self.world.core.mailbox_store.mailboxes.keys():
            self.lose_what_is_owed(before[key])

    @rule(appended=st.booleans())
    def storage_fails_and_the_group_is_rolled_back(self, appended: bool) -> None:
        if self.group() is None:
            return
        self.world.core.group_refused()
        self.listen()
        self.world.core.storage_back()
        self.listen()

    @rule(written=st.sampled_from(["nothing", "journal", "checkpoint without trim"]), clients_stay=st.booleans())
    def crash(self, written: str, clients_stay: bool) -> None:
        self.listen()
        if written == "journal":
            group = self.group()
            if group is not None:
                self.append(group)
        elif written == "checkpoint without trim":
            self.note_journal()
            journal = list(self.world.journal)
            self.world.checkpoint()
            self.world.journal = journal + [
                entry for entry in self.world.journal if entry not in journal
            ]  # groups were committed meanwhile
        for mailbox in self.world.core.mailbox_store.mailboxes.values():
            self.lose_what_is_owed(mailbox)
        self.world.crash()
        self.asked.clear()
        for user in USERS:
            self.acked[user].clear()  # what was not journalled may come again
        if clients_stay:
            self.announce()
        else:
            self.end_all()

    def lose_what_is_owed(self, mailbox: Mailbox) -> None:
        """Only memory has what a mailbox has passed without the topic of a token, or passes with the group under way."""
        if mailbox.passed is None:
            return
        ranges = mailbox.passed.after("team", 0)
        conns = {conn for conn, client in self.clients.items() if f"t:{client.user}" == mailbox.key}
        for id, members in self.of_members.items():
            if any(first < self.position[id] <= last for first, last in ranges):
                members.difference_update(conns)

    def end_all(self) -> None:
        for conn in self.clients:
            self.ends(conn)
        self.clients.clear()

    # -- helpers of the rules ---------------------------------------------------------------------------------------------

    def group(self) -> Group | None:
        self.world.fetch()
        group = self.world.new_group()
        self.listen()
        return group

    def append(self, group: Group) -> None:
        self.world.append(group)
        self.note_journal()

    def note_journal(self) -> None:
        for _, payload in self.world.journal:
            for record in decode_journal(payload):
                numbers = (
                    record.numbers
                    if isinstance(record, Adopted)
                    else [(record.key, record.seq)]
                    if isinstance(record, StoredMessage)
                    else []
                )
                for key, seq in numbers:
                    self.durable[key.partition(":")[2]].add(seq)

    def settle(self) -> list[Any]:
        said = self.world.settle()
        self.note_journal()
        return said

    def settle_quietly(self) -> None:
        self.hear(self.settle())

    # -- what it must be like ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        self.note_journal()
        self.hear(self.world.said())

    def hear(self, records: list[Any]) -> None:
        self.note_journal()
        for record in records:
            if isinstance(record, Deliver):
                self.hear_messages(record)
            elif isinstance(record, GapRange):
                client = self.clients.get(record.conn)
                if client is not None:
                    # After a crash also what was shown and is not kept may be gone, in one gap with what was never shown.
                    again = range(record.first, min(record.last, client.newest) + 1)
                    assert not self.acked[client.user].intersection(again), "what was acknowledged is told to be gone"
                    client.newest = max(client.newest, record.last)
            elif isinstance(record, Subscribed):
                self.hear_subscribed(record)
            elif isinstance(record, Hangup):
                self.clients.pop(record.conn, None)
                self.ends(record.conn)
            elif isinstance(record, Welcome):
                client = self.clients.get(record.conn)
                if client is not None:
                    client.newest = record.from_seq - 1
                    self.since[record.conn] = self.world.now_ms

    def hear_messages(self, record: Deliver) -> None:
        client = self.clients.get(record.conn)
        if client is None:
            return
        user = client.user
        for seq, _, body in record.messages:
            id = body.split(b'"')[3].decode()
            assert seq in self.durable[user], f"{seq} is shown and is not in the journal"
            assert self.names[user].setdefault(seq, id) == id, f"{seq} names two messages"
            assert id in self.allowed[user], f"{id} is not for {user}"
            assert seq not in self.acked[user], f"{seq} was acknowledged and came again"
            if seq > client.newest:
                passed = set(range(client.newest + 1, seq)) - self.acked[user]
                known = self.world.core.mailboxes[f"t:{user}"]
                assert all(number <= known.floor or number in known.acked or number in known.dying for number in passed), passed
                client.newest = seq
            client.unacked.add(seq)
        ids = list(self.names[user].values())
        assert len(ids) == len(set(ids)), "one message has two numbers"

    def hear_subscribed(self, record: Subscribed) -> None:
        asked = self.asked.pop(record.ref, None)
        if asked is None:
            return
        user, topic, _ = asked
        assert record.status in (OK, UNAVAILABLE)
        if record.status == OK:
            assert set(record.topics) <= self.perhaps[user]
            if topic in record.topics and not any(other == (user, topic, False) for other in self.asked.values()):
                self.subscribed[user].add(topic)

    @invariant()
    def bodies_are_shared(self) -> None:
        if not hasattr(self, "world"):
            return
        log = self.world.core.broadcast_audience.log
        for mailbox in self.world.core.mailboxes.values():
            for message in mailbox.hot.values():
                pos = getattr(message.envelope.body, "pos", 0)
                broadcast = log.get(pos)
                assert not pos or broadcast is None or message.envelope.body is broadcast.envelope.body

    def teardown(self) -> None:
        """Everything owed arrives in the end: users come, acknowledge what they get, and have seen it all."""
        if not hasattr(self, "world"):
            return
        self.announce_the_rest()
        self.settle_quietly()
        for conn in list(self.clients):
            self.take_all(conn)
        for id, conns in self.of_members.items():
            for user in {self.clients[conn].user for conn in conns}:
                assert id in {*self.names[user].values(), *self.ever_acked[user]}, f"{user}, whose token names the topic, never got {id}"
        for conn in list(self.clients):
            self.world.detach(conn)
        self.end_all()
        for user in USERS:
            self.conns += 1
            self.clients[self.conns] = Client(user, ())
            self.world.attach(self.conns, user)
            self.take_all(self.conns)
            missing = self.owed[user] - set(self.names[user].values()) - self.ever_acked[user]
            assert not missing, f"{user} never got {missing}"

    def take_all(self, conn: int) -> None:
        """The client acknowledges what it gets, until nothing comes."""
        for _ in range(200):
            self.hear(self.settle())
            client = self.clients.get(conn)
            if client is None or not client.unacked:
                return
            seq = max(client.unacked)
            self.world.ack(conn, seq)
            self.acked[client.user].update(range(1, seq + 1))
            client.unacked.clear()


TestBroadcasts = BroadcastMachine.TestCase
TestBroadcasts.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
