"""Presence under any order of connects, ends, probes, link resets and crashes of the shard, against a model that remembers times only."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.core.wire.records import WEBSOCKET, Attach, Detach, Probe, Probed
from tests.support.shard_world import EDGE, World, of

AFTER_MS = 3000
CLEAN = (1000, 1001, 1005)
users = st.sampled_from(("ann", "bob"))


class Seen:
    """What is known of a user: connections, and until when a client that was lost is expected."""

    def __init__(self) -> None:
        self.connections: set[int] = set()
        self.expected_ms = 0
        self.told = "offline"  # as a reader of the stream knows it
        self.silent = False  # expected since a crash of the shard


class Flapping(RuleBasedStateMachine):
    """One shard, one edge, two users."""

    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(offline_after_ms=AFTER_MS, connections_per_user_max=100)
        self.session = EDGE
        self.sessions = 1
        self.numbers = 0
        self.seen = {"ann": Seen(), "bob": Seen()}

    def tell(self, record: object) -> list[object]:
        self.world.core.handle(self.session, [record], self.world.now_ms)
        return self.world.settle()

    def attach(self, number: int, user: str, *, resume: bool) -> None:
        self.tell(Attach(number, f"t:{user}", WEBSOCKET, "e1" if resume else "", 0, f"s{number}", "", resume))
        self.seen[user].connections.add(number)
        self.seen[user].expected_ms = 0
        self.seen[user].silent = False

    @rule(target=connections, user=users)
    def connect(self, user: str) -> tuple[int, str]:
        self.numbers += 1
        self.attach(self.numbers, user, resume=False)
        return self.numbers, user

    @rule(connection=consumes(connections), code=st.sampled_from((*CLEAN, 1006, 1012, 4408)))
    def end(self, connection: tuple[int, str], code: int) -> None:
        number, user = connection
        if code not in CLEAN:
            self.seen[user].expected_ms = self.world.now_ms + AFTER_MS
        self.seen[user].connections.discard(number)
        self.world.core.handle(self.session, [Detach(number, code)], self.world.now_ms)
        self.world.settle()

    @rule(user=users)
    def probe(self, user: str) -> None:
        seen = self.seen[user]
        (probed,) = of(self.tell(Probe(1, f"t:{user}", "", 0)), Probed)
        expected = seen.expected_ms > 0
        assert probed.state == ("connected" if seen.connections else "suspect" if expected else "offline")
        if expected and not seen.connections:
            seen.expected_ms = self.world.now_ms + AFTER_MS

    @rule(ms=st.sampled_from((100, AFTER_MS - 100, AFTER_MS)))
    def time_passes(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.world.now_ms += 100
            self.world.core.tick(self.world.now_ms)
        self.world.settle()
        for seen in self.seen.values():
            if seen.expected_ms <= self.world.now_ms:
                seen.expected_ms = 0

    def new_session(self) -> None:
        self.sessions += 1
        self.session = f"edge-0/{self.sessions}"
        self.world.core.opened(self.session)

    @rule()
    def the_link_is_reset(self) -> None:
        self.world.core.closed(self.session, self.world.now_ms)
        self.world.settle()
        self.new_session()
        for user, seen in self.seen.items():
            for number in sorted(seen.connections):
                self.attach(number, user, resume=True)

    @rule()
    def the_shard_dies(self) -> None:
        self.world.log_sessions()
        self.world.crash()
        self.new_session()
        for user, seen in self.seen.items():
            if seen.connections or seen.expected_ms:
                seen.expected_ms = self.world.now_ms + AFTER_MS
                seen.silent = not seen.connections
            for number in sorted(seen.connections):
                self.attach(number, user, resume=True)

    @invariant()
    def the_stream_tells_the_truth(self) -> None:
        self.world.log_sessions()
        for event in self.world.events:
            seen = self.seen[event.key.partition(":")[2]]
            before = seen.told
            if event.event == "connect":
                seen.told = "online" if before == "offline" else before
            elif event.event == "suspect":
                assert before == "online"
                seen.told = "suspect"
            elif event.event == "back":
                assert before in ("suspect", "online"), "a shard does not know whom its predecessor told suspect"
                seen.told = "online"
            elif event.event == "offline":
                assert before != "offline"
                seen.told = "offline"
        self.world.events.clear()
        for user, seen in self.seen.items():
            if not seen.connections and not seen.expected_ms:
                assert seen.told == "offline", user
            elif not seen.silent:
                assert seen.told == ("online" if seen.connections else "suspect"), user
            assert (f"t:{user}" in self.world.online) == (seen.told != "offline")


TestFlapping = Flapping.TestCase
