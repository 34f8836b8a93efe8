"""ShardCore under load beyond capacity: priorities, refusals, what is held and what leaves memory."""

from __future__ import annotations

from engine.core.journal.journal_records import PAGE_RECENT_IDS
from engine.core.mailbox.memory import RECENT_BYTES
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from tests.support.shard_world import World, connected_world, delivered, of


def pressed(world: World, level: int) -> None:
    """Bring the core to this level by what waits for its commit."""
    share = (0.5, 0.7, 0.85)[level - 1]
    world.post("filler", priority=HIGH)
    world.fetch()
    while len(world.core.post_queue) <= world.config.posts_pending_max * share:
        world.post("filler", priority=HIGH)
    world.core.tick(world.now_ms)
    assert world.core.admission.pressure.level == level


def test_high_posts_are_numbered_and_committed_before_all_others() -> None:
    world = World(commit_records_max=3)
    for user in ("u", "v"):
        world.attach(1 if user == "u" else 2, user)
    world.settle()
    for n, (user, priority) in enumerate([("u", LOW), ("v", LOW), ("u", NORMAL), ("v", HIGH), ("u", HIGH), ("u", LOW)]):
        world.post(user, f"{n}", priority=priority)
    said = world.settle()
    answers = [record.ref for record in of(said, wire.Posted)]
    assert answers == [4, 5, 3, 1, 2, 6]
    assert [body for record in of(said, wire.Deliver) if record.conn == 1 for _, _, body in record.messages] == [
        b'"id":"%d"' % n for n in (4, 2, 0, 5)
    ]


def test_one_user_s_posts_of_one_priority_keep_their_order() -> None:
    world = World(commit_records_max=2)
    for n in range(9):
        world.post("u", f"{n}", priority=(LOW, HIGH, NORMAL)[n % 3])
    answers = {record.seq: record.ref - 1 for record in of(world.settle(), wire.Posted)}
    assert [answers[seq] for seq in range(1, 10)] == [1, 4, 7, 2, 5, 8, 0, 3, 6]


def test_low_is_refused_first_then_normal_and_high_only_at_the_limit() -> None:
    world = connected_world(posts_pending_max=100)
    world.settle()
    accepted = []
    for level in (1, 2, 3):
        pressed(world, level)
        world.said()
        refs = {priority: world.post("u", priority=priority) for priority in (HIGH, NORMAL, LOW)}
        refused = {record.ref: record for record in of(world.said(), wire.Posted)}
        accepted.append([priority for priority, ref in refs.items() if ref not in refused])
        assert all(record.status == wire.OVERLOADED and record.retry_ms >= 1000 for record in refused.values())
    assert accepted == [[HIGH, NORMAL, LOW], [HIGH, NORMAL], [HIGH]]
    while len(world.core.post_queue) < 100:
        world.post("filler", priority=HIGH)
    assert [record.status for record in of(world.said(), wire.Posted)] == []
    world.post("u", priority=HIGH)
    assert [record.status for record in of(world.said(), wire.Posted)] == [wire.OVERLOADED]
    counters = world.core.output.counters
    assert (counters["refused_high"], counters["refused_normal"], counters["refused_low"]) == (1, 1, 2)


def test_posts_that_wait_for_their_page_count_too() -> None:
    world = World(posts_pending_max=10)
    for n in range(10):
        world.post(f"stranger{n}", priority=HIGH)
    world.post("one more", priority=HIGH)
    assert [record.status for record in of(world.said(), wire.Posted)] == [wire.OVERLOADED]
    assert {record.status for record in of(world.settle(), wire.Posted)} == {wire.ACCEPTED}
    assert {record.status for record in of(world.publish("one more", priority=HIGH), wire.Posted)} == {wire.ACCEPTED}


def test_bytes_in_memory_are_limited_too() -> None:
    world = World(shard_memory_bytes_max=100_000)
    for _ in range(12):
        world.publish("u", more=b',"data":"%b"' % (b"x" * 10_000))
    assert [record.status for record in of(world.publish("u", "late", priority=HIGH), wire.Posted)] == [wire.OVERLOADED]
    world.checkpoint()
    assert [record.status for record in of(world.publish("u", "late", priority=HIGH), wire.Posted)] == [wire.ACCEPTED]


def test_acknowledgements_by_request_end_a_shortage_of_memory() -> None:
    world = World(shard_memory_messages_max=30, posts_pending_max=100)
    world.attach(1, kind=wire.SSE)
    for _ in range(30):
        world.post("u")
    world.settle()
    assert [record.status for record in of(world.publish("u", priority=HIGH), wire.Posted)] == [wire.OVERLOADED]
    assert not of(world.ask(wire.Settle(1, "t:u", 25, [])), wire.Rejected)
    world.checkpoint()
    assert [record.status for record in of(world.publish("u", priority=HIGH), wire.Posted)] == [wire.ACCEPTED]


def test_a_repeat_of_an_accepted_id_gets_its_answer_under_any_pressure() -> None:
    world = World(posts_pending_max=100)
    world.publish("u", "a", priority=LOW)
    pressed(world, 3)
    world.said()
    world.post("u", "a", priority=LOW)
    assert [(record.status, record.seq) for record in of(world.said(), wire.Posted)] == [(wire.DUPLICATE, 1)]


def test_low_is_held_while_the_shard_is_pressed_and_goes_out_by_itself_afterwards() -> None:
    world = connected_world(posts_pending_max=100)
    world.settle()
    pressed(world, 1)
    world.said()
    for n in range(3):
        world.post("u", f"low{n}", priority=LOW)
    said = world.settle()
    assert delivered(said) == []
    assert {record.status for record in of(said, wire.Posted)} == {wire.ACCEPTED}
    assert delivered(world.calm_down()) == [(1, 1), (2, 1), (3, 1)]
    assert world.core.delivery.held == {}


def test_what_is_held_goes_out_before_anything_of_higher_priority_behind_it() -> None:
    world = connected_world(posts_pending_max=100)
    world.settle()
    pressed(world, 1)
    world.said()
    assert delivered(world.publish("u", "low", priority=LOW)) == []
    world.post("u", "high", priority=HIGH)
    assert delivered(world.publish("u", "low again", priority=LOW)) == [(1, 1), (2, 1)]


def test_a_poll_that_comes_while_low_is_held_hears_of_it_when_the_pressure_is_over() -> None:
    world = World(posts_pending_max=100)
    world.publish("u", priority=LOW)
    pressed(world, 1)
    world.connect(1, kind=wire.POLL)
    assert delivered(world.calm_down()) == [(1, 1)]


def test_held_low_leaves_memory_when_it_is_short_and_comes_back_in_order() -> None:
    world = connected_world(shard_memory_bytes_max=66_000, hot_messages_max=1000)
    world.settle()
    for n in range(60):
        world.publish("u", f"{n}", priority=LOW, more=b',"data":"%b"' % (b"x" * 200))
        world.core.tick(world.now_ms)
    assert world.core.admission.pressure.tight
    assert world.core.mailbox_store.urgent
    world.checkpoint(full=False)
    memory = world.core.mailbox_store.memory
    assert memory.low_spilled > 0
    assert memory.messages == len(world.core.mailboxes["t:u"].connections[next(iter(world.core.mailboxes["t:u"].connections))].flight)
    got = {seq for seq, _ in delivered(world.said())}
    world.ack(1, 8)
    for _ in range(40):
        said = world.calm_down()
        got |= {seq for seq, _ in delivered(said)}
        if got:
            world.ack(1, max(got))
    assert max(got) == 60


def test_what_a_silent_connection_has_used_up_its_tries_for_leaves_memory_and_begins_the_next_one() -> None:
    world = connected_world(window=4)
    for n in range(4):
        world.post("u", f"m{n}")
    world.settle()
    world.wait(20_000)
    assert world.core.output.counters["exhausted"] == 4
    world.checkpoint(full=False)
    assert world.core.mailbox_store.memory.messages == 0
    assert delivered(world.acknowledge(1, 1)) == []
    assert delivered(world.connect(2), 2) == [(2, 4), (3, 4), (4, 4)]


def test_bodies_sent_over_plain_sse_leave_short_memory() -> None:
    world = World(shard_memory_messages_max=40, window=8)
    memory = world.core.mailbox_store.memory
    for _ in range(39):
        world.publish("u")
    world.checkpoint()

    def read(conn: int) -> None:
        world.attach(conn, kind=wire.SSE, cursor=0)
        for last in (8, 16, 24, 32, 39):
            world.settle()
            world.tell(wire.Written(conn, last))

    read(1)
    assert memory.messages == 39
    world.core.tick(world.now_ms)
    assert memory.messages == 0
    read(2)
    assert memory.messages == 0, "read again for a second one"
    world.calm_down()
    assert [seq for seq, _ in delivered(world.connect(3), 3)] == list(range(1, 9))


def test_a_silent_device_is_told_what_another_one_handled_even_when_it_left_memory() -> None:
    world = connected_world(window=4)
    for n in range(2):
        world.post("u", f"m{n}")
    world.settle()
    world.wait(20_000)
    world.checkpoint(full=False)
    world.connect(2)
    assert sorted(id for record in of(world.acknowledge(2, 2), wire.Revoke) if record.conn == 1 for id in record.ids) == ["m0", "m1"]
    assert delivered(world.publish("u", "next"), 1) == [(3, 1)]


def test_a_connection_far_behind_keeps_no_more_than_its_share_in_memory() -> None:
    world = connected_world(window=2, hot_bytes_max=5000)
    for n in range(20):
        world.publish("u", f"{n}", more=b',"data":"%b"' % (b"x" * 1000))
    assert world.core.mailbox_store.urgent
    world.checkpoint(full=False)
    assert world.core.mailbox_store.memory.messages == 2
    got: list[int] = [1, 2]
    for _ in range(20):
        got += [seq for seq, _ in delivered(world.acknowledge(1, got[-1]))]
    assert got == list(range(1, 21))


def test_a_timer_that_fires_into_a_pressed_shard_waits_and_fires_again() -> None:
    world = World(posts_pending_max=100)
    timer = wire.Timer("3-abc", "t:u", world.now_ms, world.now_ms, 600_000, Envelope("a", b"d" * 8, LOW, True, b'"id":"a"'))
    world.connect(1)
    pressed(world, 2)
    world.said()
    world.fire([timer])
    assert [type(record) for _, record in world.core.output.to_schedulers] == [wire.FireFailed]
    world.core.output.to_schedulers.clear()
    world.calm_down()
    assert delivered(world.fire([timer])) == [(1, 1)]
    assert len(world.core.output.to_schedulers) == 1


def test_without_load_nothing_is_held_or_refused() -> None:
    world = connected_world()
    for priority in (HIGH, NORMAL, LOW):
        world.post("u", priority=priority)
        world.core.tick(world.now_ms)
    assert delivered(world.settle()) == [(1, 1), (2, 1), (3, 1)]
    assert world.core.stats(world.now_ms)["pressure"] == 0


def filled_by_ids() -> World:
    """Ten connected users have acknowledged sixty messages each."""
    world = World(shard_memory_bytes_max=220_000)
    for conn in range(10):
        world.attach(conn, f"u{conn}")
    for n in range(60):
        for conn in range(10):
            world.post(f"u{conn}", f"{n}", priority=HIGH)
        world.settle()
        for conn in range(10):
            world.ack(conn, n + 1)
    world.checkpoint()
    world.core.tick(world.now_ms)
    assert world.core.admission.pressure.tight
    return world


def test_ids_of_users_who_stay_connected_fill_no_memory_for_good() -> None:
    world = filled_by_ids()
    before = world.core.mailbox_store.memory.bytes
    world.now_ms += world.config.publish_timeout_ms
    world.core.tick(world.now_ms)
    assert [len(mailbox.recent) for mailbox in world.core.mailboxes.values()] == [PAGE_RECENT_IDS] * 10
    assert world.core.mailbox_store.memory.bytes == before - 10 * (60 - PAGE_RECENT_IDS) * RECENT_BYTES
    world.calm_down()
    assert world.core.admission.pressure.level == 0
    assert [record.status for record in of(world.publish("u0", "59"), wire.Posted)] == [wire.DUPLICATE]


def test_ids_that_edges_may_repeat_stay_while_memory_is_short() -> None:
    world = filled_by_ids()
    world.now_ms += world.config.publish_timeout_ms - 1
    world.core.tick(world.now_ms)
    assert len(world.core.mailboxes["t:u0"].recent) == 60
    for n in range(60, 64):
        world.post("u0", f"{n}", priority=HIGH)
    world.settle()
    world.now_ms += 1
    world.core.tick(world.now_ms)
    assert list(world.core.mailboxes["t:u0"].recent) == [f"{n}" for n in range(32, 64)]
    for n in range(64, 110):
        world.post("u0", f"{n}", priority=HIGH)
    world.persist()
    world.now_ms += 1
    world.core.tick(world.now_ms)
    assert len(world.core.mailboxes["t:u0"].recent) == world.config.recent_ids, "those are younger"


def test_a_mailbox_that_left_memory_is_not_looked_at_for_its_ids() -> None:
    world = filled_by_ids()
    for conn in range(10):
        world.detach(conn)
    world.now_ms += world.config.publish_timeout_ms
    world.persist()
    assert world.core.mailbox_store._aging
    assert world.core.evict(world.now_ms, 1 << 40) == 10
    world.core.tick(world.now_ms)
    assert not world.core.mailbox_store._aging
