"""Who is behind among the connections of a shard."""

from __future__ import annotations

from engine.core.shard.slow_connections import slow_connections, slowest
from tests.support.shard_world import World


def test_who_does_not_acknowledge_is_slow_and_who_used_up_the_tries_is_the_worst() -> None:
    world = World()
    for conn, user in enumerate(("quick", "silent", "later")):
        world.attach(conn, user)
    world.publish("silent")
    world.now_ms += 40
    world.post("later")
    world.publish("quick")
    world.acknowledge(0, 1)
    attached = world.core.connections.attached()
    assert len(attached) == 3
    found = slowest(slow_connections(attached, world.now_ms + 5, 5), 10)
    assert [one.key for one in found] == ["t:silent", "t:later"]
    assert [one.key for one in slowest(slow_connections(attached, world.now_ms + 5, 30), 10)] == ["t:silent"]
    assert [one.key for one in slowest(slow_connections(attached, world.now_ms + 5, 5), 1)] == ["t:silent"]
    next(connection for mailbox, connection in attached if mailbox.key == "t:later").exhausted = {1: (10**9, "x")}
    assert [one.key for one in slowest(slow_connections(attached, world.now_ms, 1000), 10)] == ["t:later"]
