"""Who is online: abnormal and clean ends, probes, flapping clients, and what the successor of a shard assumes."""

from __future__ import annotations

import pytest

from engine.core.shard.presence import CONNECTED, OFFLINE, SUSPECT, Client, Presence
from engine.core.wire.records import POLL, WEBSOCKET, Attach, GetProfile, Probe, Probed
from tests.support.shard_world import EDGE, World, connected_world, of

AFTER_MS = 30_000
PHONE = Client("c1", "phone", "edge-0", WEBSOCKET)
POLLING = Client("c2", "page", "edge-0", POLL)


def told(world: World) -> list[tuple[str, int]]:
    """The events since the last call."""
    world.settle()
    events = [(event.event, event.code) for event in world.events]
    world.events.clear()
    return events


def passes(world: World, ms: int) -> None:
    """Time passes, and the shard ticks."""
    for _ in range(ms // 100):
        world.now_ms += 100
        world.core.tick(world.now_ms)


def connected() -> World:
    """A user with one connection, which was told."""
    world = connected_world()
    assert told(world) == [("connect", 0)]
    return world


def answer(world: World, client: str = "") -> str:
    """The state that a heartbeat probe is answered with."""
    (probed,) = of(world.ask(Probe(1, "t:u", client, 0)), Probed)
    return str(probed.state)


@pytest.mark.parametrize("code", [1000, 1001, 1005])
def test_a_user_whose_client_leaves_on_purpose_is_offline_at_once(code: int) -> None:
    world = connected()
    world.detach(1, code)
    assert told(world) == [("disconnect", code), ("offline", code)]
    assert answer(world) == OFFLINE
    passes(world, 2 * AFTER_MS)
    assert told(world) == []


@pytest.mark.parametrize("code", [1002, 1006, 1008, 1011, 1012, 4401, 4408, 4413])
def test_any_other_end_makes_the_user_suspect_and_offline_only_when_the_time_is_over(code: int) -> None:
    world = connected()
    world.detach(1, code)
    assert told(world) == [("disconnect", code), ("suspect", code)]
    assert world.core.stats(world.now_ms)["suspects"] == 1
    passes(world, AFTER_MS - 100)
    assert told(world) == []
    passes(world, 100)
    assert told(world) == [("offline", code)]
    assert answer(world) == OFFLINE


def test_a_suspect_user_who_connects_is_back_and_was_never_offline() -> None:
    world = connected()
    world.detach(1)
    passes(world, AFTER_MS - 100)
    world.attach(2)
    world.fetch()  # its page: the mailbox has been evicted meanwhile
    passes(world, 2 * AFTER_MS)
    assert told(world) == [("disconnect", 1006), ("suspect", 1006), ("connect", 0), ("back", 0)]


def test_a_probe_prolongs_the_suspicion_and_does_not_end_it() -> None:
    world = connected()
    world.detach(1)
    told(world)
    for _ in range(5):
        passes(world, AFTER_MS - 100)
        assert answer(world, "the page") == SUSPECT
    assert told(world) == []
    passes(world, AFTER_MS)
    assert world.events == []
    assert told(world) == [("offline", 1006)]


def test_the_event_names_the_client_that_was_heard_last() -> None:
    world = connected()
    world.detach(1)
    world.settle()
    answer(world, "the page")
    passes(world, AFTER_MS)
    world.settle()
    last = world.events[-1]
    assert (last.event, last.session, last.device, last.edge) == ("offline", "s1", "the page", "edge-0")


def test_a_probe_brings_nobody_back_who_is_offline() -> None:
    world = World()
    assert answer(world) == OFFLINE
    passes(world, AFTER_MS)
    assert told(world) == []


def test_a_client_that_flaps_is_told_every_time_and_is_never_offline() -> None:
    world = connected()
    for conn in range(1, 50):
        world.detach(conn)
        passes(world, AFTER_MS - 1000)
        world.attach(conn + 1)
        assert told(world) == [("disconnect", 1006), ("suspect", 1006), ("connect", 0), ("back", 0)]
    world.detach(50, 1000)
    assert told(world) == [("disconnect", 1000), ("offline", 1000)]


def test_while_another_device_is_connected_a_lost_one_makes_nobody_suspect() -> None:
    world = connected()
    world.attach(2)
    world.detach(1)
    assert told(world) == [("connect", 0), ("disconnect", 1006)]
    assert answer(world) == CONNECTED
    passes(world, AFTER_MS)
    world.detach(2, 1000)
    assert told(world) == [("disconnect", 1000), ("offline", 1000)], "the lost one is not expected any more"


def test_a_user_whose_lost_device_is_still_expected_is_suspect_when_the_other_one_leaves() -> None:
    world = connected()
    world.attach(2)
    world.detach(1)
    passes(world, AFTER_MS // 2)
    told(world)
    world.detach(2, 1000)
    assert told(world) == [("disconnect", 1000), ("suspect", 1000)]
    passes(world, AFTER_MS // 2)
    assert told(world) == [("offline", 1006)]


def test_a_connection_that_newer_ones_displaced_is_not_expected_back() -> None:
    world = connected()
    for conn in (2, 3, 4):
        world.attach(conn)
    for conn in (2, 3, 4):
        world.detach(conn, 1000)
    assert told(world)[-3:] == [("disconnect", 1000), ("disconnect", 1000), ("offline", 1000)]


def test_between_two_polls_a_user_is_online_and_nothing_is_told() -> None:
    world = World()
    for conn in range(1, 5):
        world.connect(conn, kind=POLL)
        world.detach(conn, 0)
        passes(world, AFTER_MS - 100)
        assert told(world) == [("connect", 0), ("disconnect", 0)]
    passes(world, 100)
    assert told(world) == [("offline", 0)]


def test_a_connection_that_another_shard_has_now_is_forgotten() -> None:
    world = connected()
    world.detach(1, 0)
    passes(world, 2 * AFTER_MS)
    assert told(world) == [("disconnect", 0)]


def test_the_end_of_an_edge_makes_its_users_suspect_and_another_edge_takes_them_back() -> None:
    world = connected()
    world.core.closed(EDGE, world.now_ms)
    assert told(world) == [("disconnect", 1006), ("suspect", 1006)]
    world.core.opened("edge-1/1")
    world.core.handle("edge-1/1", [Attach(1, "t:u", WEBSOCKET, "e1", 0, "s2", "")], world.now_ms)
    assert told(world) == [("connect", 0), ("back", 0)]


def test_after_a_reset_of_the_link_session_the_connections_announced_again_are_back() -> None:
    world = connected()
    world.core.closed(EDGE, world.now_ms)
    world.core.opened("edge-0/2")
    world.core.handle("edge-0/2", [Attach(1, "t:u", WEBSOCKET, "e1", 0, "s1", "", resume=True)], world.now_ms)
    passes(world, 2 * AFTER_MS)
    assert told(world) == [("disconnect", 1006), ("suspect", 1006), ("connect", 0), ("back", 0)]


def test_a_successor_expects_everyone_who_was_online_from_its_start_on() -> None:
    world = connected()
    world.attach(2, "suspect")
    world.connect(3, "left")
    world.detach(2)
    world.detach(3, 1000)
    told(world)
    passes(world, AFTER_MS - 100)
    world.crash()
    passes(world, AFTER_MS - 100)
    assert told(world) == []
    world.ask(Attach(1, "t:u", WEBSOCKET, "e1", 0, "s1", "", resume=True))
    passes(world, AFTER_MS)
    assert told(world) == [("connect", 0), ("back", 0), ("offline", 1006)]
    assert world.online == {"t:u"}


def seen_ms(world: World) -> int:
    return world.core.mailboxes["t:u"].seen_ms


def test_coming_is_activity_and_coming_back_is_not() -> None:
    world = connected()
    came_ms = world.now_ms
    assert seen_ms(world) == came_ms
    world.now_ms += 5000
    world.detach(1)
    world.attach(2)
    assert seen_ms(world) == came_ms, "a lost connection is no person at the screen"
    world.attach(3)
    assert seen_ms(world) == world.now_ms, "another device is"
    world.now_ms += 5000
    world.detach(2, 1000)
    world.detach(3, 1000)
    world.attach(4)
    assert seen_ms(world) == world.now_ms, "and so is coming again after leaving"


def test_a_cursor_that_acknowledges_is_activity_of_somebody_who_comes_back() -> None:
    world = connected()
    world.publish()
    world.now_ms += 5000
    world.detach(1)
    world.attach(2, cursor=1)
    assert seen_ms(world) == world.now_ms


def test_beyond_their_limit_those_who_are_suspect_for_longest_are_offline_early() -> None:
    presence = Presence(AFTER_MS, 2)
    for n, key in enumerate(("t:a", "t:b", "t:c")):
        presence.attached(key)
        assert presence.detached(key, PHONE, 1006, n) == SUSPECT
    presence.probed("t:a", "", 3)
    assert [key for key, _ in presence.expire(3)] == ["t:b"]
    assert presence.suspects == 2


def test_the_end_of_a_poll_does_not_hide_that_a_connection_was_lost_later() -> None:
    presence = Presence(AFTER_MS, 9)
    presence.attached("t:u")
    presence.attached("t:u")
    assert presence.detached("t:u", POLLING, 0, 0) == ""
    assert presence.detached("t:u", PHONE, 1006, 1) == SUSPECT


def test_the_page_has_when_a_user_came_whose_edge_died() -> None:
    world = connected_world()
    world.publish()
    world.acknowledge(1, 1)
    world.detach(1, 1000)
    world.persist()
    world.now_ms += 60_000
    world.connect(2)
    came_ms = world.now_ms
    world.core.closed(EDGE, world.now_ms)
    world.persist()
    assert world.evict() == 1
    world.core.opened(EDGE)
    world.ask(GetProfile(9, "t:u"))
    assert seen_ms(world) == came_ms
