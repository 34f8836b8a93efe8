"""What an operator sees of a user: as it is, and without a trace."""

from __future__ import annotations

from copy import deepcopy

from engine.core.wire.records import ReadUser, UserIs
from tests.support.mailbox_states import state_of
from tests.support.shard_world import World, connected_world, of


def overview(world: World, user: str = "u") -> UserIs:
    (answer,) = of(world.ask(ReadUser(99, f"t:{user}")), UserIs)
    return answer  # type: ignore[no-any-return]


def test_a_user_is_shown_with_every_connection_and_how_far_it_is_behind() -> None:
    world = connected_world()
    world.subscribe("news")
    for id in ("a", "b", "c"):
        world.post(id=id)
    world.settle()
    sent_ms, world.now_ms = world.now_ms, world.now_ms + 50
    world.acknowledge(1, 1)
    before = deepcopy(state_of(world.core.mailboxes["t:u"]))
    shown = overview(world)
    assert (shown.presence, shown.head, shown.floor, shown.pending, shown.topics) == ("connected", 3, 1, 2, ["news"])
    (connection,) = shown.connections
    assert (connection.edge, connection.session, connection.transport) == ("edge-0", "s1", "websocket")
    assert (connection.sent, connection.unacknowledged, connection.oldest_ms, connection.exhausted) == (3, 2, sent_ms, 0)
    assert connection.rtt_ms > 0
    assert state_of(world.core.mailboxes["t:u"]) == before


def test_a_user_of_whom_nothing_is_known_is_offline_and_empty() -> None:
    shown = overview(World(), "nobody")
    assert (shown.presence, shown.head, shown.pending, shown.connections, shown.decisions) == ("offline", 0, 0, [], [])
