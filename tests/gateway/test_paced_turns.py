"""What arrives at once is begun in order and bit by bit; what arrives alone is begun at once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from engine.core.wire import records as wire
from engine.gateway.paced_turns import INTERVAL_S, PacedTurns
from tests.support.edge_world import client_frame, edge_world
from tests.support.waiting import until

CROWD = 60
ONE_AT_A_TIME = round(1 / INTERVAL_S)  # in a second


async def test_work_that_comes_alone_begins_at_once() -> None:
    turns = PacedTurns(5 * ONE_AT_A_TIME)
    assert all(turns.enter(lambda: None) for _ in range(5))
    assert not turns.enter(lambda: None)
    await until(lambda: not len(turns))
    assert all(turns.enter(lambda: None) for _ in range(4)), "the fifth token was for what waited"
    assert not turns.enter(lambda: None)


async def test_a_crowd_is_begun_in_order_and_others_have_their_turn_in_between() -> None:
    turns, begun, seen = PacedTurns(5 * ONE_AT_A_TIME), [], [0]
    assert sum(turns.enter(partial(begun.append, n)) for n in range(100)) == 5
    while len(turns):
        await asyncio.sleep(0)
        assert len(begun) - seen[-1] <= 5
        seen.append(len(begun))
    assert begun == list(range(5, 100))
    assert not turns.enter(partial(begun.append, 100)), "the last turn of the crowd has used up what there was"
    await until(lambda: begun[-1] == 100)


async def test_work_that_fails_does_not_hold_up_the_rest() -> None:
    turns, begun, failures = PacedTurns(3 * ONE_AT_A_TIME), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    for n in range(9):
        turns.enter(fail if n % 2 else partial(begun.append, n))
    await until(lambda: not len(turns))
    assert begun == [4, 6, 8]
    assert [type(failure) for failure in failures] == [ValueError] * 3


async def test_the_first_requests_of_a_crowd_are_read_between_the_frames_of_the_others() -> None:
    async with edge_world(connections_per_s=ONE_AT_A_TIME, openings_per_s=ONE_AT_A_TIME) as world:
        stays = await world.raw("stays")
        await stays.frame()
        crowd = [await world.raw_unasked() for _ in range(CROWD)]
        for n, client in enumerate(crowd):
            await client.ask(world.token(f"u{n}"))
        await stays.send(client_frame(b'{"type":"ping","ts":1}'))
        assert b"pong" in (await stays.frame())[1]
        assert (await world.once().get("/healthz")).status_code == 200
        assert len(world.gateway.connections) < CROWD, "neither pong nor probe waited for all of them"
        for client in crowd:
            await client.accepted()
            client.close()
        stays.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_the_ends_of_a_crowd_reach_the_shard_between_the_records_of_the_others(reset: bool) -> None:
    async with edge_world(closings_per_s=ONE_AT_A_TIME) as world:
        stays = await world.raw("stays")
        await stays.frame()
        crowd = [await world.raw(f"u{n}") for n in range(CROWD)]
        for client in crowd:
            client.close(reset=reset)
        await stays.send(client_frame(b'{"type":"ping","ts":1}'))
        assert b"pong" in (await stays.frame())[1]
        assert len(world.shard.of(wire.Detach)) < CROWD, "the pong did not wait for all of them"
        await until(lambda: len(world.shard.of(wire.Detach)) == CROWD)
        assert {record.code for record in world.shard.of(wire.Detach)} == {1006}
        stays.close()
